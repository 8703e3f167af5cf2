"""The benchmark harness: names resolve, medians are medians, failures are shown. No time is asserted."""

import importlib

import pytest

from scripts.bench import BENCHMARKS, median, text


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_function(name):
    module, _, function = BENCHMARKS[name].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_median_of_three_processes():
    runs = [{"status": "ok", "steps_per_cpu_s": rate, "configuration": "a"} for rate in (5.0, 9.0, 6.0)]
    found = median(runs)
    assert found == {
        "status": "ok",
        "steps_per_cpu_s": 6.0,
        "configuration": "a",
        "steps_per_cpu_s_range": [5.0, 9.0],
        "repeats": 3,
    }


def test_a_failure_is_the_result():
    failed = {"status": "error", "message": "ImportError: x"}
    assert median([{"status": "ok", "cpu_s": 1.0}, failed]) == failed
    assert "broken: failed, ImportError: x" in text({"broken": failed})


def test_the_table():
    numbers = {"status": "ok", "steps_per_cpu_s": 123456.7, "peak_bytes": 5_000_000, "startup_s": 1.5, "steps": 10}
    lines = text({"event": numbers}).split("\n")
    assert lines[1].split() == ["event", "123,457", "1.50", "5"]
    assert lines[-1] == "event: steps 10"

"""The benchmark harness: names resolve, medians are medians, failures are shown. No time is asserted."""

import importlib
from unittest.mock import patch

import numpy as np
import pytest

from conf.compose import compose
from scripts import null_scheduler
from scripts.bench import BENCHMARKS, median, text
from scripts.bench_event import chat_turns, real_scheduler
from scripts.bench_learned import with_grids
from sim.api import prepare, run
from sim.cost.decode import DecodeTerms
from sim.cost.lengths import AttentionTerms, LengthTerms, lengths_s
from sim.cost.number import FLOATS
from sim.cost.prefill import PrefillTerms
from sim.report.result import ABORTED
from tests.event.conftest import make_table


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


def test_real_schedulers_are_found():
    """The figures stand in a file, with the engine and version they belong to."""
    assert real_scheduler("vllm", 256) == {"real_steps_per_cpu_s": 650.0, "real_scheduler": "vllm 0.10.2, 256 decodes"}
    assert real_scheduler("sglang", 64)["real_steps_per_cpu_s"] == 2660.0


def test_a_turn_repeats_what_was_said():
    """Two conversations side by side: prompt 2 holds prompt 0 and its output, then something new."""
    work = chat_turns(4, 1)
    before = np.concatenate([work.token_ids[0], work.output_token_ids[0]])
    assert work.token_ids[2][: len(before)].tolist() == before.tolist()
    assert 50 <= work.prompt_tokens[2] - len(before) <= 350
    assert (work.concurrency, len(work)) == (1, 4)


def test_the_table():
    numbers = {"status": "ok", "steps_per_cpu_s": 123456.7, "peak_bytes": 5_000_000, "startup_s": 1.5, "steps": 10}
    assert text({"event": numbers | {"real_steps_per_cpu_s": 650.0}}).split("\n")[1].split()[1:3] == ["123,457", "650"]
    lines = text({"event": numbers}).split("\n")
    assert lines[1].split() == ["event", "123,457", "1.50", "5"]
    assert lines[-1] == "event: steps 10"


def test_drawn_factors_stand_on_every_node():
    """Also at the far corner of each grid; what an artifact has learned is kept."""
    decode, prefill = DecodeTerms(*[1e-6] * 7), PrefillTerms(*[1.0] * 17)
    plain = make_table()._replace(lengths=LengthTerms((AttentionTerms(1.0, decode, prefill),)))
    table, factors = with_grids(plain)
    assert factors == "drawn"
    for batch in ((0, 0, 0, 0, 0, 2000.0, 2e8, 1e8, 1e17), (1e6, 1e4, 1e9, 1e8, 1e6, 2000.0, 2e8, 1e8, 1e17)):
        drawn_s, plain_s = (lengths_s(FLOATS, one.lengths, *batch) for one in (table, plain))
        assert 0.5 * plain_s < drawn_s < 2.0 * plain_s and drawn_s != plain_s
    again, factors = with_grids(table)
    assert factors == "learned" and again.lengths == table.lengths


@pytest.mark.parametrize("fleet", [["deployment.replicas=3"], ["deployment=pd-1p1d"]])
def test_the_null_scheduler_loses_nothing(fleet):
    """One token a step from the first on, computed here or handed over; what is lost would raise."""
    words = ["model=llama-3.2-1b", "workload=fixed-128-128", "workload.num_requests=20", "workload.rate=50"]
    words += ["engine.scheduler=scripts.null_scheduler", "engine.async_scheduling=false", *fleet]
    with patch("sim.event.pool.pricer", lambda table, settings: null_scheduler.price):
        found = run(prepare(compose(words)))
    assert found.requests.output_tokens.tolist() == [128] * 20
    spans = found.requests.finish_ns - found.requests.first_token_ns
    assert (spans == 127 * null_scheduler.STEP_NS).all()


@pytest.mark.parametrize("patience_s", [0.02, 0.333, 0.5])
def test_the_null_scheduler_lets_go(patience_s):
    """Clients leave before the first step, and in the middle of others; each run checks that nothing is kept."""
    words = ["model=qwen2.5-0.5b", "hardware=h100-sxm", "predictor=analytic", "workload=sharegpt", "workload.rate=50"]
    words += ["workload.num_requests=40", f"workload.abort_after_s={patience_s}", "engine.async_scheduling=false"]
    result = run(prepare(compose([*words, "engine.scheduler=scripts.null_scheduler"])))
    assert (result.requests.status == ABORTED).any() and all(result.checks.values())

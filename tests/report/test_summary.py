"""summary.json: vLLM's names, strict JSON, and every field documented."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from sim.report.metrics import measure
from sim.report.page.build import page
from sim.report.plain import plain, to_json
from sim.report.result import REJECTED, MemoryReport, MemoryTerm
from sim.report.summary import LATENCIES, failure_summary, summary
from sim.report.timeline.trace import timeline


VLLM_FIELDS = [
    "completed",
    "failed",
    "total_input",
    "total_output",
    "total_input_tokens",
    "total_output_tokens",
    "duration",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "percentiles_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "percentiles_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "percentiles_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "median_e2el_ms",
    "std_e2el_ms",
    "percentiles_e2el_ms",
    "p99_e2el_ms",
]


def strict(text: str):
    def refuse(word: str):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_vllm_names_and_values(three):
    fields = summary(three())
    assert set(VLLM_FIELDS) <= set(fields)
    assert (fields["completed"], fields["total_input"], fields["total_output"]) == (3, 60, 9)
    assert fields["mean_ttft_ms"] == pytest.approx(850 / 3)
    assert fields["percentiles_itl_ms"] == [
        [90.0, pytest.approx(150)],
        [95.0, pytest.approx(175)],
        [99.0, pytest.approx(195)],
    ]
    assert fields["p99_itl_ms"] == pytest.approx(195)
    assert fields["workload"]["digest"] == "d" * 64
    assert (fields["status"], fields["engine"], fields["seed"]) == ("ok", "exact", 7)
    assert fields["step_time_s"] == {"gemm": pytest.approx(0.61), "host": pytest.approx(0.19)}


def test_summary_is_strict_json_even_when_nothing_finished(three):
    requests = dataclasses.replace(three().requests, status=np.full(3, REJECTED))
    run = three(requests=requests, config={"workload": {"rate": float("inf")}}, timing={"x": float("nan")})
    fields = strict(to_json(summary(run)))
    assert fields["mean_ttft_ms"] is None
    assert fields["timing"] == {"x": None}
    assert fields["bottleneck"] is None


def test_summary_survives_its_own_json(result):
    fields = summary(result)
    assert strict(to_json(fields)) == fields
    assert fields["bottleneck"]["kind"]
    assert fields["memory"]["terms"][0] == {
        "name": "Weights",
        "bytes": 15 * 2**30,
        "note": "8.03 B parameters x 2 bytes",
        "source": "config.json",
    }


def test_failure_summary():
    fields = failure_summary("infeasible", "Weights do not fit.", model="m")
    assert (fields["status"], fields["reason"], fields["model"]) == ("infeasible", "Weights do not fit.", "m")


def test_it_says_what_priced_the_steps(result):
    fields = summary(dataclasses.replace(result, predictor="kernels", taught=True))
    assert (fields["predictor"], fields["taught"]) == ("kernels", True)


def test_plain_values():
    assert plain({1: np.float32(0.5), "a": (np.int64(3), float("inf"), True, None), "b": np.array([[1, 2]])}) == {
        "1": 0.5,
        "a": [3, None, True, None],
        "b": [[1, 2]],
    }
    assert plain(MemoryReport((MemoryTerm("w", 2.0),), 3.0))["terms"] == [
        {"name": "w", "bytes": 2.0, "note": "", "source": ""}
    ]
    assert plain({"z", "a"}) == ["a", "z"]
    assert plain(Path("x")) == "x"


def test_every_field_is_documented(result):
    text = (Path(__file__).parents[2] / "docs" / "summary.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z0-9_]+)`", text))
    per_latency = re.compile(rf"(mean|median|std|min|max|percentiles|p[0-9.]+)_({'|'.join(LATENCIES)})_ms")
    missing = [name for name in summary(result) if name not in documented and not per_latency.fullmatch(name)]
    assert missing == []
    assert set(LATENCIES) <= documented


def test_ranks_are_not_replicas(toy):
    """Two ranks of one replica are busy, full and drawn as two replicas are, but are called what they are."""
    two = toy(requests=60, replicas=2)
    ranks = dataclasses.replace(two, replicas=1, data_parallel=2)
    apart, together = summary(two), summary(ranks)
    assert (apart["replicas"], apart["data_parallel"]) == (2, 1)
    assert (together["replicas"], together["data_parallel"]) == (1, 2)
    assert {key: value for key, value in together.items() if apart[key] != value} == {
        "replicas": 1,
        "data_parallel": 2,
    }
    shown = page(ranks, measure(ranks), None)
    assert "2 data-parallel ranks" in shown and "By data-parallel rank" in shown and "2 replicas" not in shown
    four = dataclasses.replace(two, data_parallel=2)
    assert [four.rank_name(i) for i in range(four.ranks)] == [
        "replica 0, rank 0",
        "replica 0, rank 1",
        "replica 1, rank 0",
        "replica 1, rank 1",
    ]
    names = {event["args"]["name"] for event in timeline(ranks)["traceEvents"] if event["name"] == "process_name"}
    assert {"rank 0", "rank 1"} <= names

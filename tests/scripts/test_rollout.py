"""The study `rollout`: a small batch on two layouts of one small model."""

import pytest

from scripts.experiments.rollout import run
from scripts.experiments.study import Case, Experiment


WORDS = (
    "model=qwen2.5-0.5b", "hardware=h100-sxm", "predictor=analytic", "engine=vllm-0.19.0",
    "engine.async_scheduling=false", "engine.max_model_len=4096", "workload=rollout", "workload.num_requests=12",
    "workload.concurrency=12", "workload.output_tokens=40", "workload.max_total_tokens=2000",
)  # fmt: skip


def small(**settings):
    cases = (
        Case("DP2", (*WORDS, "deployment.replicas=2"), {}),
        Case("TP2", (*WORDS, "deployment.tensor_parallel=2"), {}),
    )
    known = {"switch_s": 4.0, "update_s": 10.0, "iterations": 2, "shares": [0.3, 0.6]}
    return Experiment("small", "small", "rollout", cases, known | settings, "which?", ("assumed",))


def quiet(done, what):
    pass


def test_totals_and_the_best():
    """Parts add up, twice an update; the best is the least of the thresholds, and never and alone have no switch."""
    found = run(small(), [], [], quiet).fields
    rows = found["rows"]
    assert [row["share"] for row in rows] == [0.0, 0.3, 0.6, 1.0]
    for row in rows:
        parts = row["first_s"] + row["second_s"] + row["switch_s"] + row["update_s"]
        assert row["total_s"] == pytest.approx(parts) == pytest.approx(sum(row["iterations_s"]))
        assert row["update_s"] == 20
        assert row["live_over_time"][0] == (0.0, 12.0) and row["live_over_time"][-1][1] == 0
    assert [row["switch_s"] for row in rows] == [0, 8, 8, 0]
    assert found["best_share"] == min(rows[1:3], key=lambda row: row["total_s"])["share"]
    # an earlier switch leaves less of the first layout, and more trajectories to the second
    assert rows[0]["first_s"] > rows[1]["first_s"] > rows[2]["first_s"]
    assert 0 < rows[1]["live"] < rows[2]["live"]


def test_bad_settings_are_sentences():
    with pytest.raises(ValueError, match="sets seed itself"):
        run(small(), ["seed=3"], [], quiet)
    with pytest.raises(ValueError, match="shares between 0 and 1"):
        run(small(shares=[1.5]), [], [], quiet)

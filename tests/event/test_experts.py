"""Runs in which tokens are spread unevenly over experts: every loop, both details, and what a report has of it."""

import numpy as np
import pytest

from sim import simulate
from sim.api import build, compose, why_exact
from sim.report.console import insight_block
from sim.report.metrics import measure
from sim.report.summary import summary


MODEL = ("model=mixtral-8x7b", "hardware=h100-sxm", "predictor=analytic", "workload=fixed-128-128")
LOAD = ("workload.num_requests=24", "workload.rate=40", "engine.max_model_len=2048")
ONE = ("deployment.tensor_parallel=4", "deployment.expert_parallel=true")
RANKS = ("deployment.data_parallel=4", "deployment.expert_parallel=true")
STAGES = ("deployment.tensor_parallel=2", "deployment.pipeline_parallel=2", "deployment.expert_parallel=true")


def run(*overrides, law="zipf"):
    return simulate(*MODEL, *LOAD, *overrides, f"experts.law={law}")


DIRECT = (*RANKS, "deployment.all_to_all=deepep_auto")


@pytest.mark.parametrize("shape", [ONE, RANKS, STAGES, DIRECT])
@pytest.mark.parametrize("detail", ["collapsed", "layers"])
def test_the_engine_uses_the_prices_that_the_report_finds(shape, detail):
    result = run(*shape, f"experts.detail={detail}")
    assert all(result.checks.values()), result.checks
    table = result.experts
    assert table.rows.sum() == pytest.approx(1.0)
    whole = table.busy_s + table.wait_s
    assert whole == pytest.approx(np.full(len(whole), whole[0])) and table.wait_s.min() >= 0.0


def test_both_details_tell_the_same_story():
    one, other = (run(*ONE, f"experts.detail={detail}") for detail in ("collapsed", "layers"))
    assert summary(one)["mean_tpot_ms"] == pytest.approx(summary(other)["mean_tpot_ms"], rel=0.005)
    assert summary(one)["mean_ttft_ms"] == pytest.approx(summary(other)["mean_ttft_ms"], rel=0.01)


def test_popular_experts_cost_time_and_copies_memory_and_give_it_back():
    """Long prompts, so that products and not weights are waited for."""
    long = ("workload=fixed-1024-128", *RANKS)
    even = simulate(*MODEL, *LOAD, *long)
    steep = run(*long, "experts.exponent=1.5")
    balanced = run(
        *long, "experts.exponent=1.5", "deployment.expert_placement=balanced", "deployment.redundant_experts=4"
    )
    times = [summary(result)["mean_ttft_ms"] for result in (even, balanced, steep)]
    assert times == sorted(times)
    assert balanced.num_gpu_blocks < steep.num_gpu_blocks == even.num_gpu_blocks
    assert even.experts is None and summary(even)["experts"] is None
    assert ("expert load", "even over experts and ranks") in {row[:2] for row in even.assumptions}
    assert any("uneven expert load" in text for text in even.not_modelled)


def test_a_report_says_who_waits():
    result = run(*ONE, "experts.detail=layers")
    found = summary(result)["experts"]
    assert found["law"] == "zipf" and found["ranks"] == 4 and len(found["by_rank"]) == 4
    assert 1.0 < found["imbalance_mean"] <= 4.0 and 0.0 < found["wait_share"] < 1.0
    lines = "\n".join(insight_block(result, measure(result), None))
    assert "Fullest expert rank / mean" in lines and "Experts' ranks wait (%)" in lines
    assumed = {what: (value, source) for what, value, source in result.assumptions}
    assert assumed["expert load"] == ("zipf (exponent 1.0)", "experts.law; every layer and rank of each step")
    assert not any("uneven expert load" in text for text in result.not_modelled)


def test_the_same_seed_draws_the_same_and_another_does_not():
    times = [run(*ONE, f"seed={seed}", "workload.arrival=constant").requests.finish_ns for seed in (1, 1, 2)]
    assert (times[0] == times[1]).all() and (times[0] != times[2]).any()


def test_only_the_exact_engine_draws_experts():
    job = build(compose([*MODEL, *LOAD, *ONE, "experts.law=uniform"]))
    assert why_exact(job) == "experts that are drawn for every step"
    other = build(compose([*MODEL, *LOAD, *ONE, "experts.law=zipf"]))
    assert job.price_key() != other.price_key()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=llama-3.1-8b", "experts.law=zipf"], "experts.law=zipf is set, but llama-3.1-8b has no experts"),
        (["model=llama-3.1-8b", "deployment.redundant_experts=2"], "redundant_experts is set, but llama-3.1-8b has no"),
        ([*ONE, "deployment.expert_placement=balanced"], "no effect while experts are alike: set experts.law"),
        ([*ONE, "deployment.expert_placement=balance"], "expert_placement must be one of linear, balanced, got"),
        (["deployment.tensor_parallel=4", "deployment.redundant_experts=4"], "every rank has all experts: set"),
        ([*ONE, "deployment.redundant_experts=3"], "8 experts and 3 copies do not divide over 4 ranks; 0 or 4 would"),
        ([*ONE, "deployment.redundant_experts=6"], "8 experts and 6 copies do not divide over 4 ranks; 4 or 8 would"),
        ([*ONE, "deployment.redundant_experts=-1"], "redundant_experts must be from 0 to 4,096, got -1"),
        (["experts.law=zipfy"], "experts.law wants one of even"),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        build(compose([*MODEL, *LOAD, *overrides]))

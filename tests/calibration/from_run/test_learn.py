"""Constants are found again from a run that was made with other ones; a frozen run moves as the simulation does."""

import json

import numpy as np
import pytest

from calibration.from_run import bench_result
from calibration.from_run.frozen import frozen
from calibration.from_run.learn import errors_of, learn
from calibration.from_run.observed import Observed
from conf.compose import compose
from predictors.run_fit import RunFit, adjusted, load
from sim import api
from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.model.read import load_model


KEYS = ("model=llama-3.2-1b", "hardware=h100-sxm", "predictor=analytic", "engine.max_num_seqs=16")
LOAD = ("workload=fixed-512-512", "workload.num_requests=24", "workload.input_tokens=700", "workload.output_tokens=40")
CLOSED = ("workload.arrival=closed_loop", "workload.concurrency=8")


def job_of(*more):
    return api.build(compose([*KEYS, *LOAD, *more]))


def run_with(job, values):
    import dataclasses

    return api.run(dataclasses.replace(job, plan=adjusted(job.plan, values)))


def latencies(result):
    still = frozen(result)
    return still.ttft_s, still.e2el_s


@pytest.mark.parametrize("load", [CLOSED, ("workload.rate=40",)])
def test_a_frozen_run_moves_as_the_simulation(load):
    # 0.1 ms more on every step: no decision changes in a closed loop, and hardly any in an open one
    job = job_of(*load)
    before, after = run_with(job, {}), run_with(job, {"host_s": 1e-4})
    still = frozen(before)
    ttft_s, e2el_s = still.latencies(np.full(len(still.order), 1e-4))
    real_ttft_s, real_e2el_s = latencies(after)
    assert np.median(np.abs(np.asarray(e2el_s) / real_e2el_s - 1)) < 0.02
    assert np.median(np.abs(np.asarray(ttft_s) / real_ttft_s - 1)) < 0.1
    moved = (real_e2el_s - still.e2el_s).mean()
    assert moved > 40 * 1e-4 * 0.7  # each token, less what slower steps share


def test_known_constants_are_found_again():
    job = job_of(*CLOSED)
    truth = {"memory": 0.85, "host_s": 5e-4}
    measured = run_with(job, truth)
    ttft_s, e2el_s = latencies(measured)
    observed = Observed("made", "0" * 64, {("ttft", "mean"): float(ttft_s.mean())}, ttft_s, e2el_s)
    found = learn(observed, lambda values: run_with(job, values), job.cost, job.plan.arrays, 0.15)
    assert abs(errors_of(observed, found.before)["mean_ttft"]) > 0.03
    assert abs(errors_of(observed, found.after)["mean_ttft"]) < 0.01
    again_ttft_s, again_e2el_s = latencies(found.after)
    np.testing.assert_allclose(again_e2el_s, e2el_s, rtol=0.01)
    assert found.values["host_s"] > 0 and found.values["memory"] < 1.0
    assert "links" not in found.values  # one GPU has no collectives


def test_a_result_file_of_a_benchmark(tmp_path):
    content = {
        "max_concurrency": 2,
        "request_rate": "inf",
        "num_prompts": 3,
        "mean_ttft_ms": 100.0,
        "median_ttft_ms": 90.0,
        "mean_tpot_ms": 10.0,
        "input_lens": [10, 20, 30],
        "output_lens": [3, 2, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.01, 0.02], [0.03], []],
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    assert bench_result.matches(path)
    found = bench_result.read(path)
    assert found.statistics["ttft", "mean"] == pytest.approx(0.1)
    np.testing.assert_allclose(found.e2el_s, [0.13, 0.23])
    assert found.workload.concurrency == 2 and list(found.workload.prompt_tokens) == [10, 20]
    assert found.notes == ("1 failed requests are left out",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_ttft_ms": -1.0}, "mean_ttft_ms must be a positive number of milliseconds, got -1.0"),
        ({"ttfts": [0.1]}, "lists of requests must be equally long, got input_lens 2, output_lens 2, ttfts 1, itls 2"),
    ],
)
def test_impossible_result_files(tmp_path, change, message):
    content = {"mean_ttft_ms": 1.0, "input_lens": [1, 1], "output_lens": [1, 1], "ttfts": [1.0, 1.0], "itls": [[], []]}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content | change))
    with pytest.raises(ValueError, match=message):
        bench_result.read(path)


def test_the_file_is_applied_to_its_own_device_only(tmp_path):
    job = job_of(*CLOSED)
    name = job.plan.device.name
    fit = RunFit("analytic", name, "vLLM", {"memory": 0.5, "request_s": 0.01}, {}, "made", "0" * 64, "2026-01-31", {})
    fit.save(tmp_path / "fit.json")
    again = load(tmp_path / "fit.json")
    plan = again.apply(job.plan)
    assert plan.arrays.device.memory_bytes_per_s == pytest.approx(0.5 * job.plan.arrays.device.memory_bytes_per_s)
    assert plan.engine.profile.api_pickup_s == pytest.approx(job.plan.engine.profile.api_pickup_s + 0.01)
    other = api.build(compose(["model=llama-3.2-1b", "hardware=a100-sxm-80gb", "predictor=analytic", *LOAD]))
    with pytest.raises(ValueError, match="learned from a run on NVIDIA H100 SXM 80GB, got hardware NVIDIA A100"):
        again.apply(other.plan)
    text = (tmp_path / "fit.json").read_text().replace('"memory": 0.5', '"memory": -1')
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match="values must hold numbers for some of memory"):
        load(tmp_path / "bad.json")


def test_rates_of_what_ranks_run_together():
    """Experts and their exchange are in `plan.shared`: half as fast, they take twice as long; the host's time is not
    theirs."""
    model = load_model("qwen3-30b-a3b")
    plan = compile_plan(
        model, load_device("rtx-pro-6000"), load_engine("vllm", "0.19.0"), DeploymentConf(data_parallel=2)
    )
    changed = adjusted(plan, {"memory": 0.8, "compute": 0.25, "links": 0.5, "host_s": 1e-3})
    before, after = plan.shared, changed.shared
    assert after.device.memory_bytes_per_s == pytest.approx(0.8 * before.device.memory_bytes_per_s)
    np.testing.assert_allclose(after.moe.flops_per_s, 0.25 * before.moe.flops_per_s)
    used = before.collective.count > 0
    assert used.any()
    np.testing.assert_allclose(after.collective.bytes_per_s[used], 0.5 * before.collective.bytes_per_s[used])
    np.testing.assert_allclose(after.collective.a_s[used], 2.0 * before.collective.a_s[used])
    assert after.device.host_s == before.device.host_s == 0.0
    assert changed.arrays.device.host_s == pytest.approx(plan.arrays.device.host_s + 1e-3)
    assert (
        adjusted(
            compile_plan(model, load_device("rtx-pro-6000"), load_engine("vllm", "0.19.0"), DeploymentConf()),
            {"memory": 0.8},
        ).shared
        is None
    )


def test_links_of_steps_with_a_prefill_are_learned_too():
    """What ranks exchange in prefills (`deepep_auto`) is as much faster as all else over links."""
    model, device = load_model("deepseek-v3"), load_device("h200-sxm")
    deployment = DeploymentConf(data_parallel=8, expert_parallel=True, all_to_all="deepep_auto")
    plan = compile_plan(model, device, load_engine("sglang", "0.5"), deployment)
    before, after = plan.exchange.prefill, adjusted(plan, {"links": 2.0}).exchange.prefill
    assert (after.bytes_per_s == 2.0 * before.bytes_per_s).all()
    assert (after.a_s == before.a_s / 2.0).all() and before.a_s[0, 0] > 0.0

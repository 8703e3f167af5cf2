"""Pipeline stages, priorities and groups of layers, from a configuration to the report."""

import numpy as np
import pytest

from conf.compose import compose
from sim import api


SMALL = ["model=qwen2.5-0.5b", "engine.max_num_batched_tokens=512", "workload.num_requests=12", "workload.rate=2"]


@pytest.fixture(scope="module")
def results():
    """The same requests on one device, and on two stages of each kind of loop."""
    stages = [*SMALL, "deployment.pipeline_parallel=2"]
    return {
        "one": api.simulate(*SMALL, "engine=vllm-0.33.0"),
        "overlapping": api.simulate(*stages, "engine=vllm-0.33.0"),
        "one at a time": api.simulate(*stages, "engine=vllm-0.19.0"),
        "synchronous": api.simulate(*stages, "engine=vllm-0.19.0", "engine.async_scheduling=false"),
    }


def test_stages_are_simulated(results):
    for name, result in results.items():
        assert all(result.checks.values()), name
        assert (result.stages is None) == (name == "one")
        assert result.gpus == (1 if name == "one" else 2)
        assert sum(values.sum() for values in result.components_s.values()) > 0


def test_a_pass_takes_as_long_as_on_one_device(results):
    """Stages share the layers, so a lone prefill takes as long, with a hand-over and a launch more."""
    one = int(results["one"].steps.end_ns[0] - results["one"].steps.start_ns[0])
    for name in ("overlapping", "one at a time", "synchronous"):
        steps = results[name].steps
        assert steps.prefill_tokens[0] == results["one"].steps.prefill_tokens[0]
        assert one < int(steps.end_ns[0] - steps.start_ns[0]) < 1.1 * one


def test_each_loop_has_its_depth(results):
    depths = {name: result.settings["batches_in_flight"] for name, result in results.items()}
    assert depths == {"one": 2, "overlapping": 3, "one at a time": 2, "synchronous": 2}
    stages = results["one at a time"].stages
    assert stages is not None
    assert (stages.start_ns[1:, 0] >= stages.end_ns[:-1, 1]).all()


def test_a_sweep_sends_stages_to_the_exact_engine():
    job = api.build(compose([*SMALL, "deployment.pipeline_parallel=2", "engine=vllm-0.10.2"]))
    assert api.why_exact(job) == "there are 2 pipeline stages"


def test_groups_share_the_blocks():
    """Windows give blocks back, so a long context takes fewer than one table per group would."""
    long = ["model=gemma-3-4b", "workload=fixed-8192-1024", "workload.num_requests=2", "workload.output_tokens=4"]
    job = api.build(compose([*long, "engine.max_model_len=10000"]))
    kinds = [group.kind for group in job.groups]
    assert set(kinds) == {"full", "swa"}
    assert job.pool_blocks == job.budget.num_blocks
    result = api.run(job)
    held = result.num_gpu_blocks - 1 - int(np.min(result.steps.free_blocks))
    assert held < 0.7 * 2 * len(kinds) * (8192 // 16)
    off = api.build(compose([*long, "engine.max_model_len=10000", "engine.hybrid_kv_cache=false"]))
    assert [group.kind for group in off.groups] == ["full"]


def test_ttft_by_priority_is_in_the_summary(headway):
    words = (*SMALL, "workload.priorities=[0.5,0.5]", "engine.scheduling_policy=priority", "--json")
    found = headway("simulate", *words).json()["ttft_by_priority"]
    assert [one["priority"] for one in found] == [0, 1]
    assert sum(one["completed"] for one in found) == 12

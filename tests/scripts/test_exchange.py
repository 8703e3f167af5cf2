"""Ways to the experts of other ranks from the command line."""

import pytest


RANKS = (
    "model=qwen3-30b-a3b",
    "hardware=h200-sxm",
    "deployment.data_parallel=4",
    "deployment.expert_parallel=true",
    "workload=fixed-512-512",
    "workload.output_tokens=8",
    "workload.num_requests=12",
)


@pytest.mark.parametrize("way", ["deepep_auto", "deepep_high_throughput"])
def test_steps_have_the_price_that_the_cost_model_tells(headway, tmp_path, way):
    """Prefills and decodes on four ranks, unevenly: the engine's steps and the components are one."""
    words = (*RANKS, f"deployment.all_to_all={way}", f"results={tmp_path / 'run'}", "--json")
    found = headway("simulate", *words).json()
    assert (found["status"], found["completed"], found["gpus"]) == ("ok", 12, 4)
    assert found["checks"]["step prices equal the cost model's (1 ns)"] and all(found["checks"].values())


def test_a_way_without_whole_experts_is_refused(headway):
    words = [word for word in RANKS if "expert_parallel" not in word]
    said = headway("simulate", *words, "deployment.all_to_all=deepep_low_latency")
    assert said.code == 2 and "set deployment.expert_parallel=true" in said.err

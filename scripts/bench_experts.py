"""Benchmark of unevenly spread experts: every layer and rank of each step against one draw a step."""

from conf.compose import compose
from sim.api import build, run
from sim.report.result import SimulationResult


LOAD = [
    "model=deepseek-v3",
    "hardware=h200-sxm",
    "predictor=analytic",
    "engine.max_model_len=8192",
    "workload=fixed-1024-512",
    "workload.num_requests=1000",
    "workload.rate=50",
    "experts.law=zipf",
]
SHAPES = {
    "one_batch": ["deployment.tensor_parallel=8", "deployment.expert_parallel=true"],
    "eight_batches": ["deployment=dp8ep8"],
}


def moe_layer() -> dict[str, float | str]:
    """58 expert layers over eight ranks: microseconds of a step in both details, and how many times as long it takes.

    `one_batch`: the ranks share one; `eight_batches`: each has its own, in lockstep. `steps_per_cpu_s` is that of
    one batch, in every layer.
    """
    found: dict[str, float | str] = {}
    for name, shape in SHAPES.items():
        spent = {detail: _step_s([*LOAD, *shape, f"experts.detail={detail}"]) for detail in ("collapsed", "layers")}
        found |= {f"{name}_{detail}_us": 1e6 * seconds for detail, seconds in spent.items()}
        found[f"{name}_ratio"] = spent["layers"] / spent["collapsed"]
    rate = 1e6 / float(found["one_batch_layers_us"])
    return found | {"configuration": "deepseek-v3, 8 x h200-sxm, 58 layers x 8 ranks", "steps_per_cpu_s": rate}


def _step_s(overrides: list[str]) -> float:
    """CPU seconds of one step: of all ranks together where they run in lockstep."""
    result: SimulationResult = run(build(compose(overrides)))
    return result.timing["simulate_cpu_s"] / (len(result.steps) / result.data_parallel)

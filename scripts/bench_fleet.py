"""Benchmarks of fleets: 1,024 devices, co-located and with prefill and decode apart."""

import time

from conf.compose import compose
from sim.api import prepare, run
from sim.report.result import SimulationResult


REQUESTS = 20_000
LOAD = ["model=llama-3.3-70b", "workload=sharegpt", "workload.rate=400", f"workload.num_requests={REQUESTS}"]
EIGHT = "tensor_parallel=8"


def fleet_colocated() -> dict[str, float | str]:
    """128 replicas of eight devices behind one router."""
    return _measured(["deployment.replicas=128", f"deployment.{EIGHT}"])


def fleet_disaggregated() -> dict[str, float | str]:
    """64 prefill and 64 decode instances of eight devices each, every request's KV over shared links."""
    pools = [f"deployment.pools.{pool}.{key}" for pool in ("prefill", "decode") for key in ("replicas=64", EIGHT)]
    return _measured(["deployment=pd-1p1d", *pools])


def _measured(overrides: list[str]) -> dict[str, float | str]:
    started = time.process_time()
    job = prepare(compose([*LOAD, *overrides]))
    built = time.process_time() - started
    result: SimulationResult = run(job)
    timing = result.timing
    steps = len(result.steps)
    return {
        "configuration": f"{result.model}, {result.gpus} x {result.device}, {result.engine_label}",
        "steps": steps,
        "requests": len(result.requests),
        "transfers": 0 if result.transfers is None else int((result.transfers.source >= 0).sum()),
        "events": int(timing["events"]),
        "us_per_event": 1e6 * timing["simulate_cpu_s"] / timing["events"],
        "compile_s": built,
        "simulate_cpu_s": timing["simulate_cpu_s"],
        "steps_per_cpu_s": steps / timing["simulate_cpu_s"],
    }

"""Benchmarks of fleets: 1,024 devices, co-located and with prefill and decode apart; what their events alone cost."""

import time
from unittest.mock import patch

from conf.compose import compose
from scripts import null_scheduler
from sim.api import prepare, run
from sim.memory.shape import CacheShape, GroupShape
from sim.report.result import SimulationResult
from sim.scheduler.base import Request


REQUESTS = 20_000
CALLS = 200_000
LOAD = ["model=llama-3.3-70b", "workload=sharegpt", "workload.rate=400", f"workload.num_requests={REQUESTS}"]
EIGHT = "tensor_parallel=8"
COLOCATED = ["deployment.replicas=128", f"deployment.{EIGHT}"]
APART = ["deployment=pd-1p1d"] + [
    f"deployment.pools.{pool}.{key}" for pool in ("prefill", "decode") for key in ("replicas=64", EIGHT)
]


def fleet_colocated() -> dict[str, float | str]:
    """128 replicas of eight devices behind one router."""
    return _measured(COLOCATED)


def fleet_disaggregated() -> dict[str, float | str]:
    """64 prefill and 64 decode instances of eight devices each, every request's KV over shared links."""
    return _measured(APART)


def event_core() -> dict[str, float | str]:
    """Both fleets under a scheduler and a price that do nothing: agenda, loops, router, client, hand-over and links.

    `us_per_event`: CPU microseconds for each event of both, the making of the tables and the checks included, without
    what that scheduler and that price take by themselves (`us_per_step_without`, for each step).
    """
    alone = ["engine.scheduler=scripts.null_scheduler", "engine.async_scheduling=false"]
    with patch("sim.event.pool.pricer", lambda table, settings: null_scheduler.price):
        runs = {name: _measured([*words, *alone]) for name, words in (("co-located", COLOCATED), ("apart", APART))}
    step_s = _null_step_s()
    events = {name: int(run["events"]) for name, run in runs.items()}
    spent_s = {name: float(run["simulate_cpu_s"]) - step_s * int(run["steps"]) for name, run in runs.items()}
    each: dict[str, float | str] = {f"us_per_event {name}": 1e6 * spent_s[name] / events[name] for name in runs}
    return {
        "configuration": "128 replicas, and 64 + 64 with transfers; every step 20 ms, no scheduling, no pricing",
        "events": sum(events.values()),
        "us_per_event": 1e6 * sum(spent_s.values()) / sum(events.values()),
        **each,
        "us_per_step_without": 1e6 * step_s,
        "transfers": runs["apart"]["transfers"],
    }


def _null_step_s() -> float:
    """CPU seconds of one call of the null scheduler in which nobody comes or goes, its completion and its price."""
    scheduler = null_scheduler.Null(CacheShape(2, False, (GroupShape("full", 16),)))
    scheduler.add(Request(0, 1, CALLS + 2))
    scheduler.complete(scheduler.schedule())
    started = time.process_time()
    for _ in range(CALLS):
        batch = scheduler.schedule()
        null_scheduler.price(batch)
        scheduler.complete(batch)
    return (time.process_time() - started) / CALLS


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

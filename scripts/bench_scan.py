"""Benchmark of the wide engine: many closed loops side by side on one core."""

import time
from collections.abc import Callable

import numpy as np

from conf.compose import compose
from sim.api import build
from sim.cost.lengths import lengths_s
from sim.cost.table import PriceTable
from sim.scan import LaneJob, LaneRun, ScanResult, lane_job, scan
from sim.workload.trace import Workload


LANES = 256
JOBS = 1024
REQUESTS = 400


def scan_analytic() -> dict[str, float | str]:
    """Closed loops of 48 to 80, each with lengths of its own, blocks counted: steps per CPU-second at 256 lanes.

    `steps_per_cpu_s` is that of the compiled loop, analytic price included, `whole_steps_per_cpu_s` that of the
    whole call (packing, refilling, times of all requests); `flat_steps_per_cpu_s` is the loop's with a price that
    ignores lengths. A first run of each is taken for its compilation.
    """
    return measured_lanes(*closed_loops())


def measured_lanes(jobs: list[LaneJob], table: PriceTable, configuration: str) -> dict[str, float | str]:
    """The numbers of one sweep with the prices of `table`."""
    compile_s, priced, whole_s = _measure(jobs, table, lengths_s)
    _, flat, _ = _measure(jobs, table, _nothing_s)
    steps = int(priced.steps.sum())
    return {
        "configuration": configuration,
        "lanes": priced.lanes,
        "jobs": len(jobs),
        "steps": steps,
        "mean_batch": float(sum(priced.runs)) / steps,
        "preemptions": int(priced.preemptions.sum()),
        "steps_per_cpu_s": steps / priced.loop_cpu_s,
        "whole_steps_per_cpu_s": steps / whole_s,
        "flat_steps_per_cpu_s": float(flat.steps.sum()) / flat.loop_cpu_s,
        "steps_per_iteration": steps / (priced.iterations * priced.lanes),
        "compile_s": compile_s,
    }


def closed_loops(predictor: str = "analytic") -> tuple[list[LaneJob], PriceTable, str]:
    """The jobs, their prices, and what they serve."""
    rng = np.random.default_rng(0)
    workloads = [
        Workload(
            "bench",
            np.zeros(REQUESTS, np.int64),
            rng.integers(100, 400, REQUESTS),
            rng.integers(200, 400, REQUESTS),
            concurrency=int(rng.integers(48, 81)),
        )
        for _ in range(JOBS)
    ]
    settings = ["engine=vllm-0.10.2", "engine.max_num_seqs=128", "engine.enable_prefix_caching=false"]
    job = build(compose([*settings, f"predictor={predictor}"]), workloads[0])
    engine = job.plan.engine
    jobs = [lane_job(workload, engine, job.pool_blocks - 1) for workload in workloads]
    return jobs, job.price_table(), f"{job.plan.model.name}, {job.plan.device.name}, {engine.name} {engine.version}"


def _measure(jobs: list[LaneJob], table: PriceTable, price_s: Callable) -> tuple[float, ScanResult, float]:
    """CPU seconds of compilation, the second run, and its CPU seconds."""
    spent = []
    for _ in range(2):
        started = time.process_time()
        found = scan(jobs, [table], lanes=LANES, lengths_s=price_s, reduce=_decodes)
        spent.append(time.process_time() - started)
    return spent[0] - spent[1], found, spent[1]


def _decodes(index: int, run: LaneRun) -> int:
    del index
    return int(run.itl_count.sum())


def _nothing_s(xp, terms, prefill_tokens, *statistics):
    return 0.0 * prefill_tokens

"""The wide engine's entry: thousands of serving simulations in one compiled loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sim.cost.lengths import lengths_s as closed_form_s
from sim.cost.table import PriceTable
from sim.report.result import REJECTED
from sim.scan.jobs import HELP, LaneJob, Status, check_job, servable, why_exact
from sim.scan.loop import Ended, run_units
from sim.scan.pack import MAX_SLOTS, pack
from sim.scan.recover import LaneRun, UnitRun, clock_runs_back, merge_units, recover_units


@dataclass(frozen=True, eq=False)
class ScanResult:
    """What became of the jobs, axis `job`.

    `runs[i]` is the job's `LaneRun`, or what `reduce` made of it, or None where `status[i]` is not OK; `message[i]`
    then says why in a sentence. `iterations` of the loop over `lanes` lanes took `loop_cpu_s` of this process's time.
    """

    status: np.ndarray
    message: list[str]
    runs: list[Any]
    steps: np.ndarray
    preemptions: np.ndarray
    rejected: np.ndarray
    makespan_ns: np.ndarray
    iterations: int
    lanes: int
    loop_cpu_s: float


def scan(
    jobs: Sequence[LaneJob],
    tables: Sequence[PriceTable],
    *,
    lanes: int = 256,
    window: int = 256,
    slots: int | None = None,
    log_steps: bool = False,
    max_iterations: int = 100_000_000,
    reduce: Callable[[int, LaneRun], Any] | None = None,
    on_progress: Callable[[int], None] | None = None,
    lengths_s: Callable = closed_form_s,
) -> ScanResult:
    """Run every job; one that needs the exact engine gets a status, and never stops the others.

    **Arguments:**

    - `tables`: price tables, which `LaneJob.table` indexes.
    - `lanes` jobs run side by side, each refilled when its job has ended, every `window` iterations.
    - `slots`: decodes a lane can hold at once; by default as many as could be needed. Fewer are faster.
    - `log_steps`: keep the table of steps of every run.
    - `max_iterations`: per job; an iteration executes a step, or one more admission, end or preemption in it.
    - `reduce(job, run)`: called when a job has ended, its result is kept in place of the run. `on_progress(ended)`.
    - `lengths_s`: the part of the price that depends on lengths, a function as `sim.cost.lengths.lengths_s`.

    Times are exact in integer ns and equal those of the exact engine.

    **Raises:** `ValueError` for input that no engine can run.
    """
    for name, value, most in (("lanes", lanes, 2**16), ("window", window, 2**20), ("slots", slots or 1, MAX_SLOTS)):
        if not 1 <= value <= most:
            raise ValueError(f"{name} must be between 1 and {most}, got {value}")
    for job in jobs:
        check_job(job, len(tables))
    count = len(jobs)
    servables = [servable(job) for job in jobs]
    status = np.full(count, Status.OK, np.int8)
    detail = [why_exact(job, served) for job, (served, _) in zip(jobs, servables, strict=True)]
    status[[bool(why) for why in detail]] = Status.NEEDS_EXACT
    runnable = np.flatnonzero(status == Status.OK).tolist()
    packed = pack(jobs, servables, runnable, tables, lanes=lanes, slots=slots, window=window)
    runs: list[Any] = [None] * count
    totals = np.zeros((4, count), np.int64)
    mine: list[list[int]] = [[] for _ in jobs]
    for u, unit in enumerate(packed.units):
        mine[unit.job].append(u)
    partial: dict[int, UnitRun] = {}
    left = [len(units) for units in mine]
    ended_jobs = 0

    def conclude(i: int) -> None:
        nonlocal ended_jobs
        ended_jobs += 1
        parts = [partial.pop(u) for u in mine[i] if u in partial]
        if status[i] == Status.OK:
            run = merge_units(jobs[i], *servables[i], parts, log_steps)
            rejected = int((run.requests.status == REJECTED).sum())
            totals[:, i] = run.step_count, run.preemptions, rejected, run.makespan_ns
            runs[i] = run if reduce is None else reduce(i, run)
        if on_progress is not None:
            on_progress(ended_jobs)

    def on_end(ended: list[Ended]) -> None:
        good = []
        for one in ended:
            how = Status.BAD_PRICE if clock_runs_back(one) else one.status
            if how == Status.OK:
                good.append(one)
            else:
                status[packed.units[one.unit].job] = how
        if good:
            units = [packed.units[one.unit] for one in good]
            graphs = [packed.graphs[packed.columns["table"][one.unit]] for one in good]
            recovered = recover_units(good, units, [jobs[unit.job] for unit in units], graphs)
            partial.update((one.unit, run) for one, run in zip(good, recovered, strict=True))
        for one in ended:
            i = packed.units[one.unit].job
            left[i] -= 1
            if not left[i]:
                conclude(i)

    for i in range(count):
        if not left[i]:
            conclude(i)
    iterations, loop_cpu_s = 0, 0.0
    if packed.units:
        with jax.enable_x64(True):
            iterations, loop_cpu_s = run_units(
                packed, lengths_s, on_end, window=window, log_steps=log_steps, max_iterations=max_iterations
            )
    return ScanResult(
        status=status,
        message=[
            "" if status[i] == Status.OK else HELP[Status(status[i])] + (f" ({detail[i]})" if detail[i] else "")
            for i in range(count)
        ],
        runs=runs,
        steps=totals[0],
        preemptions=totals[1],
        rejected=totals[2],
        makespan_ns=totals[3],
        iterations=iterations,
        lanes=packed.shape.lanes,
        loop_cpu_s=loop_cpu_s,
    )

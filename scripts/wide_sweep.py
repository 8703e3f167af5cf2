"""A multirun in this process: jobs that the wide engine can run go side by side, the others one by one.

Taken when no launcher is chosen and the wide engine has at least two jobs: synchronous scheduling, no prefix to reuse.
A wide job's folder has its configuration and summary; its tables and page come from running it alone.
"""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conf.expand import SweepJob
from scripts.failure import failure_status, reason_of
from scripts.progress import progress


if TYPE_CHECKING:
    from sim.api import Fleet
    from sim.report.result import SimulationResult


ENOUGH = 2


def chosen_launcher(overrides: list[str]) -> bool:
    """Whether the user wants Hydra to run the jobs in a way of their own."""
    return any(override.lstrip("+").startswith("hydra/launcher") for override in overrides)


def sweep_here(jobs: list[SweepJob], folder: Path, show_progress: bool) -> bool:
    """Run all jobs here if the wide engine has enough of them; False, and nothing done, if it has not."""
    from sim import api
    from sim.report.results import write_failure, write_results, write_summary

    built: dict[int, api.Job | Fleet] = {}
    failed: dict[int, Exception] = {}
    wide: list[int] = []
    for number, job in enumerate(jobs):
        try:
            built[number] = api.prepare(job.conf)
            if not api.why_exact(built[number]):
                wide.append(number)
        except Exception as error:
            built.pop(number, None)
            failed[number] = error
    if len(wide) < ENOUGH:
        return False
    ended: set[int] = set()

    def fail(number: int, why: Exception) -> None:
        conf = dataclasses.asdict(jobs[number].conf)
        write_failure(folder / str(number), failure_status(why), reason_of(why), conf, jobs[number].swept)
        ended.add(number)

    def consume(index: int, result: "SimulationResult") -> None:
        number = wide[index]
        job = jobs[number]
        try:
            write_summary(result, folder / str(number), job.swept, job.conf.percentiles)
            ended.add(number)
        except Exception as why:
            fail(number, why)

    for number, why in failed.items():
        fail(number, why)
    with progress(len(jobs), "jobs", show_progress) as report:
        # What one job makes the engine raise must not end the others: those that have no result yet run one by one.
        try:
            api.sweep([one for number in wide if isinstance(one := built[number], api.Job)], consume, report)
        except Exception as why:
            print(f"headway: the wide engine stopped ({reason_of(why)}); its jobs run one by one", file=sys.stderr)
        for number, alone in built.items():
            if number in ended:
                continue
            try:
                result = api.run(alone)
                write_results(result, folder / str(number), jobs[number].swept, jobs[number].conf.percentiles)
                ended.add(number)
            except Exception as why:
                fail(number, why)
            report(len(ended))
    return True

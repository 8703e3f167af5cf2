"""A multirun in this process: jobs that the wide engine can run go side by side, the others one by one.

Taken when no launcher is chosen and the wide engine has at least two jobs: synchronous scheduling, no prefix to reuse.
A wide job's folder has its configuration and summary; its tables and page come from running it alone.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from conf.expand import SweepJob
from scripts.failure import failure_status, reason_of
from scripts.progress import progress


if TYPE_CHECKING:
    from sim.api import Job
    from sim.report.result import SimulationResult


ENOUGH = 2


def chosen_launcher(overrides: list[str]) -> bool:
    """Whether the user wants Hydra to run the jobs in a way of their own."""
    return any(override.lstrip("+").startswith("hydra/launcher") for override in overrides)


def sweep_here(jobs: list[SweepJob], folder: Path, show_progress: bool) -> bool:
    """Run all jobs here if the wide engine has enough of them; False, and nothing done, if it has not."""
    from sim import api
    from sim.report.results import write_failure, write_results, write_summary

    built: dict[int, Job] = {}
    failed: dict[int, Exception] = {}
    for number, job in enumerate(jobs):
        try:
            built[number] = api.build(job.conf)
        except (ValueError, OSError) as error:
            failed[number] = error
    wide = [number for number, job in built.items() if not api.why_exact(job)]
    if len(wide) < ENOUGH:
        return False
    for number, why in failed.items():
        conf = dataclasses.asdict(jobs[number].conf)
        write_failure(folder / str(number), failure_status(why), reason_of(why), conf, jobs[number].swept)

    def consume(index: int, result: "SimulationResult") -> None:
        job = jobs[wide[index]]
        write_summary(result, folder / str(wide[index]), job.swept, job.conf.percentiles)

    exact = [number for number in built if number not in set(wide)]
    with progress(len(built), "jobs", show_progress) as report:
        left = api.sweep([built[number] for number in wide], consume, report)
        exact += [wide[index] for index in left]
        for done, number in enumerate(exact, len(built) - len(exact)):
            result = api.run(built[number])
            write_results(result, folder / str(number), jobs[number].swept, jobs[number].conf.percentiles)
            if report is not None:
                report(done + 1)
    return True

"""`headway simulate -m`: every combination, in the wide engine or as jobs of Hydra's launcher, then one table.

A mistake in any job is found before the first one runs. A job that cannot run (a deployment that does not fit, a
broken trace) has a summary that says so, and never ends the sweep.
"""

import contextlib
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from conf.compose import prepare, quoted, results_path, searchpath
from conf.expand import SweepJob, expand
from conf.files import as_typed
from scripts.answer import Answer
from scripts.configure import Request, key_of
from scripts.failure import failure_status, reason_of
from scripts.folder import free_folder
from scripts.wide_sweep import chosen_launcher, sweep_here


LAUNCHER_FOLDERS = ("hydra.sweep.dir", "hydra.sweep.subdir", "hydra.run.dir")

ANNOUNCE = False
"""Whether jobs that run in this very process say on standard error that they are done."""


def sweep(asked: Request, show_progress: bool) -> Answer:
    """Run all jobs and collect them. Exit code 2 only if none of them ended well."""
    from sim.report.collect import collect, collect_csv, collect_text, table_notes
    from sim.report.page.sweep import runs_with_page, sweep_page
    from sim.report.results import check_writable

    overrides, folder = sweep_folder(asked.overrides)
    jobs = expand(overrides, asked.config_dirs)
    check_writable(folder)
    if show_progress:
        print(f"headway: {len(jobs)} jobs, results in {folder}", file=sys.stderr)
    if chosen_launcher(overrides) or not sweep_here(jobs, folder, show_progress):
        launch([*searchpath(asked.config_dirs), *prepare(overrides)], folder, jobs, show_progress)
    rows = collect(folder)
    table = folder / "table.csv"
    table.write_text(collect_csv(rows), encoding="utf-8")
    page = folder / "sweep.html"
    page.write_text(sweep_page(rows, folder.name, runs_with_page(rows, folder)), encoding="utf-8")
    ended = any(row["status"] == "ok" for row in rows)
    fields: dict[str, Any] = {
        "status": "ok" if ended else "error",
        "jobs": len(jobs),
        "runs": rows,
        "results": str(folder),
    }
    fields["notes"] = [*asked.notes, *table_notes(rows)]
    if not ended:
        fields["message"] = f"none of the {len(jobs)} jobs could run: {rows[0]['reason']}"
    engines = Counter(row["simulated_by"] for row in rows if row["status"] == "ok")
    ran = ", ".join(f"{count} by the {name} engine" for name, count in engines.items())
    text = "\n".join(
        [
            collect_text(rows),
            *([ran] if ran else []),
            "",
            *asked.remarks(),
            f"results: {folder}",
            f"table: {table}",
            f"page: {page}",
        ]
    )
    return Answer(fields, text, 0 if ended else 2)


def sweep_folder(overrides: list[str]) -> tuple[list[str], Path]:
    """The overrides without `results=`, and the folder of the sweep, which must be empty or new."""
    for override in overrides:
        if key_of(override) in LAUNCHER_FOLDERS:
            raise ValueError(f"{key_of(override)} is set by headway: say where a multirun goes with results=FOLDER.")
    given = [override.partition("=")[2] for override in overrides if key_of(override) == "results"]
    rest = [override for override in overrides if key_of(override) != "results"]
    path = results_path(given[-1]) if given else None
    if path is None:
        return rest, free_folder(Path("multirun") / time.strftime("%Y-%m-%d_%H-%M-%S"))
    folder = Path(path)
    with contextlib.suppress(OSError):  # what can't even be looked at, `check_writable` says
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"results={folder} wants a new or an empty folder for a multirun; choose another.")
    return rest, folder


def launch(prepared: list[str], folder: Path, jobs: list[SweepJob], announce: bool) -> None:
    """Hand the sweep to Hydra, whose launcher runs `run_job` here, in other processes or on a cluster."""
    import dataclasses

    import hydra

    from sim.report.results import SUMMARY, write_failure

    global ANNOUNCE
    ANNOUNCE = announce
    before = sys.argv
    sys.argv = ["headway", "--multirun", f"hydra.sweep.dir={quoted(str(folder))}", *prepared]
    try:
        hydra.main(version_base=None, config_path="pkg://conf", config_name="config")(run_job)()
    except SystemExit as stop:
        if stop.code:
            raise ValueError("the launcher of the multirun ended early, with its own message above.") from stop
    finally:
        sys.argv = before
    for number, job in enumerate(jobs):
        if not (folder / str(number) / SUMMARY).is_file():
            reason = "the job left no result: its process was ended"
            write_failure(folder / str(number), "missing", reason, dataclasses.asdict(job.conf), job.overrides)


def run_job(config: Any) -> str:
    """One job of a sweep, in whatever process the launcher chose: simulate, write, and never raise."""
    import dataclasses

    from hydra.core.hydra_config import HydraConfig

    from conf.compose import checked
    from sim import api
    from sim.report.results import write_failure, write_results

    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    overrides = [as_typed(override) for override in job.overrides.task]
    conf = None
    try:
        sources = (source for source in job.runtime.config_sources if "searchpath" in source.provider)
        conf = checked(config, [source.path for source in sources])
        result = api.run(api.prepare(conf))
        write_results(result, folder, overrides, conf.percentiles)
        status, reason = "ok", ""
    except Exception as error:
        status, reason = failure_status(error), reason_of(error)
        # A folder that can not be written is a job without a result, which `launch` says.
        with contextlib.suppress(Exception):
            write_failure(folder, status, reason, dataclasses.asdict(conf) if conf else {}, overrides)
    if ANNOUNCE:
        # Why a job failed stands below the table, once for all jobs that failed alike.
        print(f"headway: job {job.job.num}: {status} ({' '.join(overrides)})", file=sys.stderr)
    return status

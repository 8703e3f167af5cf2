"""The results folder of a run: all of it, or nothing."""

import contextlib
import gzip
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sim.report.console import console
from sim.report.engine_log import ENGINE_LOG, engine_log
from sim.report.fleet import fleet_verdict
from sim.report.metrics import PERCENTILES, measure
from sim.report.page.build import page
from sim.report.plain import plain, to_json
from sim.report.result import SimulationResult
from sim.report.summary import SCHEMA, failure_summary, summary
from sim.report.tables import arrow_table, request_columns, step_columns
from sim.report.timeline.trace import timeline


SUMMARY = "summary.json"

GUESTS = (".hydra", "*.log")
"""What the launcher of a sweep puts into a run's folder; kept where it is."""


def write_results(
    result: SimulationResult,
    folder: str | Path,
    overrides: Sequence[str] = (),
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """Write the results folder and return the summary.

    Files: config.yaml, summary.json, requests.parquet, steps.parquet, trace.json.gz, report.html, console.txt and,
    where the engine's format is known, engine.log. `overrides` (as typed on the command line) go to overrides.yaml, for
    `collect`. P99 is always measured.

    Everything is written beside the folder and moved into place at the end, so a run that fails leaves no half
    results. An earlier result there is replaced; `ValueError` if the folder holds anything else.
    """
    percentiles = tuple(sorted({*percentiles, 99.0}))
    metrics = measure(result, percentiles)
    found = fleet_verdict(result, metrics)
    fields = summary(result, metrics, found)

    def fill(out: Path) -> None:
        import pyarrow.parquet

        _write_fields(out, result.config, overrides, fields)
        for name, columns in (("requests", request_columns(result)), ("steps", step_columns(result))):
            pyarrow.parquet.write_table(arrow_table(columns, result), out / f"{name}.parquet", compression="zstd")
        # No modification time in the gzip header: equal runs give equal bytes.
        with open(out / "trace.json.gz", "wb") as raw, gzip.GzipFile("", "wb", 5, raw, mtime=0) as packed:
            packed.write(to_json(timeline(result)).encode())
        (out / "report.html").write_text(page(result, metrics, found), encoding="utf-8")
        text = console(result, metrics, found, assumptions=True)
        (out / "console.txt").write_text(text + "\n", encoding="utf-8")
        if log := engine_log(result):
            (out / ENGINE_LOG).write_text(log, encoding="utf-8")

    _write_folder(Path(folder), fill)
    return fields


def write_summary(
    result: SimulationResult,
    folder: str | Path,
    overrides: Sequence[str] = (),
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """Write only config.yaml, overrides.yaml and summary.json: for sweeps of very many runs; return the summary."""
    metrics = measure(result, tuple(sorted({*percentiles, 99.0})))
    fields = summary(result, metrics, fleet_verdict(result, metrics))
    _write_folder(Path(folder), lambda out: _write_fields(out, result.config, overrides, fields))
    return fields


def write_failure(
    folder: str | Path, status: str, reason: str, config: dict[str, Any], overrides: Sequence[str] = (), **known: Any
) -> dict[str, Any]:
    """Write the folder of a configuration that could not run, so that a sweep has a row for it; return its summary.

    Only config.yaml, overrides.yaml and summary.json; same rules as `write_results`.
    """
    known = {"predictor": config["predictor"]} | known if "predictor" in config else known
    fields = failure_summary(status, reason, **known)
    _write_folder(Path(folder), lambda out: _write_fields(out, config, overrides, fields))
    return fields


def check_folder(folder: str | Path) -> None:
    """Raise `ValueError` if results can not go there: call it before a long run."""
    try:
        _check_content(Path(folder))
    except OSError as error:
        raise _unwritable(Path(folder), error) from None
    check_writable(folder)


def check_writable(folder: str | Path) -> None:
    """Raise `ValueError` if no folder can be made at `folder` or nothing written beside it; leaves nothing behind."""
    path = Path(folder)
    made: list[Path] = []
    try:
        above = path.absolute()
        while not above.exists():
            made.append(above)
            above = above.parent
        path.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".headway-", dir=path.resolve().parent)).rmdir()
        Path(tempfile.mkdtemp(prefix=".headway-", dir=path)).rmdir()
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        for new in made:
            with contextlib.suppress(OSError):
                new.rmdir()


def _unwritable(folder: Path, error: OSError) -> ValueError:
    reason = (error.strerror or str(error)).lower()
    return ValueError(f"the results folder {folder} cannot be written ({reason}); choose another with results=FOLDER")


def _check_content(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"the results folder {path} is a file; choose another with results=FOLDER")
    if path.is_dir() and not (path / SUMMARY).is_file() and (others := _others(path)):
        raise ValueError(
            f"the results folder {path} wants to be empty or an earlier result, got {others[0].name!r} in it; "
            "choose another with results=FOLDER"
        )
    if (path / SUMMARY).is_file() and SCHEMA.split("/")[0] not in (path / SUMMARY).read_text(
        encoding="utf-8", errors="replace"
    ):
        raise ValueError(
            f"the results folder {path} holds a {SUMMARY} that is not ours; choose another with results=FOLDER"
        )


def _others(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if not _is_guest(entry))


def _guests(path: Path) -> Iterable[Path]:
    return [entry for entry in path.iterdir() if _is_guest(entry)]


def _is_guest(entry: Path) -> bool:
    return entry.name != ENGINE_LOG and any(entry.match(guest) for guest in GUESTS)


def _write_fields(out: Path, config: dict[str, Any], overrides: Sequence[str], fields: dict[str, Any]) -> None:
    _write_yaml(out / "config.yaml", config)
    if overrides:
        _write_yaml(out / "overrides.yaml", list(overrides))
    (out / SUMMARY).write_text(to_json(fields, indent=2) + "\n", encoding="utf-8")


def _write_yaml(path: Path, value: Any) -> None:
    import yaml

    path.write_text(yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True), encoding="utf-8")


def _write_folder(folder: Path, fill: Any) -> None:
    """Fill a new folder beside `folder`, then swap it in; on any error nothing at `folder` has changed."""
    try:
        _check_content(folder)
        _swap_in(folder.resolve(), fill)
    except OSError as error:
        # Disk full, permissions: the path in the error is of a working folder that is gone by now.
        raise _unwritable(folder, error) from error


def _swap_in(folder: Path, fill: Any) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".headway-", dir=folder.parent))
    try:
        new = work / "new"
        new.mkdir()
        fill(new)
        if folder.exists():
            folder.rename(work / "old")
        try:
            new.rename(folder)
        except OSError:
            if (work / "old").exists():
                (work / "old").rename(folder)
            raise
        if (work / "old").exists():
            # Renamed rather than copied: a log file that is still open stays the same file.
            for guest in _guests(work / "old"):
                guest.rename(folder / guest.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)

"""`headway calibrate --from TABLE.csv`: what a table of measured servers teaches of each engine on each device.

Of every deployment in the table a few loads are simulated, their decisions frozen, and the constants of
`calibration.serving.taught` found with which the simulated latencies meet the measured ones. Rows from the day `until`
on are left out. `out=` (`served.json`) is used by `predictor=OUT`; `responses=FILE` keeps what was simulated, and takes
it from there the next time.
"""

import datetime
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibration.serving.scope import excluded, sampled
from calibration.serving.table import HELD_OUT_SINCE, Row, read_table
from scripts.answer import Answer
from scripts.plain_keys import PlainKeys
from scripts.progress import progress
from scripts.serving_pool import ENVIRONMENT, end_with_parent
from scripts.table import table


if TYPE_CHECKING:
    from calibration.serving.responses import Response
    from calibration.serving.taught import Taught

KEYS = ("until", "loads", "jobs", "predictor", "responses")
LEAST_ROWS = 8
"""Fewer rows of an engine on a device teach nothing that would hold for others."""
MOST_LEFT = 0.25
"""Nor do rows whose TPOT stays further off than this at the median: something else is wrong with them. Constants that
do not lower the median errors, summed over TTFT and TPOT, are dropped."""


def run(words: Sequence[str], path: Path, out: Path, shown: bool) -> Answer:
    """Learn, print errors before and after, write `out`."""
    keys = PlainKeys.of("headway calibrate --from TABLE.csv", words, KEYS)
    until = _day(keys.text("until", HELD_OUT_SINCE))
    loads, jobs = keys.whole("loads", 4, 1), keys.whole("jobs", os.cpu_count() or 1, 1)
    predictor = keys.text("predictor", "kernels")
    rows = [row for row in read_table(path) if not excluded(row) and (row.date or "") < until]
    taken = sampled(rows, loads)
    if not taken:
        raise ValueError(f"{path} has no co-located row with latencies before {until}; give a later until=YYYY-MM-DD.")
    kept = keys.text("responses")
    responses, failed = _kept(Path(kept) if kept else None, [row for row, _ in taken], predictor, jobs, shown)
    found = _taught(responses, taken)
    if not found:
        raise ValueError(
            f"{path}: no engine has {LEAST_ROWS} rows on a device that can be priced within {MOST_LEFT:.0%} of TPOT; "
            f"{failed} could not be priced at all."
        )
    from predictors.served import save

    head = {
        "data": path.name,
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "until": until,
        "date": datetime.date.today().isoformat(),
    }
    fits = [_fit(one, len(one.before["ttft"])) for one in found]
    save(out, head, fits)
    text = "\n".join(
        [_lines(fits), "", f"{failed} of {len(taken)} rows had no price.", f"written: {out} (predictor={out})"]
    )
    return Answer({"status": "ok", "out": str(out), "rows": len(taken), "failed": failed, "fits": fits}, text)


def _kept(
    path: Path | None, rows: list[Row], predictor: str, jobs: int, shown: bool
) -> tuple[dict[int, "Response"], int]:
    """The responses in the file `path`, where it is one; else those of the rows, written to it."""
    from calibration.serving.responses import Response

    if path is not None and path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = {int(line): Response(**fields) for line, fields in stored.items()}
        return found, sum(row.line not in found for row in rows)
    found, failed = _responses(rows, predictor, jobs, shown)
    if path is not None:
        path.write_text(json.dumps({line: asdict(one) for line, one in found.items()}) + "\n", encoding="utf-8")
    return found, failed


def respond_row(row: Row, predictor: str) -> "Response | str":
    """The response of one row, or why it has none; in a process of a pool."""
    from calibration.serving.responses import respond
    from calibration.serving.setup import setup_of
    from conf.files import by_hf_id
    from scripts.compiled import keep_compiled
    from scripts.serving_pool import configuration
    from sim import api

    keep_compiled()
    try:
        setup = setup_of(row, by_hf_id)
        overrides = (*setup.overrides, f"predictor={predictor}")
        return respond(api.build(configuration(overrides, ())), row.statistic or "mean")
    except (ValueError, api.Infeasible) as error:
        return str(error)


def _responses(rows: list[Row], predictor: str, jobs: int, shown: bool) -> tuple[dict[int, "Response"], int]:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    found: dict[int, Response] = {}
    failed = 0
    with (
        progress(len(rows), "simulating", shown) as tell,
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=end_with_parent) as pool,
    ):
        futures = {pool.submit(respond_row, row, predictor): row.line for row in rows}
        for count, future in enumerate(as_completed(futures), 1):
            response = future.result()
            if isinstance(response, str):
                failed += 1
            else:
                found[futures[future]] = response
            if tell is not None:
                tell(count)
    return found, failed


def _taught(responses: dict[int, "Response"], taken: list[tuple[Row, float]]) -> list["Taught"]:
    """The constants of every engine and device of enough rows."""
    import numpy as np

    from calibration.serving.taught import taught

    by: dict[tuple[str, str], list[tuple[Any, Row, float]]] = defaultdict(list)
    for row, weight in taken:
        if row.line in responses:
            one = responses[row.line]
            by[one.engine, one.device].append((one, row, weight))
    found = []
    for _, mine in sorted(by.items()):
        if len(mine) >= LEAST_ROWS:
            measured = [[1e-3 * row.measured_ms(metric) for metric in ("ttft", "tpot")] for _, row, _ in mine]
            weights = np.array([weight for *_, weight in mine])
            fit = taught([response for response, *_ in mine], np.array(measured), weights)
            before, after = (
                {name: float(np.median(np.abs(values))) for name, values in errors.items()}
                for errors in (fit.before, fit.after)
            )
            if after["tpot"] <= MOST_LEFT and sum(after.values()) < sum(before.values()):
                found.append(fit)
    return found


def _fit(found: "Taught", rows: int) -> dict[str, Any]:
    """As it is stored: errors as medians of sizes."""
    import numpy as np

    plain = asdict(found)
    for when in ("before", "after"):
        plain[when] = {name: float(np.median(np.abs(values))) for name, values in plain[when].items()}
    return plain | {"rows": rows}


def _lines(fits: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for fit in fits for name in fit["values"]))
    heads = ("engine", "device", "rows", "TTFT before %", "after %", "TPOT before %", "after %", *names)
    return table(
        heads,
        [
            (
                fit["engine"],
                fit["device"],
                f"{fit['rows']}",
                *(f"{100 * fit[when][metric]:.1f}" for metric in ("ttft", "tpot") for when in ("before", "after")),
                *(_value(name, fit["values"]) for name in names),
            )
            for fit in fits
        ],
    )


def _value(name: str, values: dict[str, float]) -> str:
    if name not in values:
        return ""
    return f"{1e3 * values[name]:+.1f} ms" if name.endswith("_s") else f"x {values[name]:.2f}"


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"until must be a day as 2026-04-01, got {text!r:.40}.") from None

"""`headway validate serving=FILE.csv`: one simulated closed loop per measured serving point, and how far off they are.

`limit=N`: N rows only, chosen by a hash; `mode=disaggregated`: rows of prefill and decode instances, of a limit as many
of each engine; `jobs=N`: processes (one per core); `results=DIR`: where the csv and the page go; every other
`KEY=VALUE` is added to each row's configuration.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from calibration.serving.decision import decisions, groups
from calibration.serving.page import serving_page
from calibration.serving.report import csv_text, report_text
from calibration.serving.scope import POOLS_KNOWN, STILL_SIMULATED, balanced, chosen, excluded
from calibration.serving.score import METRICS, Point, Prediction, by, statistics
from calibration.serving.setup import Setup, setup_of
from calibration.serving.table import Row, read_table
from conf.compose import compose
from conf.files import by_hf_id
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import key_of
from scripts.folder import results_folder
from scripts.progress import progress
from scripts.serving_pool import Overrides, configuration, predictions
from scripts.table import table
from sim.documents import user_path


OWN = ("serving", "limit", "mode", "jobs", "results")
MODES = ("co-located", "disaggregated")
CSV, PAGE = "rows.csv", "report.html"

MOST_JOBS = 256
MOST_REASONS = 8


def run(arguments: Arguments) -> Answer:
    """Read the table, simulate its rows, score them, write csv and page."""
    given = {key_of(word): word.partition("=")[2] for word in arguments.words}
    path = user_path(given["serving"], "serving")
    jobs = whole("jobs", given.get("jobs"), MOST_JOBS) or os.cpu_count() or 1
    limit = whole("limit", given.get("limit"), 10**9)
    own = [word for word in arguments.words if key_of(word) not in OWN]
    check_own(own, arguments.values("--config-dir"))
    folder = results_folder(given.get("results"), f"serving_{time.strftime('%Y-%m-%d_%H-%M-%S')}", CSV)
    mode = given.get("mode", MODES[0])
    if mode not in MODES:
        raise ValueError(f"mode wants one of {', '.join(MODES)}, got {mode!r:.40}.")
    everything = read_table(path)
    reasons = {row.line: excluded(row) for row in everything}
    choose = chosen
    if mode != MODES[0]:
        reasons = {line: {POOLS_KNOWN: "", "": MODES[0]}.get(reason, reason) for line, reason in reasons.items()}
        choose = balanced
    rows = choose([row for row in everything if not reasons[row.line]], limit)
    kept = {row.line for row in rows}
    still = STILL_SIMULATED if limit is None and mode == MODES[0] else ()
    apart = [row for row in everything if reasons[row.line] in still]
    setups, predictions = set_up([*rows, *apart], own)
    check_settings(setups, own, arguments.values("--config-dir"))
    wanted = sorted({setup.overrides for setup in setups.values()})
    with progress(len(wanted), "simulating", not arguments.switch("--json"), tenths=True) as tell:
        found = dict(simulated(wanted, arguments.values("--config-dir"), jobs, tell))
    predictions |= {line: found[setup.overrides] for line, setup in setups.items()}
    points = [
        Point(row, reasons[row.line], setups.get(row.line), predictions.get(row.line))
        for row in everything
        if row.line in kept or reasons[row.line]
    ]
    counted = [point for point in points if not point.excluded]
    fields: dict[str, Any] = {
        "status": "ok",
        "rows": len(counted),
        "failed": sum(point.failed for point in counted),
        "excluded": dict(sorted(Counter(reason for reason in reasons.values() if reason).items())),
        **{metric: statistics(counted, metric) for metric in METRICS},
        "regret": decisions(counted),
        "by": by(points),
        "reasons": reasons_of([point.prediction.reason for point in counted if point.prediction and point.failed]),
        "simulations": len(wanted),
        "results": str(folder.path),
        "notes": folder.notes,
    }
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / CSV).write_text(csv_text(points), encoding="utf-8")
    (folder.path / PAGE).write_text(serving_page(points, groups(counted), fields, path.name), encoding="utf-8")
    ends = [f"Results: {folder.path}/ ({CSV}, {PAGE})", *(f"note: {note}" for note in folder.notes)]
    return Answer(fields, "\n".join([report_text(fields, table), *ends]), 0 if fields["failed"] < fields["rows"] else 2)


def check_own(own: Sequence[str], config_dirs: Sequence[str]) -> None:
    """Raise `ValueError` for an own setting that no row could have: said once, not by every row."""
    for word in own:
        key = key_of(word)
        if "." not in key and key != "predictor":
            near = get_close_matches(key, OWN, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "an own setting is GROUP.KEY=VALUE."
            raise ValueError(f"validate serving=FILE has no key {key} (known: {', '.join(OWN)}, predictor): {hint}")
    if own:
        compose(own, config_dirs, whole=False)


def check_settings(setups: Mapping[int, Setup], own: Sequence[str], config_dirs: Sequence[str]) -> None:
    """Raise what the own settings make of the first row of each engine, where that is sound without them and none is
    with them: no row could have them. A row that does not fit its memory counts as sound: others may.
    """
    from sim import api

    if not own:
        return
    first: dict[str, Overrides] = {}
    for setup in setups.values():
        first.setdefault(engine_of(setup), setup.overrides)
    refusals: list[ValueError] = []
    for overrides in first.values():
        try:
            api.prepare(configuration(overrides, tuple(config_dirs)))
        except api.Infeasible:
            return
        except ValueError as error:
            try:
                api.prepare(configuration(overrides[: -len(own)], tuple(config_dirs)))
            except ValueError:
                continue  # the row's own fault
            refusals.append(error)
        else:
            return
    if refusals:
        raise refusals[0]


def engine_of(setup: Setup) -> str:
    """The engine of a row without its version."""
    return next((word for word in setup.overrides if key_of(word) == "engine"), "").partition("-")[0]


def reasons_of(reasons: Sequence[str]) -> dict[str, int]:
    """The commonest reasons and how often each was given; those that differ in numbers alone are one, as first said."""
    first: dict[str, str] = {}
    counts = Counter(first.setdefault(re.sub(r"-?\d[\d,.]*", "#", reason), reason) for reason in reasons)
    return dict(counts.most_common(MOST_REASONS))


def whole(key: str, text: str | None, most: int) -> int | None:
    """A whole number from 1 to `most`; None where nothing was given."""
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"{key} wants a whole number from 1 to {most:,}, got {text!r:.40}.")
    return int(text)


def set_up(rows: Sequence[Row], own: Sequence[str]) -> tuple[dict[int, Setup], dict[int, Prediction]]:
    """By line: the setup of each row with the user's own overrides, and why some rows have none."""
    setups: dict[int, Setup] = {}
    refused: dict[int, Prediction] = {}
    for row in rows:
        try:
            setups[row.line] = setup_of(row, by_hf_id).with_overrides(own)
        except ValueError as error:
            refused[row.line] = Prediction("not described", str(error))
    return setups, refused


def simulated(
    wanted: Sequence[Overrides], config_dirs: Sequence[str], jobs: int, tell: Callable[[int], None]
) -> Iterator[tuple[Overrides, Prediction]]:
    """Each configuration with its prediction, from `jobs` processes; `tell` is called with the number done."""
    for done, pair in enumerate(predictions(wanted, config_dirs, jobs), 1):
        tell(done)
        yield pair

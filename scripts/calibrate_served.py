"""`headway calibrate --from TABLE.csv`: what a table of measured servers teaches of each engine on each device.

Of every deployment in the table a few loads are simulated, their decisions frozen, and the constants of
`calibration.serving.taught` found with which the simulated latencies meet the measured ones. Rows dated (`date=` in
their notes) from the day `until` on are left out. `out=` (`served.json`) is used by `predictor=OUT`; `responses=FILE`
keeps what was simulated, and takes it from there the next time.
"""

import datetime
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibration.serving.scope import excluded, sampled
from calibration.serving.table import Row, read_table
from predictors.served import save
from scripts.answer import Answer
from scripts.plain_keys import PlainKeys
from scripts.served_responses import responses_of
from scripts.table import table
from sim.documents import user_path


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
    until = _day(keys.text("until")) if keys.text("until") else ""
    loads, jobs = keys.whole("loads", 4, 1), keys.whole("jobs", os.cpu_count() or 1, 1)
    predictor = _predictor(keys.text("predictor", "kernels"))
    kept = _new_file(user_path(keys.text("responses"), "responses"), "responses") if keys.text("responses") else None
    if path in (out, kept) or out == kept:
        raise ValueError(f"{path}, out={out} and responses={kept} must be different files.")
    everything = read_table(path)
    rows = [row for row in everything if not excluded(row) and (not until or (row.date or "") < until)]
    taken = sampled(rows, loads)
    if not taken:
        early = {row.line for row in rows}
        late, ranks = f"dated from {until} on", "of data-parallel ranks"
        reasons = Counter(excluded(row) or (ranks if row.line in early else late) for row in everything)
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        raise ValueError(f"{path} has no row to learn from: {told}.")
    digest = sha256(path.read_bytes()).hexdigest()
    answers = responses_of([row for row, _ in taken], predictor, jobs, shown, kept, digest)
    responses = {line: one for line, one in answers.items() if not isinstance(one, str)}
    failed = len(taken) - len(responses)
    fits, left_out = _taught(responses, taken)
    left_out += _unpriced(answers, taken)
    if not fits:
        why = Counter(one for one in answers.values() if isinstance(one, str)).most_common(1)
        failures = f"; {failed} of {len(taken)} rows have no price, most because {why[0][0].rstrip('.')}" if why else ""
        told = "; ".join(_sentences(left_out))
        raise ValueError(f"{path} teaches nothing: {told}{failures} (--from a benchmark or a log tells more).")
    head = {"data": path.name, "sha256": digest, "predictor": predictor, "until": until}
    save(out, head | {"date": datetime.date.today().isoformat()}, fits)
    ends = (
        f"{failed} of {len(taken)} rows had no price. Errors after: with the schedules of before.",
        f"written: {out} (predictor={out})",
    )
    dropped = [f"left out: {sentence}" for sentence in _sentences(left_out)]
    return Answer(
        {"status": "ok", "out": str(out), "rows": len(taken), "failed": failed, "fits": fits, "left_out": left_out},
        "\n".join([_lines(fits), "", *dropped, *ends]),
    )


def _predictor(text: str) -> str:
    """What the steps are priced by while the constants are learned."""
    if text.endswith(".json") or text == "auto":
        raise ValueError(f"predictor={text} holds what servers taught already; give kernels, analytic or a folder.")
    if text not in ("kernels", "analytic") and not (Path(text).expanduser() / "card.json").is_file():
        raise ValueError(f"predictor must be kernels, analytic or a folder that `headway calibrate` wrote, got {text}.")
    return text


def _new_file(path: Path, key: str) -> Path:
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{key}={path} wants the name of a file in a folder that exists.")
    return path


def _taught(
    responses: dict[int, "Response"], taken: list[tuple[Row, float]]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The constants of every engine and device of enough rows, and why others have none."""
    import numpy as np

    from calibration.serving.taught import taught

    by: dict[tuple[str, str], list[tuple[Any, Row, float]]] = defaultdict(list)
    for row, weight in taken:
        if row.line in responses:
            one = responses[row.line]
            by[one.engine, one.device].append((one, row, weight))
    found, left_out = [], []
    for (engine, device), mine in sorted(by.items()):
        if len(mine) < LEAST_ROWS:
            why = f"too few rows with a price ({len(mine)}, {LEAST_ROWS} are wanted)"
        else:
            measured = [[1e-3 * row.measured_ms(metric) for metric in ("ttft", "tpot")] for _, row, _ in mine]
            weights = np.array([weight for *_, weight in mine])
            fit = _fit(taught([response for response, *_ in mine], np.array(measured), weights), len(mine))
            why = _wrong(fit)
            if not why:
                found.append(fit)
                continue
        left_out.append({"engine": engine, "device": device, "why": why})
    return found, left_out


def _unpriced(answers: dict[int, Any], taken: list[tuple[Row, float]]) -> list[dict[str, str]]:
    """The engines and devices, as the table names them, none of whose rows has a price."""
    priced = {(row.engine, row.hardware) for row, _ in taken if not isinstance(answers[row.line], str)}
    number = Counter((row.engine, row.hardware) for row, _ in taken)
    return [
        {"engine": engine, "device": device, "why": f"no price of any of its rows ({count})"}
        for (engine, device), count in sorted(number.items())
        if (engine, device) not in priced
    ]


def _wrong(fit: dict[str, Any]) -> str:
    """Why a fit is not taken; empty for one that is."""
    before, after = fit["before"], fit["after"]
    if after["tpot"] > MOST_LEFT:
        return f"TPOT stays {after['tpot']:.0%} off, at most {MOST_LEFT:.0%} is allowed"
    if sum(after.values()) >= sum(before.values()):
        errors = (f"{name.upper()} {before[name]:.1%} off before, {after[name]:.1%} after" for name in ("ttft", "tpot"))
        return f"nothing gets better: {', '.join(errors)}"
    return ""


def _sentences(left_out: list[dict[str, str]]) -> list[str]:
    return [f"{one['engine']} on {one['device']}: {one['why']}" for one in left_out]


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

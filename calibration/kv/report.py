"""What a person and a program read of the predictions: tables of text, one csv row per case, a page."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from calibration.kv.predict import Prediction
from sim.report.page.parts import table as html_table
from sim.report.page.scatter import Panel, ScatterPage, scatter_page
from sim.report.page.sections import Section
from sim.units import GIB


COLUMNS = (
    "case", "source", "engine", "engine_version", "version_used", "model", "hardware", "tp", "pp", "dtype",
    "measured_blocks", "predicted_blocks", "error", "given_low", "given_best", "given_high", "started",
    "predicted_start", "weights_gib", "logged_weights_gib", "peak_activation_gib", "logged_peak_activation_gib",
    "non_torch_gib", "logged_non_torch_gib", "available_gib", "logged_available_gib", "why", "notes",
)  # fmt: skip

HEAD = ["cases", "failed", "median %", "P90 %"]

FAR = 0.05
"""Errors beyond this are shown one by one."""

TITLES = {"version": "Engine and version", "device": "Device", "tensor_parallel": "Tensor parallel"}


def csv_text(predictions: Sequence[Prediction]) -> str:
    """One row per case, those that tell no blocks included."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for found in predictions:
        writer.writerow({key: "" if value is None else value for key, value in csv_row(found).items()})
    return text.getvalue()


def csv_row(found: Prediction) -> dict[str, Any]:
    """The cells of one case."""
    case, budget, given = found.case, found.budget, found.given_blocks
    cells: dict[str, Any] = {
        "case": case.name,
        "source": case.source,
        "engine": case.engine,
        "engine_version": case.engine_version,
        "version_used": found.version,
        "model": case.model,
        "hardware": case.hardware,
        "tp": case.tensor_parallel,
        "pp": case.pipeline_parallel,
        "dtype": case.dtype,
        "started": case.outcome,
        "predicted_start": found.outcome,
        "why": found.problem or found.words,
        "notes": "; ".join(found.notes),
    }
    if case.counts and found.measured_blocks is not None:
        cells |= {
            "measured_blocks": f"{found.measured_blocks:.6g}",
            "predicted_blocks": f"{found.predicted_blocks:.6g}",
        }
        cells |= {"error": f"{found.error:.6f}" if math.isfinite(found.error) else ""}
    if given is not None:
        cells |= {"given_low": given.low, "given_best": given.best, "given_high": given.high}
    if budget is not None:
        for name in ("weights", "peak_activation", "non_torch"):
            cells[f"{name}_gib"] = f"{budget.stage.value(name) / GIB:.3f}"
            printed = case.reported.get(name)
            cells[f"logged_{name}_gib"] = None if printed is None else f"{printed.value:g}"
        cells["available_gib"] = f"{budget.available_bytes / GIB:.3f}"
        left = case.reported.get("available_kv")
        cells["logged_available_gib"] = None if left is None else f"{left.value:g}"
    return cells


def percent(value: float | None, signed: bool = False) -> str:
    """A share in percent with two decimals; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:{'+' if signed else ''}.2f}"


def report_text(
    fields: Mapping[str, Any], predictions: Sequence[Prediction], table: Callable[[list[str], list[list[str]]], str]
) -> str:
    """The summary, errors by version, device and group, and the cases that are far off."""
    given, starts = fields["given_breakdown"], fields["starts"]
    lines = [
        f"{fields['cases']} servers that tell their KV blocks or tokens, {fields['failed']} of them not described",
        f"from first principles: median error {percent(fields['median_error'])} %, "
        f"P90 {percent(fields['p90_error'])} %, bias {percent(fields['bias'], True)} %, "
        f"within one block {percent(fields['within_one_block'])} %",
    ]
    if given["cases"]:
        lines.append(
            f"with the terms the log prints ({given['cases']} of them): within one block of what the printed digits "
            f"allow {percent(given['within_one_block'])} %, median error {percent(given['median_error'])} % "
            f"(the digits leave +-{given['open_blocks']:g} blocks open)"
        )
    lines.append(
        f"starts: {starts['told']} told, {percent(fields['refusals_right'])} % as predicted; "
        f"{starts['failed_starts_right']} of {starts['failed_starts']} that failed"
    )
    for name, groups in fields["by"].items():
        lines += ["", table([TITLES[name], *HEAD], [_cells(label, one) for label, one in groups.items()])]
    far = [one for one in predictions if one.case.counts and not abs(one.error) <= FAR]
    if far:
        rows = [[one.case.name, percent(one.error, True), one.problem or one.case.model] for one in far]
        lines += ["", f"more than {100 * FAR:g} % off:", table(["case", "error %", ""], rows)]
    return "\n".join(lines)


def _cells(label: str, one: Mapping[str, Any]) -> list[str]:
    return [label, str(one["cases"]), str(one["failed"]), percent(one["median_error"]), percent(one["p90_error"])]


def kv_page(fields: Mapping[str, Any], predictions: Sequence[Prediction], name: str) -> str:
    """The page as HTML text; `fields` as in the command's answer."""
    shown = [one for one in predictions if one.case.counts and not one.problem and (one.measured_blocks or 0) > 0]
    panels = [_panel("From first principles", "nothing of the log but its settings", shown, given=False)]
    known = [one for one in shown if one.given_blocks is not None and one.given_blocks.best > 0]
    panels.append(_panel("Breakdown known", "with the terms that the log prints", known, given=True))
    facts = [
        f"{fields['cases']} servers",
        f"{fields['failed']} not described",
        f"{fields['starts']['told']} starts told, {percent(fields['refusals_right'])} % as predicted",
    ]
    verdict = (
        f"Median error {percent(fields['median_error'])} %, P90 {percent(fields['p90_error'])} % of the KV blocks, "
        "from first principles."
    )
    sections = [Section("Errors by what they may depend on", _tables(fields["by"])), _cases(predictions)]
    return scatter_page(ScatterPage("start-up logs against the memory sum", name, facts, verdict, panels, sections))


def _panel(title: str, note: str, shown: Sequence[Prediction], given: bool) -> Panel:
    return Panel(
        title,
        note,
        "blocks",
        [float(one.measured_blocks or 0) for one in shown],
        [one.given_blocks.best if given and one.given_blocks else one.predicted_blocks for one in shown],
        [f"{one.case.name}: {one.case.model}, {one.case.engine} {one.version}, {one.case.hardware}" for one in shown],
        [one.case.engine for one in shown],
    )


def _tables(groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    html = []
    for name, rows in groups.items():
        cells = [_cells(escape(label), one) for label, one in rows.items()]
        html.append(f"<h3>{escape(TITLES[name])}</h3>")
        html.append(html_table(["", *HEAD], cells, "numbers"))
    return "".join(html)


def _cases(predictions: Sequence[Prediction]) -> Section:
    rows = []
    for one in predictions:
        if not one.case.counts:
            continue
        measured = one.measured_blocks
        rows.append(
            [
                escape(one.case.name),
                escape(one.case.model),
                escape(f"{one.case.engine} {one.version or one.case.engine_version}"),
                "" if measured is None else f"{measured:,.0f}",
                "" if one.problem else f"{one.predicted_blocks:,.0f}",
                percent(one.error, True),
                escape(one.problem or "; ".join(one.notes)),
            ]
        )
    head = ["", "model", "engine", "measured", "predicted", "error %", ""]
    return Section("Cases", html_table(head, rows, "numbers", words={1, 2, 6}), "KV blocks of one server.")

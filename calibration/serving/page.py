"""The page of a scored serving table: predicted over measured, errors by what they depend on, and the choices made."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from calibration.serving.decision import Group
from calibration.serving.report import percent
from calibration.serving.score import METRICS, Point
from sim.report.page.parts import quantity, table
from sim.report.page.scatter import Panel, ScatterPage, scatter_page
from sim.report.page.sections import Section


TITLES = {
    "ttft": ("TTFT", "time to first token", "ms"),
    "tpot": ("TPOT", "time per output token after the first", "ms"),
    "throughput": ("Throughput", "per GPU, where it was measured", "tok/s"),
}

DIMENSIONS = {
    "engine": "Engine",
    "device": "Device",
    "model": "Model",
    "version": "How the engine version is known",
    "parallel": "Parallel sizes",
    "concurrency": "Clients",
    "lengths": "Prompt and answer (tokens)",
    "period": "Period",
}

WORST_GROUPS = 40
ERRORS_NOTE = (
    "In percent of the measured value. Bias: median of the signed errors; a point without a price has an infinite "
    "error."
)


def serving_page(points: Sequence[Point], found: Sequence[Group], fields: Mapping[str, Any], name: str) -> str:
    """The page as HTML text; `fields` as in the command's answer, `found` the groups of configurations."""
    counted = [point for point in points if not point.excluded]
    excluded = sum(fields["excluded"].values())
    facts = [
        f"{fields['rows']:,} points that count",
        f"{fields['failed']:,} without a price",
        f"{excluded:,} rows not counted",
        f"{fields['simulations']:,} simulations",
    ]
    sections = [
        Section("Errors by what they may depend on", _errors(fields), ERRORS_NOTE),
        _choices(found, fields["regret"]),
        _left_out(fields),
    ]
    return scatter_page(
        ScatterPage(
            "measured serving points",
            name,
            facts,
            _verdict(fields),
            [_panel(counted, metric) for metric in METRICS],
            [section for section in sections if section.html],
        )
    )


def _verdict(fields: Mapping[str, Any]) -> str:
    if fields["ttft"]["median_error"] is None or fields["tpot"]["median_error"] is None:
        return "Half of the points or more have no price."
    words = [f"{name} {percent(fields[key]['median_error'])}%" for key, name in (("tpot", "TPOT"), ("ttft", "TTFT"))]
    text = f"Median error: {', '.join(words)}"
    if fields["throughput"]["rows"] and fields["throughput"]["median_error"] is not None:
        text += f", throughput {percent(fields['throughput']['median_error'])}%"
    regret = fields["regret"]
    if regret["groups"]:
        text += (
            f". The configuration we would pick is {percent(regret['median'])}% below the measured best in the median"
        )
    return text + "."


def _panel(points: Sequence[Point], metric: str) -> Panel:
    title, note, unit = TITLES[metric]
    shown = [
        (measured, predicted, point)
        for point in points
        if (measured := point.measured(metric)) and (predicted := point.predicted(metric))
    ]
    return Panel(
        title,
        note,
        unit,
        [measured for measured, _, _ in shown],
        [predicted for _, predicted, _ in shown],
        [name_of(point) for _, _, point in shown],
        [point.row.engine for _, _, point in shown],
    )


def name_of(point: Point) -> str:
    """`line 12: deepseek-r1 fp8 on 8 x b200, sglang 0.5.9, tp8+ep, 64 clients, 1024/1024`."""
    row, setup = point.row, point.setup
    model = setup.model if setup else row.model
    parallel = f", {setup.parallel}" if setup else ""
    version = setup.version.name if setup else row.engine_version
    return (
        f"line {row.line}: {model} {row.precision} on {row.num_gpus} × {row.hardware}, {row.engine} {version}"
        f"{parallel}, {row.concurrency:g} clients, {row.isl}/{row.osl}"
    )


def _errors(fields: Mapping[str, Any]) -> str:
    head = ["", "points", "no price"] + [
        f"{TITLES[metric][0]} {word}" for metric in METRICS for word in ("median", "P90", "bias")
    ]
    html = []
    for dimension, title in DIMENSIONS.items():
        rows = [_cells(label, found) for label, found in fields["by"][dimension].items()]
        if rows:
            html.append(f"<h3>{escape(title)}</h3>" + table(head, rows, "numbers"))
    return "".join(html)


def _cells(label: str, found: Mapping[str, Any]) -> list[str]:
    cells = [escape(label), f"{found['rows']:,}", f"{found['failed']:,}"]
    for metric in METRICS:
        one = found[metric]
        empty = not one["rows"]
        cells += [
            "–" if empty else percent(one[key], key == "bias").replace("-", "–" if one[key] is None else "−")
            for key in ("median_error", "p90_error", "bias")
        ]
    return cells


def _choices(found: Sequence[Group], regret: Mapping[str, Any]) -> Section:
    if not found:
        none = "No six configurations differ in nothing else: there is no choice to judge."
        return Section("Choice of configuration", f"<p>{none}</p>")
    rows = []
    for group in sorted(found, key=lambda group: -group.mean_regret)[:WORST_GROUPS]:
        limit = group.limits_ms()[len(group.limits_ms()) // 2]
        ours, keeps = group.pick(limit), group.measured_tpot_ms <= limit
        best = max(range(len(group.names)), key=lambda i: (keeps[i], group.measured_throughput[i]))
        correlation = group.rank_correlation()
        rows.append([
            escape(", ".join(part for part in group.key[:6] if part)),
            f"{len(group.names)}",
            percent(group.mean_regret),
            "–" if correlation is None else f"{correlation:.2f}".replace("-", "−"),
            f"{quantity(limit)} ms",
            "none has a price" if ours is None else _what(group, ours),
            _what(group, best),
        ])  # fmt: skip
    note = (
        f"{regret['groups']} groups of six or more configurations that differ in nothing else; median regret "
        f"{percent(regret['median'])}%, the best picked in {regret['best_picked']}. Picked is the most output tokens "
        "per GPU whose TPOT keeps a limit, for limits at the quartiles of the measured TPOTs; the regret is the mean "
        f"over these, shown is the middle one. The {len(rows)} groups of the largest regret."
    )
    head = ["group", "configurations", "regret (%)", "rank correlation", "TPOT limit", "we pick", "measured best"]
    return Section("Choice of configuration", table(head, rows, "numbers", {5, 6}), note)


def _what(group: Group, index: int) -> str:
    tpot, throughput = group.measured_tpot_ms[index], group.measured_throughput[index]
    return f"{escape(group.names[index])}<br><small>{quantity(throughput)} tok/s, {quantity(tpot)} ms</small>"


def _left_out(fields: Mapping[str, Any]) -> Section:
    rows = [[escape(reason), f"{number:,}", "not counted"] for reason, number in fields["excluded"].items()]
    rows += [[escape(reason), f"{number:,}", "no price"] for reason, number in fields["reasons"].items()]
    html = table(["why", "rows", ""], rows, "terms") if rows else ""
    return Section("Rows without a place above", html)

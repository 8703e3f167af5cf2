"""What the study `best_deployment` says: tables for the console and as csv, and a page with charts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape

from scripts.experiments.capacity import Bound, Capacity, Found
from scripts.experiments.study import Experiment, Findings
from scripts.experiments.study_page import against, closing, lead
from scripts.table import table
from sim.report.page.parts import quantity, table as html_table
from sim.report.page.sections import Section
from sim.report.page.study import Bars, Charts, Curve, Curves


PER_DOLLAR = "tokens_per_usd_gain"
"""Key of a published gain in tokens per US dollar over the first case; throughputs have their bound on TTFT (ms)."""

CSV_HEAD = (
    "case", "ttft_bound_ms", "tpot_bound_ms", "devices", "usd_per_hour", "rate", "output_throughput", "per_device",
    "ttft_ms", "tpot_ms", "tokens_per_usd", "published_throughput", "published_tokens_per_usd_gain",
)  # fmt: skip
EVERY_RATE = (
    "Every point is one simulated rate; it is hollow where it keeps no bound: a request failed, or the first token or "
    "the later ones come too late."
)


def report(experiment: Experiment, found: Found, own: Sequence[str]) -> Findings:
    """Fields, text, csv and page."""
    published = {case.name: dict(case.published) for case in experiment.cases if case.published}
    rows = [asdict(row) | {"tokens_per_usd": row.per_dollar} for row in found.rows]
    tried = {case: [asdict(point) for point in points] for case, points in found.tried.items()}
    fields = {"status": "ok", "experiment": experiment.name, "rows": rows, "tried": tried, "published": published}
    return Findings(
        fields,
        _text(experiment, found),
        CSV_HEAD,
        [_csv(row, published.get(row.case, {})) for row in found.rows],
        _page(experiment, found, own),
    )


def gains(rows: Sequence[Capacity]) -> list[float | None]:
    """Tokens per US dollar over those of the first row, minus 1; None without a price or where nothing holds."""
    first = rows[0].per_dollar if rows else None
    return [None if not first or row.per_dollar is None else row.per_dollar / first - 1 for row in rows]


def assumptions(experiment: Experiment) -> list[str]:
    """What the study itself assumes: load, bounds, cells and prices, then what its file says."""
    settings = experiment.settings
    scale, prices = int(settings.get("scale", 1)), dict(settings.get("usd_per_hour", {}))
    percentile = float(settings.get("ttft_percentile", 95.0))
    lines = [
        f"TTFT: percentile {percentile:g}; TPOT: mean. A rate is searched to 4 % by Poisson loads of "
        f"{float(settings.get('window_s', 30.0)):g} s."
    ]
    if scale > 1:
        lines.append(f"One of {scale} equal cells is simulated; rates, devices and tokens/s are of all.")
    if prices:
        lines.append("USD per device-hour: " + ", ".join(f"{name} {price:g}" for name, price in prices.items()) + ".")
    return [*lines, *experiment.assumed]


def _csv(row: Capacity, published: Mapping[str, float]) -> list[object]:
    point = row.point
    cells: list[object] = [row.case, row.bound.ttft_ms, row.bound.tpot_ms, devices(row), row.usd_per_hour]
    cells += [None] * 5 if point is None else [
        point.rate, point.output_throughput, _per_device(row), point.ttft_ms, point.tpot_ms
    ]  # fmt: skip
    return [*cells, row.per_dollar, published.get(f"{row.bound.ttft_ms:g}"), published.get(PER_DOLLAR)]


def devices(row: Capacity) -> str:
    """`32 H800 + 32 H20`."""
    return " + ".join(f"{count:,} {name.removeprefix('NVIDIA ')}" for name, count in row.devices.items())


def _per_device(row: Capacity) -> float:
    return 0.0 if row.point is None else row.point.output_throughput / sum(row.devices.values())


def _cells(row: Capacity, published: Mapping[str, float], best: bool) -> list[str]:
    point, said = row.point, published.get(f"{row.bound.ttft_ms:g}")
    told = "-" if said is None else f"{said:,.0f}"
    if point is None:
        return [row.case, devices(row), "none holds", "", "", "", "", "", told]
    return [
        row.case + (" *" if best else ""),
        devices(row),
        f"{point.rate:,.4g}",
        f"{point.output_throughput:,.0f}",
        f"{_per_device(row):,.0f}",
        f"{point.ttft_ms:,.0f}",
        f"{point.tpot_ms or 0.0:.1f}",
        "-" if row.per_dollar is None else f"{row.per_dollar:,.0f}",
        told,
    ]


def best_of(rows: Sequence[Capacity]) -> Capacity | None:
    """The row of most tokens/s, None where nothing holds."""
    held = [row for row in rows if row.point is not None]
    return max(held, key=_per_second, default=None)


def _per_second(row: Capacity) -> float:
    return row.point.output_throughput if row.point else 0.0


HEAD = ["deployment", "devices", "req/s", "tok/s", "per device", "TTFT ms", "TPOT ms", "tok/USD", "published"]


def _tables(experiment: Experiment, found: Found) -> list[tuple[Bound, list[list[str]]]]:
    published = {case.name: case.published for case in experiment.cases}
    tables = []
    for bound in found.bounds:
        rows = found.of(bound)
        best = best_of(rows)
        tables.append((bound, [_cells(row, published[row.case], row is best) for row in rows]))
    return tables


def _text(experiment: Experiment, found: Found) -> str:
    lines = [experiment.title]
    for bound, cells in _tables(experiment, found):
        lines += ["", f"{bound.name}:", "", table(HEAD, cells)]
    lines += ["", "* most output tokens/s.", *assumptions(experiment)]
    if told := experiment.published.text:
        lines += ["", told]
    return "\n".join(lines)


def _page(experiment: Experiment, found: Found, own: Sequence[str]) -> str:
    charts = Charts()
    facts = [f"{len(experiment.cases)} deployments", *sorted({devices(row) for row in found.rows})]
    facts = facts if len(facts) <= 4 else facts[:1]
    facts.append(f"{sum(map(len, found.tried.values()))} simulated rates")
    sections = [
        Section("Most load within bounds", _load(charts, experiment, found)),
        Section("Every rate that was tried", _tried(charts, experiment, found), EVERY_RATE),
        Section("Cases", _html_tables(experiment, found)),
        against(experiment, _compared(experiment, found)),
        *closing(experiment, assumptions(experiment), found.not_modelled, own),
    ]
    kicker = f"experiment {experiment.name}"
    return charts.page(kicker, experiment.title, facts, lead(experiment.question, _verdict(found)), sections)


def _verdict(found: Found) -> str:
    sentences = []
    for bound in found.bounds:
        best = best_of(found.of(bound))
        within = f"Within {bound.name}"
        if best is None:
            sentences.append(f"{within} no deployment carries anything.")
            continue
        sentences.append(f"{within}, most is carried by {best.case}: {quantity(_per_second(best))} tok/s.")
        dollars = max(found.of(bound), key=lambda row: row.per_dollar or 0.0)
        if dollars.per_dollar and dollars.case != best.case:
            sentences.append(f"Most tokens per dollar: {dollars.case}, {dollars.per_dollar / 1e6:.2f} M.")
    return " ".join(sentences)


def _load(charts: Charts, experiment: Experiment, found: Found) -> str:
    cases = [case.name for case in experiment.cases]
    by_bound = [found.of(bound) for bound in found.bounds]
    values = [[row.point and row.point.output_throughput for row in rows] for rows in zip(*by_bound, strict=True)]
    published = [[case.published.get(f"{bound.ttft_ms:g}") for bound in found.bounds] for case in experiment.cases]
    names = [bound.name for bound in found.bounds]
    note = "tokens per second of all devices" + ("" if len(names) > 1 else f", within {names[0]}")
    html = charts.place(Bars("Output throughput", note, "tok/s", names, cases, values, published))
    over = [gains(rows) for rows in by_bound]
    if any(gain is not None for row in over for gain in row):
        told: list[list[float | None]] = [[None] * len(names) for _ in cases]
        for case, row in zip(experiment.cases, told, strict=True):
            row[0] = case.published.get(PER_DOLLAR)
        note = f"over {cases[0]}"
        html += charts.place(Bars("Tokens per US dollar", note, "%", names, cases, list(zip(*over, strict=True)), told))
    return html


def _tried(charts: Charts, experiment: Experiment, found: Found) -> str:
    percentile = float(experiment.settings.get("ttft_percentile", 95.0))

    def curves(name: str) -> list[Curve]:
        return [
            Curve(
                case,
                [point.output_throughput for point in points],
                [getattr(point, name) for point in points],
                [any(bound.holds(point) for bound in found.bounds) for point in points],
            )
            for case, points in found.tried.items()
        ]

    first = sorted({bound.ttft_ms for bound in found.bounds})
    later = sorted({bound.tpot_ms for bound in found.bounds})
    note = "against output tokens per second"
    html = charts.place(Curves(f"P{percentile:g} TTFT", note, "tok/s", "ms", curves("ttft_ms"), first))
    html += charts.place(Curves("Mean TPOT", note, "tok/s", "ms", curves("tpot_ms"), later))
    return f'<div class="grid two">{html}</div>'


def _html_tables(experiment: Experiment, found: Found) -> str:
    html = []
    for bound, cells in _tables(experiment, found):
        # Without prices or published figures there is no column for them.
        kept = [column for column in range(len(HEAD)) if any(row[column] not in ("", "-") for row in cells)]
        rows = [["–" if row[column] == "-" else escape(row[column]) for column in kept] for row in cells]
        head = [HEAD[column] for column in kept]
        html.append(f"<h3>{escape(bound.name)}</h3>" + html_table(head, rows, "numbers", {1}))
    return "".join(html) + '<p class="note">* most output tokens per second.</p>'


def _compared(experiment: Experiment, found: Found) -> list[tuple[str, str, str, str]]:
    """(what, published, ours, difference) of every figure that was published, and who comes first among them."""
    rows = []
    for bound in found.bounds:
        told: dict[str, float] = {}
        ours = {row.case: row.point.output_throughput for row in found.of(bound) if row.point}
        for case in experiment.cases:
            said, have = case.published.get(f"{bound.ttft_ms:g}"), ours.get(case.name)
            if said is None:
                continue
            told[case.name] = said
            what = f"tok/s of {case.name}, {bound.name}"
            apart = "" if have is None else f"{100 * (have / said - 1):+.0f} %"
            rows.append((what, f"{said:,.0f}", "none holds" if have is None else f"{have:,.0f}", apart))
        if len(told) > 1:
            first = max(told, key=told.__getitem__)
            mine = max(told, key=lambda name: ours.get(name, 0.0))
            rows.append((f"the better of them, {bound.name}", first, mine, "agrees" if first == mine else "differs"))
        for case, gain in zip(experiment.cases, gains(found.of(bound)), strict=True):
            said = case.published.get(PER_DOLLAR)
            if said is not None and gain is not None:
                what = f"tokens per US dollar of {case.name} over {experiment.cases[0].name}"
                rows.append(
                    (what, f"{100 * said:+.0f} %", f"{100 * gain:+.0f} %", f"{100 * (gain - said):+.0f} points")
                )
    return rows

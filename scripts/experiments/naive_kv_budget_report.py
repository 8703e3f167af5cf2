"""What the study `naive_kv_budget` says: a table for the console and as csv, and a page with charts."""

from collections.abc import Sequence
from dataclasses import asdict, fields as fields_of
from html import escape
from typing import TYPE_CHECKING

from scripts.experiments.study import Experiment, Findings
from scripts.experiments.study_page import against, closing, lead
from scripts.table import table
from sim.report.page.parts import table as html_table
from sim.report.page.sections import Section
from sim.report.page.study import Bars, Charts, Curve, Curves
from sim.units import GIB


if TYPE_CHECKING:
    from scripts.experiments.naive_kv_budget import Outcome


HEAD = [
    "case", "blocks naive", "engine", "excess", "published", "requests", "tok/s naive", "engine", "excess",
    "published", "preempted naive", "engine",
]  # fmt: skip
MEANT = "naive: memory x utilization - weights"
WORDS = {"peak_activation": "activation peak", "non_torch": "libraries", "cuda_graphs": "CUDA graphs"}
FORGOTTEN_NOTE = (
    "The engine takes these off the memory before it counts blocks, the naive sum does not; what the engine itself "
    "does not count (CUDA graphs, in some versions) is in neither."
)
RUNNING_NOTE = (
    "The batch is as many requests as the naive blocks hold at full length. On those it would run whole; on the blocks "
    "that exist, the last requests wait or are preempted, and end after the others."
)


def report(experiment: Experiment, rows: "Sequence[Outcome]", own: Sequence[str]) -> Findings:
    """Fields, text, csv and page."""
    published = {case.name: dict(case.published) for case in experiment.cases if case.published}
    fields = {
        "status": "ok",
        "experiment": experiment.name,
        "rows": [asdict(row) for row in rows],
        "published": published,
    }
    first = f"{experiment.title}: as many requests at once as the naive budget holds at full length"
    text = [first, "", table(HEAD, _cells(experiment, rows)), "", f"{MEANT}.", *experiment.assumed]
    if told := experiment.published.text:
        text += ["", told]
    names = [one.name for one in fields_of(rows[0]) if isinstance(getattr(rows[0], one.name), str | int | float)]
    csv_rows = [
        [getattr(row, name) for name in names] + [case.published.get(key) for key in ("blocks", "decode_throughput")]
        for row, case in zip(rows, experiment.cases, strict=True)
    ]
    head = (*names, "published_blocks_excess", "published_throughput_excess")
    return Findings(fields, "\n".join(text), head, csv_rows, _page(experiment, rows, own))


def _cells(experiment: Experiment, rows: "Sequence[Outcome]") -> list[list[str]]:
    return [
        [
            row.case,
            f"{row.naive_blocks:,}",
            f"{row.engine_blocks:,}",
            f"{row.blocks_excess:+.1%}",
            _percent(case.published.get("blocks")),
            f"{row.requests:,}",
            f"{row.naive_throughput:,.0f}",
            f"{row.engine_throughput:,.0f}",
            f"{row.throughput_excess:+.1%}",
            _percent(case.published.get("decode_throughput")),
            f"{row.naive_preemptions:,}",
            f"{row.engine_preemptions:,}",
        ]
        for row, case in zip(rows, experiment.cases, strict=True)
    ]


def _page(experiment: Experiment, rows: "Sequence[Outcome]", own: Sequence[str]) -> str:
    charts = Charts()
    cases = [row.case for row in rows]
    excess = charts.place(
        Bars(
            "Too much",
            "more than with the blocks that the engine has",
            "%",
            ["blocks", "output throughput"],
            cases,
            [[row.blocks_excess, row.throughput_excess] for row in rows],
            [[case.published.get("blocks"), case.published.get("decode_throughput")] for case in experiment.cases],
        )
    )
    names = list(dict.fromkeys(name for row in rows for name in row.forgotten_bytes))
    left_out = charts.place(
        Bars(
            "Left out of the naive sum",
            "GiB per GPU",
            "GiB",
            [WORDS.get(name, name.replace("_", " ")) for name in names],
            cases,
            [[_gib(row.forgotten_bytes.get(name)) for name in names] for row in rows],
        )
    )
    over_time = "".join(charts.place(_running(row)) for row in rows)
    cells = [["–" if cell == "-" else escape(cell) for cell in row]
             for row in _cells(experiment, rows)]  # fmt: skip
    sections = [
        Section("How much too much", excess),
        Section("What is forgotten", left_out, FORGOTTEN_NOTE),
        Section("The batch over time", f'<div class="grid two">{over_time}</div>', RUNNING_NOTE),
        Section("Cases", html_table(HEAD, cells, "numbers")),
        against(experiment, _compared(experiment, rows)),
        *closing(
            experiment,
            [f"{MEANT}.", *experiment.assumed],
            list(dict.fromkeys(line for row in rows for line in row.not_modelled)),
            own,
        ),
    ]
    worst = max(rows, key=lambda row: row.blocks_excess)
    verdict = (
        f"The naive budget has {min(row.blocks_excess for row in rows):.1%} to {worst.blocks_excess:.1%} more blocks "
        f"than the engine (most: {worst.case}), and a batch that just fits it is planned "
        f"{min(row.throughput_excess for row in rows):.1%} to {max(row.throughput_excess for row in rows):.1%} faster "
        "than it runs."
    )
    facts = [f"{len(rows)} cases", "each run twice", MEANT]
    return charts.page(
        f"experiment {experiment.name}", experiment.title, facts, lead(experiment.question, verdict), sections
    )


def _running(row: "Outcome") -> Curves:
    curves = [
        Curve(name, [t for t, _ in points], [n for _, n in points])
        for name, points in (("naive blocks", row.naive_running), ("the engine's blocks", row.engine_running))
    ]
    return Curves(row.case, f"of {row.requests:,} requests, those that run", "s", "requests", curves)


def _compared(experiment: Experiment, rows: "Sequence[Outcome]") -> list[tuple[str, str, str, str]]:
    found = []
    for row, case in zip(rows, experiment.cases, strict=True):
        for key, what, ours in (
            ("blocks", "blocks too many", row.blocks_excess),
            ("decode_throughput", "throughput too high", row.throughput_excess),
        ):
            said = case.published.get(key)
            if said is not None:
                apart = f"{100 * (ours - said):+.1f} points"
                found.append((f"{what}, {row.case}", _percent(said), _percent(ours), apart))
    return found


def _gib(value: float | None) -> float | None:
    return None if value is None else value / GIB


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"

"""What the study `rollout` says: a row for each threshold, the best of them, and the tail as curves."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING

from scripts.experiments.study import Experiment, Findings
from scripts.experiments.study_page import against, closing, lead
from scripts.table import table
from sim.report.page.parts import table as html_table
from sim.report.page.sections import Section
from sim.report.page.study import Charts, Curve, Curves


if TYPE_CHECKING:
    from scripts.experiments.rollout import Outcome


HEAD = [
    "switch below",
    "total, s",
    "ratio",
    "first, s",
    "second, s",
    "switches, s",
    "updates, s",
    "live",
    "again, tokens",
]


def report(
    experiment: Experiment, rows: "Sequence[Outcome]", own: Sequence[str], not_modelled: Sequence[str]
) -> Findings:
    """Fields, text, csv and page; the first row never switches, the last is the second layout alone."""
    base, other = rows[0], rows[-1]
    best = min(rows[1:-1], key=lambda row: row.total_s)
    ratio = best.total_s / base.total_s
    first, second = (case.name for case in experiment.cases)
    verdict = (
        f"Best: from {first} to {second} when less than {best.share:.1%} are live: {best.total_s:,.1f} s, "
        f"{ratio:.3f} of {base.total_s:,.1f} s without a switch ({second} alone: {other.total_s:,.1f} s)."
    )
    fields = {
        "status": "ok",
        "experiment": experiment.name,
        "best_share": best.share,
        "best_ratio": ratio,
        "rows": [asdict(row) | {"total_s": row.total_s} for row in rows],
        "published": dict(experiment.cases[1].published),
        "not_modelled": list(not_modelled),
    }
    cells = [_cells(row, base) for row in rows]
    text = [experiment.title, "", table(HEAD, cells), "", verdict, *experiment.assumed]
    text += ["", experiment.published.text] if experiment.published.text else []
    csv_rows = [
        [row.share, row.total_s, row.first_s, row.second_s, row.switch_s, row.update_s, row.live, row.again_tokens]
        for row in rows
    ]
    head = ("share", "total_s", "first_s", "second_s", "switch_s", "update_s", "live", "again_tokens")
    charts = Charts()
    totals = Curve("total", [row.share for row in rows[:-1]], [row.total_s for row in rows[:-1]])
    search = charts.place(Curves("Threshold", "share of live trajectories below which it switches", "", "s", [totals]))
    tails = [
        Curve(name, [t for t, _ in row.live_over_time], [n for _, n in row.live_over_time])
        for name, row in (("no switch", base), (f"below {best.share:.1%}", best), (f"{second} alone", other))
    ]
    tail = charts.place(Curves("Live trajectories", "of the first iteration", "s", "trajectories", tails))
    said = experiment.cases[1].published.get("ratio")
    compared = (
        []
        if said is None
        else [("total with the switch / without", f"{said:.3f}", f"{ratio:.3f}", f"{ratio - said:+.3f}")]
    )
    sections = [
        Section("Thresholds", search),
        Section("The tail", tail),
        Section("All of them", html_table(HEAD, [[escape(cell) for cell in row] for row in cells], "numbers")),
        against(experiment, compared),
        *closing(experiment, list(experiment.assumed), list(not_modelled), own),
    ]
    facts = [f"{first}, then {second}", f"{len(base.iterations_s)} iterations"]
    page = charts.page(
        f"experiment {experiment.name}", experiment.title, facts, lead(experiment.question, verdict), sections
    )
    return Findings(fields, "\n".join(text), head, csv_rows, page)


def _cells(row: "Outcome", base: "Outcome") -> list[str]:
    name = "never" if row.share == 0 else "second alone" if row.share == 1 else f"{row.share:.1%}"
    seconds = (row.first_s, row.second_s, row.switch_s, row.update_s)
    return [
        name, f"{row.total_s:,.1f}", f"{row.total_s / base.total_s:.3f}", *(f"{s:,.1f}" for s in seconds),
        f"{row.live:,}", f"{row.again_tokens:,}",
    ]  # fmt: skip

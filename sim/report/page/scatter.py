"""One self-contained page of predictions against measurements: plots of one over the other, and sections of tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from sim.report.page.build import asset, embedded, fill
from sim.report.page.data import rounded


@dataclass(frozen=True)
class Panel:
    """One plot, both axes logarithmic: `measured` and `predicted` values > 0, `names` and `groups` (colours) of points.

    `unit`: `ms`, or what stands behind a number; `note` stands beside the title.
    """

    title: str
    note: str
    unit: str
    measured: Sequence[float]
    predicted: Sequence[float]
    names: Sequence[str]
    groups: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, HTML already."""

    title: str
    html: str
    note: str = ""


@dataclass(frozen=True)
class ScatterPage:
    """All of a page; `facts` are the line below the heading, `verdict` its one sentence."""

    kicker: str
    heading: str
    facts: Sequence[str]
    verdict: str
    panels: Sequence[Panel]
    sections: Sequence[Section] = field(default_factory=tuple)


def scatter_page(page: ScatterPage) -> str:
    """The page as HTML text. It asks nothing of the network, and reads without scripts but for the plots."""
    shown = [panel for panel in page.panels if len(panel.measured)]
    order = sorted({group for panel in shown for group in panel.groups})
    figures = "".join(
        f"<figure><figcaption>{escape(panel.title)} <span>{escape(panel.note)}</span></figcaption>"
        f'<div class="chart" id="panel-{number}"></div></figure>'
        for number, panel in enumerate(shown)
    )
    return fill(
        "scatter.html",
        {
            "title": escape(page.heading),
            "style": asset("style.css"),
            "kicker": escape(page.kicker),
            "heading": escape(page.heading),
            "facts": "".join(f"<li>{escape(fact)}</li>" for fact in page.facts),
            "verdict": escape(page.verdict),
            "columns": "two" if len(shown) in (2, 4) else "three",
            "figures": figures or '<p class="note">Nothing was priced, so there is nothing to plot.</p>',
            "sections": "".join(map(_section, page.sections)),
            "data": embedded({"groups": order, "panels": [_panel(panel, order) for panel in shown]}),
            "script": asset("charts.js") + "\n" + asset("scatter.js"),
        },
    )


def _section(section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return f"<section><h2>{escape(section.title)}</h2>{note}{section.html}</section>"


def _panel(panel: Panel, order: list[str]) -> dict[str, Any]:
    return {
        "title": panel.title,
        "unit": panel.unit,
        "x": rounded(np.asarray(panel.measured, float), 4),
        "y": rounded(np.asarray(panel.predicted, float), 4),
        "name": list(panel.names),
        "group": [order.index(group) for group in panel.groups],
    }

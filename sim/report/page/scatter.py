"""One self-contained page of predictions against measurements: plots of one over the other, and sections of tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from sim.report.page.data import rounded
from sim.report.page.sections import Section, SectionsPage, figure, sections_page


PLOTS_NOTE = (
    "Each point is one measurement; on the line, prediction and measurement are equal, and between the dashes they "
    "differ by less than a fifth."
)


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
    figures = "".join(figure(panel.title, panel.note, f"panel-{number}") for number, panel in enumerate(shown))
    figures = figures or '<p class="note">Nothing was priced, so there is nothing to plot.</p>'
    columns = "two" if len(shown) in (2, 4) else "three"
    plots = Section("Predicted against measured", f'<div class="grid {columns}">{figures}</div>', PLOTS_NOTE)
    lead = f'<p class="verdict">{escape(page.verdict)}</p>'
    return sections_page(
        SectionsPage(page.kicker, page.heading, page.facts, lead, (plots, *page.sections)),
        {"groups": order, "panels": [_panel(panel, order) for panel in shown]},
        "scatter.js",
    )


def _panel(panel: Panel, order: list[str]) -> dict[str, Any]:
    return {
        "title": panel.title,
        "unit": panel.unit,
        "x": rounded(np.asarray(panel.measured, float), 4),
        "y": rounded(np.asarray(panel.predicted, float), 4),
        "name": list(panel.names),
        "group": [order.index(group) for group in panel.groups],
    }

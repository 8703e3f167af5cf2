"""The charts of a study: bars of its cases, what was published beside them, and curves of what was tried."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.report.page.data import rounded
from sim.report.page.sections import Section, SectionsPage, figure, sections_page


@dataclass(frozen=True)
class Bars:
    """A group of bars for each case: one bar of each series, and below it the published figure where there is one.

    `values`, `published`: axes `case series`, None where there is nothing. `unit` stands behind a number; `%`: values
    are shares of 1 and shown with their sign.
    """

    title: str
    note: str
    unit: str
    series: Sequence[str]
    cases: Sequence[str]
    values: Sequence[Sequence[float | None]]
    published: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True)
class Curve:
    """Points of one case; `inside`: which of them keep every limit of the chart's study (the others are hollow)."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    inside: Sequence[bool] = ()


@dataclass(frozen=True)
class Curves:
    """Curves over one axis. `y_unit` `ms`: the axis is logarithmic, and limits (its unit) are drawn across."""

    title: str
    note: str
    x_unit: str
    y_unit: str
    curves: Sequence[Curve]
    limits: Sequence[float] = ()


class Charts:
    """Places for charts, and in the same order what is drawn there."""

    def __init__(self) -> None:
        self._drawn: list[dict[str, Any]] = []

    def place(self, chart: Bars | Curves) -> str:
        """HTML of the place of `chart`."""
        self._drawn.append(_bars(chart) if isinstance(chart, Bars) else _curves(chart))
        return figure(chart.title, chart.note, f"chart-{len(self._drawn) - 1}")

    def page(self, kicker: str, heading: str, facts: Sequence[str], lead: str, sections: Sequence[Section]) -> str:
        """The page around them, as HTML text."""
        return sections_page(SectionsPage(kicker, heading, facts, lead, sections), {"charts": self._drawn}, "study.js")


def _bars(chart: Bars) -> dict[str, Any]:
    nothing = [None] * len(chart.series)
    published = list(chart.published) or [nothing for _ in chart.cases]
    return {
        "kind": "bars",
        "title": chart.title,
        "unit": chart.unit,
        "series": list(chart.series),
        "cases": [
            {"name": name, "values": list(values), "published": list(told)}
            for name, values, told in zip(chart.cases, chart.values, published, strict=True)
        ],
    }


def _curves(chart: Curves) -> dict[str, Any]:
    return {
        "kind": "curves",
        "title": chart.title,
        "x_unit": chart.x_unit,
        "y_unit": chart.y_unit,
        "limits": list(chart.limits),
        "curves": [
            {
                "name": curve.name,
                "x": rounded(np.array(curve.x, float)),
                "y": rounded(np.array([np.nan if y is None else y for y in curve.y], float)),
                "inside": list(curve.inside),
            }
            for curve in chart.curves
        ],
    }

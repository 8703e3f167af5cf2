"""The shipped measurements of dispatch and combine: `exchange_points.csv` as measured, `exchanges.csv` fitted.

`calibration/exchange_points.py` writes both.
"""

import csv
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY, ONE_SIDED, Constants


NUMBER_BYTES = {
    (LOW_LATENCY, "dispatch"): 1 + 4 / 128,
    (LOW_LATENCY, "combine"): 2.0,
    (HIGH_THROUGHPUT, "dispatch"): 1 + 4 / 128,
    (HIGH_THROUGHPUT, "combine"): 2.0,
    (ONE_SIDED, "dispatch"): 1 / 2 + 1 / 16,
    (ONE_SIDED, "combine"): 2.0,
}
"""Bytes of a number, its share of a scale included, in what was measured (`calibration/exchange_points.py`)."""


class ExchangePoints(NamedTuple):
    """Mean times of one kernel build and shape by the tokens of each rank."""

    family: str
    mode: str
    op: str
    ranks: int
    nodes: int
    hidden: int
    top_k: int
    experts: int
    build: str
    tokens: tuple[float, ...]
    time_s: tuple[float, ...]


class ExchangeRow(NamedTuple):
    """Fitted constants of a family, mode and direction among `ranks` ranks; errors are fractions.

    `shapes`, `points`: what was fitted. Mean errors: `between_error` of a measured series at sizes left out of it,
    `fit_error` of the form at all points, `held_out_error` at what the fit has not seen: other hidden sizes or experts
    a token; where one shape was measured, another number of ranks.
    """

    family: str
    mode: str
    op: str
    ranks: int
    nodes: int
    constants: Constants
    shapes: int
    points: int
    between_error: float
    fit_error: float
    held_out_error: float
    source: str


POINT_COLUMNS = (*ExchangePoints._fields[:-2], "points")
"""`points`: "tokens:seconds" of each, separated by spaces."""
COLUMNS = (*ExchangeRow._fields[:5], *Constants._fields, *ExchangeRow._fields[6:])


def read_points(lines: Sequence[str]) -> tuple[ExchangePoints, ...]:
    """Series from csv lines (lines that start with `#` are remarks)."""
    found = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        pairs = [pair.split(":") for pair in row["points"].split()]
        tokens, times = zip(*((float(count), float(time)) for count, time in pairs), strict=True)
        ranks, nodes, hidden, top_k, experts = (
            int(row[name]) for name in ("ranks", "nodes", "hidden", "top_k", "experts")
        )
        names = row["family"], row["mode"], row["op"]
        found.append(ExchangePoints(*names, ranks, nodes, hidden, top_k, experts, row["build"], tokens, times))
    return tuple(found)


def read_rows(lines: Sequence[str]) -> tuple[ExchangeRow, ...]:
    """Fitted rows from csv lines (lines that start with `#` are remarks)."""
    return tuple(
        ExchangeRow(
            row["family"],
            row["mode"],
            row["op"],
            int(row["ranks"]),
            int(row["nodes"]),
            Constants(*(float(row[name]) for name in Constants._fields)),
            int(row["shapes"]),
            int(row["points"]),
            float(row["between_error"]),
            float(row["fit_error"]),
            float(row["held_out_error"]),
            row["source"],
        )
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    )


@cache
def shipped_points() -> dict[tuple[str, str, str, int, int], tuple[ExchangePoints, ...]]:
    """All shipped series by family, mode, direction, ranks and nodes."""
    found: dict[tuple[str, str, str, int, int], list[ExchangePoints]] = {}
    for series in read_points(_lines("exchange_points.csv")):
        found.setdefault((series.family, series.mode, series.op, series.ranks, series.nodes), []).append(series)
    return {key: tuple(several) for key, several in found.items()}


@cache
def shipped_rows() -> tuple[ExchangeRow, ...]:
    """All shipped fits."""
    return read_rows(_lines("exchanges.csv"))


def _lines(name: str) -> list[str]:
    return (resources.files("sim.hardware") / name).read_text(encoding="utf-8").splitlines()

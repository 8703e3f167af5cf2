"""The shipped table of fitted collectives (`collectives.csv`, written by `calibration/collectives.py`)."""

import csv
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple


ANY_GROUP = 0
# Exponent of the soft minimum over protocols. At a crossing of two the time is 2 ** (-1/4) = 0.84 of either, about
# as far as measured series round their corners (exponents 3 to 12 fit within 0.1 points of each other).
SHARPNESS = 4

Triple = tuple[float, float, float]


class CollectiveRow(NamedTuple):
    """One fitted series of `collectives.csv`: latencies and bandwidths by protocol (LL, LL128, Simple).

    `group` is the number of ranks, or 0 for the fit over all groups, whose latency is `a_s + steps hop_s`.
    `fit_error`, `held_out_error`: mean absolute relative error on all points, and on every second inner size left
    out (of the fit over all groups: on a middle group left out; empty where there is none).
    """

    family: str
    library: str
    op: str
    group: int
    a_s: Triple
    hop_s: Triple
    bytes_per_s: Triple
    points: int
    fit_error: float
    held_out_error: float | None
    source: str


PROTOCOLS = ("ll", "ll128", "simple")
COLUMNS = (
    "family",
    "library",
    "op",
    "group",
    *(f"a_{p}_s" for p in PROTOCOLS),
    *(f"hop_{p}_s" for p in PROTOCOLS),
    *(f"{p}_bytes_per_s" for p in PROTOCOLS),
    "points",
    "fit_error",
    "held_out_error",
    "source",
)


def read_rows(lines: Sequence[str]) -> tuple[CollectiveRow, ...]:
    """Rows of a constants table from its csv lines (lines that start with `#` are remarks)."""
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    return tuple(
        CollectiveRow(
            family=row["family"],
            library=row["library"],
            op=row["op"],
            group=int(row["group"]),
            a_s=triple(row[f"a_{p}_s"] for p in PROTOCOLS),
            hop_s=triple(row[f"hop_{p}_s"] for p in PROTOCOLS),
            bytes_per_s=triple(row[f"{p}_bytes_per_s"] for p in PROTOCOLS),
            points=int(row["points"]),
            fit_error=float(row["fit_error"]),
            held_out_error=float(row["held_out_error"]) if row["held_out_error"] else None,
            source=row["source"],
        )
        for row in reader
    )


@cache
def shipped_rows() -> tuple[CollectiveRow, ...]:
    """All shipped fits."""
    with (resources.files("sim.hardware") / "collectives.csv").open(encoding="utf-8") as stream:
        return read_rows(stream.read().splitlines())


def triple(values: Iterable[float | str]) -> Triple:
    """Three floats from three numbers or texts."""
    first, second, third = values
    return float(first), float(second), float(third)

"""Measured collectives point by point (`collective_points.csv`, written by `calibration/collective_points.py`).

A plan prices a collective by the three-protocol form times a measured ratio, which is interpolated linearly over the
logarithm of the bytes that a rank sends: exact at the measured sizes, the form's slope beyond them.
"""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from sim.hardware.collective_table import SHARPNESS


POINTS = 24
"""Most points of a series in a plan."""
INTERPOLATED = 0.04
"""Mean error between sizes, every second inner one held out, of nine families (`calibration/collective_points.py`)."""
BETWEEN_GROUPS = 0.08
"""Mean error of a group of 4 from 2 and 8 (same source): 7-9 %."""


class CollectivePoints(NamedTuple):
    """Median times of one library's build, one operation and group size, by the bytes of the full buffer of a rank."""

    family: str
    library: str
    build: str
    op: str
    group: int
    size_bytes: tuple[float, ...]
    time_s: tuple[float, ...]


COLUMNS = ("family", "library", "build", "op", "group", "points")
"""`points`: "bytes:seconds" of each, separated by spaces."""


class Measured(NamedTuple):
    """Times by size, from which builds, and the error to expect between them."""

    size_bytes: tuple[float, ...]
    time_s: tuple[float, ...]
    build: str
    rel_error: float


def read_points(lines: Sequence[str]) -> tuple[CollectivePoints, ...]:
    """Series of a points table from its csv lines (lines that start with `#` are remarks)."""
    found = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        pairs = [pair.split(":") for pair in row["points"].split()]
        sizes, times = zip(*((float(size), float(time)) for size, time in pairs), strict=True)
        found.append(
            CollectivePoints(row["family"], row["library"], row["build"], row["op"], int(row["group"]), sizes, times)
        )
    return tuple(found)


@cache
def shipped_points() -> dict[tuple[str, str, str], tuple[CollectivePoints, ...]]:
    """All shipped series by family, library and operation."""
    with (resources.files("sim.hardware") / "collective_points.csv").open(encoding="utf-8") as stream:
        found: dict[tuple[str, str, str], list[CollectivePoints]] = {}
        for series in read_points(stream.read().splitlines()):
            found.setdefault((series.family, series.library, series.op), []).append(series)
    return {key: tuple(several) for key, several in found.items()}


def build_order(build: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison."""
    return tuple(int(digits) for digits in re.findall(r"\d+", build))


def measured(family: str, library: str, op: str, group: int, version: str = "") -> Measured | None:
    """What was measured of `op` among `group` ranks; None without a series of it, or of a smaller and a larger group.

    Of several builds: the newest that is not newer than `version`, else the oldest; without a version the newest.
    Between groups n1 < n < n2 the time at each size is interpolated on log t over log n; of an all-reduce, the time at
    the smallest size and the rest by the bytes sent apart.
    """
    by_build: dict[str, dict[int, CollectivePoints]] = {}
    for series in shipped_points().get((family, library, op), ()):
        by_build.setdefault(series.build, {})[series.group] = series
    usable = {
        build: groups for build, groups in by_build.items() if group in groups or min(groups) < group < max(groups)
    }
    if not usable:
        return None
    builds = sorted(usable, key=build_order)
    old_enough = [build for build in builds if build_order(build) <= build_order(version)] if version else builds
    build = old_enough[-1] if old_enough else builds[0]
    groups = usable[build]
    if group in groups:
        series = groups[group]
        return Measured(series.size_bytes, monotone(series.time_s), build, INTERPOLATED)
    low = groups[max(n for n in groups if n < group)]
    high = groups[min(n for n in groups if n > group)]
    sizes, times = between(low, high, group)
    return Measured(sizes, monotone(times), f"{build}, groups of {low.group} and {high.group}", BETWEEN_GROUPS)


def between(low: CollectivePoints, high: CollectivePoints, group: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Sizes and times of a group between two measured ones, at the sizes of the smaller one that both cover."""
    share = math.log(group / low.group) / math.log(high.group / low.group)
    sizes = tuple(size for size in low.size_bytes if high.size_bytes[0] <= size <= high.size_bytes[-1])
    pairs = [(time_at(low, size), time_at(high, size)) for size in sizes]
    if low.op != "all_reduce":
        return sizes, tuple(one ** (1 - share) * other**share for one, other in pairs)
    least = [min(times) for times in zip(*pairs, strict=True)]
    sent = [2 * (n - 1) / n for n in (low.group, high.group)]
    alone = least[0] ** (1 - share) * least[1] ** share
    rest = (
        [max(time - floor, 1e-9) / traffic for time, floor, traffic in zip(pair, least, sent, strict=True)]
        for pair in pairs
    )
    factor = 2 * (group - 1) / group
    return sizes, tuple(alone + factor * one ** (1 - share) * other**share for one, other in rest)


def time_at(series: CollectivePoints, size_bytes: float) -> float:
    """Log-log interpolation inside the measured sizes."""
    sizes, times = series.size_bytes, series.time_s
    above = next(i for i, size in enumerate(sizes) if size >= size_bytes)
    if above == 0 or sizes[above] == size_bytes:
        return times[above]
    share = math.log(size_bytes / sizes[above - 1]) / math.log(sizes[above] / sizes[above - 1])
    return times[above - 1] ** (1 - share) * times[above] ** share


def monotone(times_s: Sequence[float]) -> tuple[float, ...]:
    """No smaller message takes longer than a larger one: each time, or the least of a larger size."""
    found = list(times_s)
    for i in reversed(range(len(found) - 1)):
        found[i] = min(found[i], found[i + 1])
    return tuple(found)


def log_ratios(
    points: Measured, factor: float, a_s: Iterable[float], bytes_per_s: Iterable[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Logarithms of the bytes a rank sends at each size, and of measured over three-protocol time there."""
    protocols = list(zip(a_s, bytes_per_s, strict=True))
    sent = [factor * size for size in points.size_bytes]
    form = [sum((a + traffic / b) ** -SHARPNESS for a, b in protocols) ** (-1 / SHARPNESS) for traffic in sent]
    ratios = tuple(math.log(time / by_form) for time, by_form in zip(points.time_s, form, strict=True))
    return tuple(math.log(traffic) for traffic in sent), ratios

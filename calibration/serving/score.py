"""How well predictions match a table: relative errors of each row, and their statistics over any set of rows."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.serving.scope import DISAGGREGATED, POOLS_KNOWN, STILL_SIMULATED
from calibration.serving.setup import Setup
from calibration.serving.table import Row


METRICS = ("ttft", "tpot", "throughput")


@dataclass(frozen=True)
class Prediction:
    """What a simulation of a row says: `latency_ms` as in `Row`, tok/s per GPU; or why there is none.

    `claimed_error`, `outside_share`: what the cost model claims of the run's step time: relative error, and the share
    beyond the calibrated range; None where it claims nothing.
    """

    status: str = "ok"
    reason: str = ""
    latency_ms: Mapping[str, float] | None = None
    output_per_gpu: float = 0.0
    total_per_gpu: float = 0.0
    preemptions: int = 0
    steps: int = 0
    claimed_error: float | None = None
    outside_share: float | None = None


@dataclass(frozen=True)
class Point:
    """A row of the table, why it does not count (empty: it does), and what was made of it."""

    row: Row
    excluded: str
    setup: Setup | None = None
    prediction: Prediction | None = None

    @property
    def failed(self) -> bool:
        """Whether it should have a price and has none."""
        return self.prediction is not None and self.prediction.status != "ok"

    def measured(self, metric: str) -> float | None:
        """TTFT, TPOT (ms) or throughput (tok/s per GPU, of outputs where known, else of all tokens)."""
        if metric == "throughput":
            return self.row.output_per_gpu or self.row.total_per_gpu
        return self.row.measured_ms(metric) if self.row.statistic else None

    def predicted(self, metric: str) -> float | None:
        """The same of the simulation: the same statistic, the same tokens."""
        found = self.prediction
        if found is None or found.latency_ms is None:
            return None
        if metric == "throughput":
            return found.output_per_gpu if self.row.output_per_gpu else found.total_per_gpu
        return found.latency_ms.get(f"{metric}_ms_{self.row.statistic}")

    def error(self, metric: str) -> float | None:
        """Predicted / measured - 1; infinite for a row without a price; None where nothing was measured or tried."""
        measured, predicted = self.measured(metric), self.predicted(metric)
        if measured is None or self.prediction is None:
            return None
        return math.inf if predicted is None else predicted / measured - 1


def statistics(points: Sequence[Point], metric: str) -> dict[str, Any]:
    """Rows with a measured value, and of their errors: median, mean and P90 of the size, and the bias.

    A row without a price has an infinite error: it counts in median and P90, which are None where they fall on one.
    `mean_error` is of the rows with a price, and `bias` the median of their signed errors.
    """
    errors = np.array([error for point in points if (error := point.error(metric)) is not None], float)
    priced = errors[np.isfinite(errors)]

    def finite(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    size = np.sort(abs(errors))

    return {
        "rows": len(errors),
        "median_error": finite(np.median(size)) if len(size) else None,
        "mean_error": float(abs(priced).mean()) if len(priced) else None,
        "p90_error": finite(size[math.ceil(0.9 * len(size)) - 1]) if len(size) else None,
        "bias": float(np.median(priced)) if len(priced) else None,
    }


def summary(points: Sequence[Point]) -> dict[str, Any]:
    """Rows, those without a price, and the statistics of each metric."""
    return {
        "rows": len(points),
        "failed": sum(point.failed for point in points),
        **{metric: statistics(points, metric) for metric in METRICS},
    }


def concurrency_class(row: Row) -> str:
    """`1-8`, `9-32`, `33-128`, `129-512` or `513+`."""
    bounds = (1, 8, 32, 128, 512)
    c = row.concurrency or 0
    for low, high in zip((1, *(b + 1 for b in bounds[1:-1])), bounds[1:], strict=True):
        if c <= high:
            return f"{low}-{high}"
    return "513+"


DIMENSIONS: dict[str, Callable[[Point], str]] = {
    "engine": lambda point: point.row.engine,
    "device": lambda point: point.setup.device if point.setup else point.row.hardware,
    "model": lambda point: point.setup.model if point.setup else point.row.model,
    "precision": lambda point: point.row.precision or "the model's own",
    "version": lambda point: point.setup.version.kind if point.setup else "no setup",
    "parallel": lambda point: point.setup.parallel if point.setup else "no setup",
    "concurrency": lambda point: concurrency_class(point.row),
    "lengths": lambda point: f"{point.row.isl}/{point.row.osl}",
    "bench": lambda point: point.row.bench,
    "period": lambda point: point.row.period,
}


def _natural(label: str) -> tuple[int, int, str]:
    """Sorts by a number in front, then as text: 9-32 before 33-128, 1024/1024 before 8192/1024."""
    numbers = [int(number) for number in re.findall(r"\d+", label)] if label[:1].isdigit() else []
    return (*numbers, 0, 0)[0], (*numbers, 0, 0)[1], label


def by(points: Iterable[Point]) -> dict[str, dict[str, Any]]:
    """The summary by every dimension; `mode` and `excluded` also have the rows that do not count.

    Of those, only duplicates and admission-limited rows are simulated; the others are numbers of rows.
    """
    everything = list(points)
    counted = [point for point in everything if not point.excluded]
    found: dict[str, dict[str, Any]] = {}
    for name, label in DIMENSIONS.items():
        groups: dict[str, list[Point]] = {}
        for point in counted:
            groups.setdefault(label(point), []).append(point)
        found[name] = {key: summary(groups[key]) for key in sorted(groups, key=_natural)}
    found["mode"] = {"co-located": summary([point for point in counted if not point.row.disaggregated])}
    pools = [point for point in everything if point.row.disaggregated and point.excluded in (POOLS_KNOWN, "")]
    known = [point for point in pools if point.prediction is not None]
    if known:
        found["mode"][POOLS_KNOWN] = summary(known)
        for engine in sorted({point.row.serves for point in known}):
            found["mode"][f"{POOLS_KNOWN}, {engine}"] = summary([p for p in known if p.row.serves == engine])
    apart = [point for point in everything if point.excluded == DISAGGREGATED]
    if apart:
        found["mode"][DISAGGREGATED] = {"rows": len(apart)}
    found["excluded"] = {
        reason: summary(group) if reason in STILL_SIMULATED else {"rows": len(group)}
        for reason in sorted({point.excluded for point in everything} - {""})
        for group in [[point for point in everything if point.excluded == reason]]
    }
    return found

"""Decision quality: among configurations of one machine, engine, model and lengths, is the one we would pick the best?

A planner chooses parallel sizes and load: the most output tokens per GPU and second of those whose time per output
token (TPOT) keeps a limit. The limits are the quartiles of the group's measured TPOTs, so that each leaves a choice.

- Throughput of a configuration is c osl / (TTFT + TPOT (osl - 1)) / GPUs, by Little's law, on both sides: few rows
  have it measured, and with one formula all can be compared.
- Our pick: of the configurations whose *predicted* TPOT keeps the limit, the one of the highest predicted throughput;
  if none keeps it, the one of the lowest predicted TPOT. One that cannot be priced is never picked.
- Its worth: its measured throughput; if it is measured to miss the limit, times limit / TPOT: as much as it is too
  slow.
- Regret: 1 - worth / the measured best that keeps the limit. A group's regret is the mean over its limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.serving.score import Point


LEAST_CONFIGURATIONS = 6
QUARTILES = (25.0, 50.0, 75.0)


@dataclass(frozen=True)
class Group:
    """Rows that differ only in configuration; axis `configuration`. Times in ms, throughput in tok/s per GPU.

    Predictions are infinite time and no throughput where there is none.
    """

    key: tuple[str, ...]
    names: tuple[str, ...]
    measured_tpot_ms: np.ndarray
    measured_throughput: np.ndarray
    predicted_tpot_ms: np.ndarray
    predicted_throughput: np.ndarray

    def limits_ms(self) -> list[float]:
        """The TPOT limits: measured TPOTs at the quartiles, each once."""
        found = np.percentile(self.measured_tpot_ms, QUARTILES, method="lower")
        return sorted(set(map(float, found)))

    def pick(self, limit_ms: float) -> int | None:
        """The configuration we would choose; None if none has a price."""
        priced = np.isfinite(self.predicted_tpot_ms)
        if not priced.any():
            return None
        keeps = self.predicted_tpot_ms <= limit_ms
        if keeps.any():
            return int(np.argmax(np.where(keeps, self.predicted_throughput, -np.inf)))
        return int(np.argmin(self.predicted_tpot_ms))

    def regret(self, limit_ms: float) -> float:
        """1 - worth of the pick / measured best that keeps the limit; 1 without a pick."""
        chosen = self.pick(limit_ms)
        if chosen is None:
            return 1.0
        best = self.measured_throughput[self.measured_tpot_ms <= limit_ms].max()
        slow = max(1.0, self.measured_tpot_ms[chosen] / limit_ms)
        return max(0.0, 1 - float(self.measured_throughput[chosen] / slow / best))

    @property
    def mean_regret(self) -> float:
        """Over the limits."""
        return float(np.mean([self.regret(limit) for limit in self.limits_ms()]))

    def rank_correlation(self) -> float | None:
        """Spearman's, of predicted and measured throughput; None where one of them is constant."""
        priced = np.isfinite(self.predicted_tpot_ms)
        if priced.sum() < 2:
            return None
        a, b = ranks(self.measured_throughput[priced]), ranks(self.predicted_throughput[priced])
        return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else None


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values share their mean rank."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.arange(len(values))
    for value in np.unique(values):
        found[values == value] = found[values == value].mean()
    return found


def groups(points: Sequence[Point]) -> list[Group]:
    """The groups of at least 6 configurations, by device, engine and version, model, precision, lengths and bench.

    A configuration measured more than once stands once, with the median of its latencies.
    """
    found: dict[tuple[str, ...], dict[tuple[int, str, float], list[Point]]] = {}
    for point in points:
        row, setup = point.row, point.setup
        version = setup.version.name if setup else row.engine_version
        key = (
            row.hardware, row.engine, version, setup.model if setup else row.model, row.precision,
            f"{row.isl}/{row.osl}", row.bench,
        )  # fmt: skip
        sizes = setup.parallel if setup else f"tp {row.tp}, ep {row.ep}, dp {row.dp}"
        what = (row.num_gpus, sizes, row.concurrency or 0)
        found.setdefault(key, {}).setdefault(what, []).append(point)
    large = {key: group for key, group in found.items() if len(group) >= LEAST_CONFIGURATIONS}
    return [_group(key, group) for key, group in sorted(large.items())]


def _group(key: tuple[str, ...], configurations: dict[tuple[int, str, float], list[Point]]) -> Group:
    def median(points: list[Point], side: str, metric: str) -> float:
        values = [getattr(point, side)(metric) for point in points]
        return float(np.median([np.inf if value is None else value for value in values]))

    columns: dict[str, list[float]] = {}
    for points in configurations.values():
        row = points[0].row
        for side in ("measured", "predicted"):
            ttft_ms, tpot_ms = median(points, side, "ttft"), median(points, side, "tpot")
            life_s = (ttft_ms + tpot_ms * (row.osl - 1)) / 1e3
            throughput = (row.concurrency or 0) * row.osl / life_s / max(row.num_gpus, 1)
            columns.setdefault(f"{side}_tpot_ms", []).append(tpot_ms)
            columns.setdefault(f"{side}_throughput", []).append(throughput)
    names = tuple(
        f"{gpus} GPU{'s' if gpus > 1 else ''}, {sizes}, {clients:g} clients" for gpus, sizes, clients in configurations
    )
    return Group(key, names, **{name: np.array(values) for name, values in columns.items()})


def decisions(points: Sequence[Point]) -> dict[str, Any]:
    """Groups, median and mean of their regret, and the median rank correlation of throughput."""
    found = groups(points)
    regrets = [group.mean_regret for group in found]
    correlations = [value for group in found if (value := group.rank_correlation()) is not None]
    return {
        "groups": len(found),
        "median": float(np.median(regrets)) if regrets else None,
        "mean": float(np.mean(regrets)) if regrets else None,
        "best_picked": sum(regret < 1e-9 for regret in regrets),
        "rank_correlation": float(np.median(correlations)) if correlations else None,
    }

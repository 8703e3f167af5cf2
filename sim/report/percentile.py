"""Statistics of samples that may come with multiplicities, equal to those of the expanded samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


ROUNDING = 1e-9
"""A standard deviation below this share of the mean is what rounding left of equal samples: 0."""


@dataclass(frozen=True)
class Distribution:
    """Summary of one latency, in seconds. With no sample every statistic is None.

    `std_s` is the population standard deviation, percentiles interpolate linearly (numpy's default, as in vLLM's
    benchmark).
    """

    count: int
    mean_s: float | None
    median_s: float | None
    std_s: float | None
    min_s: float | None
    max_s: float | None
    percentiles_s: tuple[tuple[float, float | None], ...]

    def percentile_s(self, p: float) -> float | None:
        """The percentile `p` (0..100), if it was asked for; `ValueError` otherwise."""
        for known, value in self.percentiles_s:
            if known == p:
                return value
        raise ValueError(f"percentile wants one of {[known for known, _ in self.percentiles_s]}, got {p}")


def weighted_percentiles(values: np.ndarray, counts: np.ndarray, percentiles: npt.ArrayLike) -> np.ndarray:
    """Percentiles of `np.repeat(values, counts)` without expanding it; bit for bit numpy's linear interpolation.

    Shapes `[value]`, `[value]` (integers >= 0, not all 0) -> `[percentile]`.
    """
    order = np.argsort(values, kind="stable")
    ordered = np.asarray(values, float)[order]
    ends = np.cumsum(np.asarray(counts, np.int64)[order])
    at = (ends[-1] - 1) * (np.asarray(percentiles, float) / 100)
    low = np.floor(at).astype(np.int64)
    a = ordered[np.searchsorted(ends, low, side="right")]
    b = ordered[np.searchsorted(ends, np.minimum(low + 1, ends[-1] - 1), side="right")]
    t, step = at - low, b - a
    return np.where(t >= 0.5, b - step * (1 - t), a + step * t)


def distribution(
    values_s: np.ndarray, counts: np.ndarray | None = None, percentiles: Sequence[float] = (90.0, 95.0, 99.0)
) -> Distribution:
    """Summary of samples in seconds, each taken `counts` times (once if None).

    Raises `ValueError` for a percentile outside 0..100.
    """
    percentiles = tuple(float(p) for p in percentiles)
    for p in percentiles:
        if not 0 <= p <= 100:
            raise ValueError(f"percentiles wants numbers from 0 to 100, got {p:g}")
    values = np.asarray(values_s, float)
    weights = np.ones(len(values), np.int64) if counts is None else np.asarray(counts, np.int64)
    values, weights = values[weights > 0], weights[weights > 0]
    total = int(weights.sum())
    if not total:
        return Distribution(0, None, None, None, None, None, tuple((p, None) for p in percentiles))
    mean = float((values * weights).sum() / total)
    std = float(((values - mean) ** 2 * weights).sum() / total) ** 0.5
    found = weighted_percentiles(values, weights, (50.0, *percentiles))
    return Distribution(
        count=total,
        mean_s=mean,
        median_s=float(found[0]),
        std_s=std if std > ROUNDING * abs(mean) else 0.0,
        min_s=float(values.min()),
        max_s=float(values.max()),
        percentiles_s=tuple((p, float(v)) for p, v in zip(percentiles, found[1:], strict=True)),
    )

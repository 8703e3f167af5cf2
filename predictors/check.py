"""What a fit refuses: settings and data that cannot be, and data that do not determine the constants."""

from hashlib import sha256
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from sim.cost.stats import BatchStats
from sim.deployment.plan import PlanArrays


TIED = 1e-6
"""Steps cannot separate constants whose normalised slopes span less than this share."""


def check_settings(names: tuple[str, ...], steps: int, learning_rate: float, bounds: float) -> None:
    """**Raises:** ValueError for no name or one named twice, and for settings out of range."""
    if not names:
        raise ValueError("leaves must name at least one constant to fit, got none.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"leaves must name each constant once, got '{twice}' twice.")
    if not (isinstance(steps, int) and steps >= 1):
        raise ValueError(f"steps must be a whole number of at least 1, got {steps}.")
    if not 0.0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}.")
    if not 1.0 < bounds < np.inf:
        raise ValueError(f"bounds must be a finite factor above 1, got {bounds}.")


def columns(
    plan: PlanArrays, stats: BatchStats, measured_s: ArrayLike, fewest: int
) -> tuple[BatchStats, Float[np.ndarray, " step"]]:
    """The measured steps as float64 columns of one length.

    **Raises:** ValueError for a stack of plans, fewer than `fewest` steps, columns of other shapes, and numbers that
    are negative, not finite, or seconds that are 0.
    """
    if np.ndim(plan.device.memory_bytes_per_s):
        raise ValueError(f"plan must hold one plan, got a stack of {np.size(plan.device.memory_bytes_per_s)}.")
    measured = np.asarray(measured_s, np.float64)
    if measured.ndim != 1:
        raise ValueError(f"measured_s must have one axis, [step], got shape {measured.shape}.")
    if len(measured) < fewest:
        raise ValueError(f"{fewest} constants need at least as many measured steps, got {len(measured)}.")
    values: dict[str, Any] = {
        name: np.asarray(getattr(stats, name), np.float64) for name in BatchStats.__dataclass_fields__
    }
    for name, column in values.items():
        if column.shape != measured.shape:
            raise ValueError(f"stats.{name} must have the shape of measured_s, {measured.shape}, got {column.shape}.")
        _check_all(f"stats.{name}", column, column >= 0.0, "at least 0")
    _check_all("measured_s", measured, measured > 0.0, "positive")
    return BatchStats(**values), measured


def check_determined(names: tuple[str, ...], log_prices: np.ndarray, slopes: np.ndarray) -> None:
    """**Raises:** ValueError if a step has no price, or if `slopes` `[step, leaf]` cannot tell the constants apart."""
    empty = ~np.isfinite(log_prices)
    if empty.any():
        raise ValueError(f"step {int(empty.argmax())} is an empty batch, which costs nothing; leave it out.")
    size = np.linalg.norm(slopes, axis=0)
    if not size.all():
        name = names[int(size.argmin())]
        raise ValueError(f"no measured step depends on '{name}' (it is 0, unused, or hidden by others); leave it out.")
    _, spans, directions = np.linalg.svd(slopes / size, full_matrices=False)
    if spans[-1] < TIED * spans[0]:
        first, second = (names[index] for index in np.argsort(-np.abs(directions[-1]), kind="stable")[:2])
        raise ValueError(f"the measured steps cannot tell '{first}' from '{second}'; leave one of them out.")


def digest(stats: BatchStats, measured_s: Float[np.ndarray, " step"]) -> str:
    """SHA-256 of the fields of `stats` in their order, then the seconds, as little-endian float64."""
    values = [*(getattr(stats, name) for name in BatchStats.__dataclass_fields__), measured_s]
    return sha256(b"".join(np.asarray(column, "<f8").tobytes() for column in values)).hexdigest()


def _check_all(name: str, column: np.ndarray, right: np.ndarray, wanted: str) -> None:
    wrong = ~(right & np.isfinite(column))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name} must be finite and {wanted}, got {column[row]} in step {row}.")

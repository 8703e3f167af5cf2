"""Errors of the predictions, and how often a start ended as predicted."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calibration.kv.case import DIED, REFUSED
from calibration.kv.predict import Prediction


def scores(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """`cases`, `failed`, `within_one_block`, `median_error`, `p90_error`, `bias`; `given_breakdown`; refusals.

    Errors are fractions of the measured blocks; a case without a prediction has an infinite one.
    """
    counted = [found for found in predictions if found.case.counts]
    errors = [found.error for found in counted]
    finite = [error for error in errors if math.isfinite(error)]
    return {
        "cases": len(counted),
        "failed": sum(bool(found.problem) for found in counted),
        "within_one_block": share(abs(apart(found)) <= 1 for found in counted),
        "median_error": quantile([abs(error) for error in errors], 0.5),
        "p90_error": quantile([abs(error) for error in errors], 0.9),
        "bias": float(np.median(finite)) if finite else None,
        **refusals(predictions),
        "given_breakdown": given(counted),
    }


def apart(found: Prediction) -> float:
    """Predicted less measured blocks; infinite without a prediction."""
    measured = found.measured_blocks
    return math.inf if found.problem or measured is None else found.predicted_blocks - measured


def given(counted: Iterable[Prediction]) -> dict[str, Any]:
    """The same of the cases whose log prints the terms.

    A log prints GiB to two decimals, which leaves several blocks open: a case is `within_one_block` if the measured
    blocks are at most one outside what the printed numbers allow. `best_within_one_block` counts those where the guess
    inside that range is; `open_blocks` is half the median width of the range.
    """
    found = [one for one in counted if one.given_blocks is not None and one.measured_blocks is not None]
    if not found:
        return {"cases": 0}
    outside, errors, widths = [], [], []
    for one in found:
        blocks, measured = one.given_blocks, one.measured_blocks
        assert blocks is not None and measured is not None
        outside.append(max(blocks.low - measured, measured - blocks.high, 0.0))
        errors.append(blocks.best - measured)
        widths.append((blocks.high - blocks.low) / 2)
    relative = [abs(error) / (one.measured_blocks or 1) for error, one in zip(errors, found, strict=True)]
    return {
        "cases": len(found),
        "within_one_block": share(value <= 1 for value in outside),
        "best_within_one_block": share(abs(error) <= 1 for error in errors),
        "median_error": quantile(relative, 0.5),
        "p90_error": quantile(relative, 0.9),
        "open_blocks": float(np.median(widths)),
    }


def refusals(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """`refusals_right`: of the starts whose end is told, those that ended as predicted.

    Left out: logs that name no model or device. A start that ran out of memory after the cache was sized is
    one that did not come up, like a refusal.
    """
    told = [found for found in predictions if found.case.outcome and not unnamed(found)]
    down = (REFUSED, DIED)
    right = [(found.case.outcome in down) == (found.outcome in down) and not found.problem for found in told]
    fell = [ok for found, ok in zip(told, right, strict=True) if found.case.outcome in down]
    return {
        "refusals_right": share(right),
        "starts": {
            "told": len(told),
            "failed_starts": len(fell),
            "failed_starts_right": sum(fell),
            "started_right": sum(right) - sum(fell),
        },
    }


def unnamed(found: Prediction) -> bool:
    """Whether the log says neither what ran nor on what."""
    case = found.case
    return bool(found.problem) and any(
        "unstated" in text or not text or text[0].isdigit() for text in (case.model, case.hardware)
    )


def share(values: Iterable[bool]) -> float | None:
    """The share of true ones; None of none."""
    found = list(values)
    return sum(found) / len(found) if found else None


def quantile(values: Sequence[float], at: float) -> float | None:
    """The quantile between neighbours; infinite ones count, and are null in the answer. None of none."""
    if not values:
        return None
    ordered = sorted(values)
    place = at * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    weight = place - math.floor(place)
    return below if weight == 0 or below == above else below + weight * (above - below)


def by(predictions: Sequence[Prediction]) -> dict[str, dict[str, dict[str, Any]]]:
    """Cases, failures and errors by engine and version, device and tensor parallel size."""
    keys = {
        "version": lambda found: f"{found.case.engine} {found.version or found.case.engine_version}",
        "device": lambda found: found.budget.device if found.budget else found.case.hardware,
        "tensor_parallel": lambda found: f"tp{found.case.tensor_parallel}",
    }
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name, key in keys.items():
        groups: dict[str, list[Prediction]] = {}
        for found in predictions:
            if found.case.counts:
                groups.setdefault(key(found), []).append(found)
        tables[name] = {
            group: {
                "cases": len(members),
                "failed": sum(bool(one.problem) for one in members),
                "median_error": quantile([abs(one.error) for one in members], 0.5),
                "p90_error": quantile([abs(one.error) for one in members], 0.9),
            }
            for group, members in sorted(groups.items())
        }
    return tables

"""Finds the constants (`predictors.run_fit`) with which the steps of a log's windows take the time they took.

Gauss-Newton steps, slopes by forward-mode differentiation of the cost kernels, on

    loss = sum over windows of weight x huber(log(priced/measured)) + sum of (constant/its spread a priori)^2

Windows of a like batch err alike, however many there are: m of them with noise s weigh 1/(m `MISFIT`^2 + s^2) each. A
knob of which a log tells less than was known before is left where it was, and said. Every third window is held out.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from calibration.from_run.learn import HUBER, MISFIT, PRIOR_S
from calibration.from_run.priced import priced
from calibration.from_run.windows import Windows
from predictors.run_fit import RATES
from sim.cost.model import CostModel
from sim.deployment.plan import PlanArrays


ITERATIONS = 12
SETTLED = 1e-3
LEAST_PRIOR = 0.02
LITTLE_PREFILL = 0.05
"""Share of a window's priced time that prefill may take where it counts as one of decode."""

SEVERAL = 0.7
"""Spread left, of that a priori, beyond which a knob is told only together with others."""


@dataclass(frozen=True, eq=False)
class LearnedLog:
    """Constants from a log.

    - `values`, `spread`: as in `predictors.run_fit.RunFit`; `untold`: knobs the log tells nothing of; `together`: those
      it tells only in sum with others.
    - `before`, `after` [window]: priced over measured seconds, less 1; `decode`: windows with little prefill.
    """

    values: dict[str, float]
    spread: dict[str, float]
    untold: list[str]
    together: list[str]
    before: Float[np.ndarray, " window"]
    after: Float[np.ndarray, " window"]
    decode: np.ndarray
    iterations: int


def learn_windows(windows: Windows, cost: CostModel, arrays: PlanArrays) -> LearnedLog:
    """Fit what the windows tell; `cost` and `arrays` price steps with the knobs at rest."""
    knobs = [name for name in (*RATES, "host_s") if name != "links" or float(np.sum(arrays.collective.count)) > 0]
    count, batches = len(windows.noise), windows.batches

    def errors(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logarithm of priced over measured seconds, and its slopes."""
        seconds, slopes, _ = priced(cost, arrays, batches.rows, knobs, point)
        share = np.bincount(batches.window, batches.steps * seconds, count)
        slope = [np.bincount(batches.window, batches.steps * column, count) for column in slopes.T]
        return np.log(share), np.stack(slope, 1) / share[:, None]

    rest = np.zeros(len(knobs))
    claimed, prefill, difference = _at_rest(windows, cost, arrays, knobs, rest)
    prior = np.array([PRIOR_S.get(name, max(claimed, LEAST_PRIOR)) for name in knobs])
    decode = prefill < LITTLE_PREFILL
    weight = _weights(windows, decode, np.hypot(windows.noise, difference / 2.0))
    before, slopes = errors(rest)
    told = (weight[:, None] * slopes**2).sum(0) * prior**2 >= 1.0
    point, now, rounds = rest, before, 0
    low = np.array([-np.inf if name in RATES else 0.0 for name in knobs])
    while told.any() and rounds < ITERATIONS:
        rounds += 1
        step = _step(now, slopes, weight, point, prior, told, low)
        point = point + step
        now, slopes = errors(point)
        if np.abs(step / prior).max() < SETTLED:
            break
    curvature = _curvature(now, slopes, weight, prior, told)
    spread = np.sqrt(np.diag(np.linalg.inv(curvature))) * prior[told]
    names = [name for name, is_told in zip(knobs, told, strict=True) if is_told]
    values = [
        float(np.exp(value)) if name in RATES else float(value) for name, value in zip(names, point[told], strict=True)
    ]
    return LearnedLog(
        values=dict(zip(names, values, strict=True)),
        spread=dict(zip(names, spread.tolist(), strict=True)),
        untold=[name for name in knobs if name not in names],
        together=[name for name, left in zip(names, spread / prior[told], strict=True) if left > SEVERAL],
        before=np.expm1(before),
        after=np.expm1(now),
        decode=decode,
        iterations=rounds,
    )


def held_out_errors(learned: LearnedLog, windows: Windows) -> tuple[float, float]:
    """Mean size of the logarithm of priced over measured, in all windows held out, before and after."""
    # a mean, for the median of two or three windows is the luck of one; of logarithms, so that none outweighs all
    before, after = (np.abs(np.log1p(found[windows.held_out])) for found in (learned.before, learned.after))
    return float(before.mean()), float(after.mean())


def worse_decodes(learned: LearnedLog, windows: Windows) -> tuple[float, float] | None:
    """Median errors of the decode windows held out, where the fit raises theirs beyond `MISFIT`.

    They are what a log tells surely: windows with prefill, gained at their cost, gain nothing.
    """
    judged = windows.held_out & learned.decode
    if not judged.any():
        return None
    before, after = (float(np.median(np.abs(found[judged]))) for found in (learned.before, learned.after))
    return (before, after) if after > max(before, MISFIT) else None


def _at_rest(
    windows: Windows, cost: CostModel, arrays: PlanArrays, knobs: list[str], rest: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Claimed relative error of all windows, prefill's share of each, and how far the two prices of each are apart."""
    count, batches, other = len(windows.noise), windows.batches, windows.other
    own = len(batches.rows)
    seconds, _, claims = priced(cost, arrays, np.concatenate([batches.rows, other.rows]), knobs, rest)
    used = batches.steps * seconds[:own]
    share = np.bincount(batches.window, used, count)
    prefill = np.bincount(batches.window, used * batches.prefill, count) / share
    apart = np.bincount(other.window, other.steps * seconds[own:], count) / share
    return float((used * claims[:own]).sum() / used.sum()), prefill, np.abs(np.log(apart))


def _weights(windows: Windows, decode: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Of each window; 0 where it is held out."""
    tokens = windows.requests * windows.context_tokens
    kind = np.stack([np.rint(np.log(windows.requests) / 0.25), np.rint(np.log(tokens) / 0.4), decode])
    fitted = ~windows.held_out
    _, place, like = np.unique(kind[:, fitted], axis=1, return_inverse=True, return_counts=True)
    weight = np.zeros(len(noise))
    weight[fitted] = 1.0 / (like[place.ravel()] * MISFIT**2 + noise[fitted] ** 2)
    return weight


def _curvature(
    errors: np.ndarray, slopes: np.ndarray, weight: np.ndarray, prior: np.ndarray, told: np.ndarray
) -> np.ndarray:
    """Of half the loss, in units of the prior."""
    scaled = slopes[:, told] * prior[told]
    robust = weight * np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-12))
    return (scaled * robust[:, None]).T @ scaled + np.eye(scaled.shape[1])


def _step(
    errors: np.ndarray,
    slopes: np.ndarray,
    weight: np.ndarray,
    point: np.ndarray,
    prior: np.ndarray,
    told: np.ndarray,
    low: np.ndarray,
) -> np.ndarray:
    """The step to the least loss with slopes held; a knob that would leave its range stops at the end of it."""
    robust = weight * np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-12))
    free = told.copy()
    step = np.zeros(len(point))
    while free.any():
        fixed = np.where(free, 0.0, step)
        scaled = slopes[:, free] * prior[free]
        left = errors + slopes @ fixed
        gradient = scaled.T @ (robust * left) + point[free] / prior[free]
        step[free] = -np.linalg.solve(_curvature(errors, slopes, weight, prior, free), gradient) * prior[free]
        beyond = free & (point + step < low)
        if not beyond.any():
            break
        step[beyond] = low[beyond] - point[beyond]
        free &= ~beyond
    return np.clip(step, -3.0 * prior, 3.0 * prior)

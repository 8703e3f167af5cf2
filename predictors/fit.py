"""Fits a few constants of the analytic cost model and of a plan to measured step times.

Each chosen constant gets one factor exp(p), kept within `[1/bounds, bounds]` of the published value. Adam descends,
from p = 0 and with a rate that falls to 0 along a cosine, on

    loss(p) = mean over steps of huber(log(price(p)/measured)),    huber(e) = e^2/2, linear beyond |e| = 0.1

so that short and long steps weigh alike and an outlier does not rule. Nothing is drawn at random. All in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float

from predictors.check import check_determined, check_settings, columns, digest
from predictors.constants import check_name, constants, scaled
from sim.cost.kernel_cost import KernelCost
from sim.cost.stats import BatchStats
from sim.deployment.plan import PlanArrays, trimmed


HUBER_DELTA = 0.1


@dataclass(frozen=True, eq=False)
class Fit:
    """What a fit found.

    - `cost`, `plan`: with the fitted constants in place, float64 numpy leaves.
    - `factors`: fitted over published value by name; `published`: all values before, also of those not fitted.
    - `bounds`: the largest factor that was allowed; `at_bound`: the names that reached it, or its inverse.
    - `loss`: before each update and after the last.
    - `error_before`, `error_after`: price over measured, less one, of every step. The fit has seen these steps.
    - `data_sha256`: of the measured steps, see `predictors.check.digest`.
    """

    cost: KernelCost
    plan: PlanArrays
    factors: dict[str, float]
    published: dict[str, np.ndarray]
    bounds: float
    loss: Float[np.ndarray, " iteration"]
    error_before: Float[np.ndarray, " step"]
    error_after: Float[np.ndarray, " step"]
    data_sha256: str

    @property
    def at_bound(self) -> tuple[str, ...]:
        """Names of the constants that the data would have moved further."""
        limit = np.log(self.bounds) * (1.0 - 1e-9)
        return tuple(name for name, factor in self.factors.items() if abs(np.log(factor)) >= limit)

    def __str__(self) -> str:
        """One line per constant, and the median absolute error before and after."""
        lines = [
            f"{name}: x {factor:.4g}{f', at the bound of {self.bounds:g}' if name in self.at_bound else ''}"
            for name, factor in self.factors.items()
        ]
        before, after = (np.median(np.abs(error)) for error in (self.error_before, self.error_after))
        return "\n".join(
            [*lines, f"median error of {len(self.error_after)} steps: {before:.2%} before, {after:.2%} after"]
        )


def fit(
    cost: KernelCost,
    plan: PlanArrays,
    stats: BatchStats,
    measured_s: ArrayLike,
    *,
    leaves: Sequence[str],
    steps: int = 5000,
    learning_rate: float = 0.05,
    bounds: float = 3.0,
) -> Fit:
    """Move the constants named in `leaves` until the price of `stats` meets the measured seconds.

    **Arguments:**

    - `cost`, `plan`: with published constants; the arrays of one plan.
    - `stats`: the measured steps, every field `[step]`.
    - `measured_s`: seconds of each step, `[step]`.
    - `leaves`: names as in `predictors.constants`.
    - `steps`: updates of Adam; `learning_rate`: its first rate, on the logarithm of the factors.
    - `bounds`: the largest factor, up or down.

    **Raises:** ValueError, one sentence, for names that cannot be fitted, and for data of wrong shape, with numbers
    that cannot be, with fewer steps than constants, or that do not determine the constants.
    """
    cost, plan = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree) for tree in (cost, plan))
    names = (leaves,) if isinstance(leaves, str) else tuple(leaves)
    before = constants(cost, plan)
    check_settings(names, steps, learning_rate, bounds)
    for name in names:
        check_name(name, before)
    stats, measured = columns(plan, stats, measured_s, fewest=len(names))
    small = trimmed(plan)
    with jax.enable_x64(True):
        start, slopes = map(np.asarray, _slopes(np.zeros(len(names)), names, cost, small, stats))
        check_determined(names, start, slopes)
        log_bound = float(np.log(bounds))
        loss, path = map(
            np.asarray, _descend(names, cost, small, stats, measured, steps, float(learning_rate), log_bound)
        )
        if not np.isfinite(loss).all():
            raise ValueError(f"the loss is no number after {np.isfinite(loss).argmin()} updates; lower bounds.")
        best = path[loss.argmin()]
        end, _ = map(np.asarray, _slopes(best, names, cost, small, stats))
    factors = {name: float(np.exp(value)) for name, value in zip(names, best, strict=True)}
    fitted_cost, fitted_plan = scaled(cost, plan, factors)
    return Fit(
        cost=fitted_cost,
        plan=fitted_plan,
        factors=factors,
        published=before,
        bounds=float(bounds),
        loss=loss,
        error_before=np.exp(start) / measured - 1.0,
        error_after=np.exp(end) / measured - 1.0,
        data_sha256=digest(stats, measured),
    )


def fit_loss(
    log_factors: Float[Array, " leaf"],
    names: tuple[str, ...],
    cost: KernelCost,
    plan: PlanArrays,
    stats: BatchStats,
    measured_s: Float[Array, " step"],
) -> Float[Array, ""]:
    """The loss at the top of this module for `log_factors` of the constants `names`; differentiable."""
    error = _log_prices(log_factors, names, cost, plan, stats) - jnp.log(measured_s)
    return jnp.mean(optax.losses.huber_loss(error, delta=HUBER_DELTA))


def _log_prices(log_factors, names, cost, plan, stats) -> Float[Array, " step"]:
    factors = {name: jnp.exp(log_factors[index]) for index, name in enumerate(names)}
    return jnp.log(jax.vmap(lambda one: _total_s(*scaled(cost, plan, factors), one))(stats))


def _total_s(cost: KernelCost, plan: PlanArrays, stats: BatchStats) -> Float[Array, ""]:
    return cost(plan, stats).total_s


@partial(jax.jit, static_argnums=1)
def _slopes(log_factors, names, cost, plan, stats):
    """Logarithm of the prices `[step]`, and its slope in each log factor `[step, leaf]`."""

    def both(values):
        prices = _log_prices(values, names, cost, plan, stats)
        return prices, prices

    slopes, prices = jax.jacfwd(both, has_aux=True)(log_factors)
    return prices, slopes


@partial(jax.jit, static_argnums=(0, 5))
def _descend(names, cost, plan, stats, measured_s, steps, learning_rate, log_bound):
    """Losses `[steps + 1]` and the log factors they belong to `[steps + 1, leaf]`."""
    adam = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def update(carry, _):
        values, state = carry
        loss, slope = jax.value_and_grad(fit_loss)(values, names, cost, plan, stats, measured_s)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes an integer counter with floats
            change, state = adam.update(slope, state, values)
        moved = jnp.clip(optax.apply_updates(values, change), -log_bound, log_bound)
        return (moved, state), (loss, values)

    start = jnp.zeros(len(names), measured_s.dtype)
    return jax.lax.scan(update, (start, adam.init(start)), length=steps + 1)[1]

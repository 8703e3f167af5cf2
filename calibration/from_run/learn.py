"""Finds the constants (`predictors.run_fit`) with which a simulation meets the latencies of a measured run.

Rounds of: simulate; freeze the decisions; price all steps and their slopes in the constants by forward-mode
differentiation of the cost kernels; descend (Adam) on

    loss = mean over requests of huber(log(latency/measured))/s^2, for TTFT and for the time between tokens
           + sum of (constant/its spread a priori)^2

A file of statistics alone has one term per statistic instead. What is kept is the round whose simulation erred least.
The prior keeps what the run does not tell near what the tables say: a rate within its claimed error, the host's time
within a millisecond a step, the server's within 20 ms a request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from calibration.from_run.frozen import Frozen, frozen
from calibration.from_run.observed import Observed, statistic_of
from calibration.from_run.priced import BATCH, priced
from predictors.run_fit import KNOBS, RATES
from sim.cost.model import CostModel
from sim.deployment.plan import PlanArrays
from sim.report.result import SimulationResult


MISFIT = 0.03
"""Relative error that is left however good the constants: of single latencies, in the loss."""

HUBER = 0.2
PRIOR_S = {"host_s": 1e-3, "request_s": 20e-3}
ROUNDS = 5
SETTLED = 3e-3
ITERATIONS = 600


@dataclass(frozen=True, eq=False)
class Learned:
    """`values` and `spread` by knob (of a rate: factor, and deviation of its logarithm); runs before and after."""

    values: dict[str, float]
    spread: dict[str, float]
    before: SimulationResult
    after: SimulationResult
    rounds: int


def learn(
    observed: Observed,
    simulate: Callable[[Mapping[str, float]], SimulationResult],
    cost: CostModel,
    arrays: PlanArrays,
    rate_error: float,
) -> Learned:
    """Find the constants.

    **Arguments:**

    - `simulate`: the run of the same workload with the knobs at given values.
    - `cost`, `arrays`: what prices its steps with the knobs at rest.
    - `rate_error`: relative error a priori of each rate.

    **Raises:** ValueError for a run that no constant changes, or of another number of requests than measured.
    """
    knobs = [name for name in KNOBS if name != "links" or float(np.sum(arrays.collective.count)) > 0]
    prior = np.array([PRIOR_S.get(name, max(rate_error, 0.02)) for name in knobs])
    point = np.zeros(len(knobs))
    best, least, spread = point, np.inf, prior
    before = after = simulate({})
    result = before
    rounds = 0
    while rounds < ROUNDS:
        rounds += 1
        still = frozen(result)
        misfit = _misfit(observed, still, np.zeros(len(still.order)), 0.0)
        if misfit < least:
            best, least, after = point, misfit, result
        slopes = _slopes(cost, arrays, result, still, knobs, point)
        moved, spread = _descend(observed, still, slopes, point, prior, knobs)
        if np.abs((moved - point) / prior).max() * rate_error < SETTLED:
            break
        point = moved
        result = simulate(_values(knobs, point))
    still = frozen(result)
    if _misfit(observed, still, np.zeros(len(still.order)), 0.0) < least:
        best, after = point, result
    return Learned(_values(knobs, best), dict(zip(knobs, spread.tolist(), strict=True)), before, after, rounds)


def _values(knobs: list[str], point: np.ndarray) -> dict[str, float]:
    """Knobs as `predictors.run_fit` reads them: rates are factors."""
    return {
        name: float(np.exp(value)) if name in RATES else float(max(value, 0.0))
        for name, value in zip(knobs, point, strict=True)
    }


def _slopes(
    cost: CostModel, arrays: PlanArrays, result: SimulationResult, still: Frozen, knobs: list[str], point: np.ndarray
) -> Float[np.ndarray, "step knob"]:
    """Slope of each step's seconds in each knob, steps as in `still`."""
    steps = result.steps
    rows = np.stack([np.asarray(getattr(steps, name), np.float64)[still.order] for name in BATCH], axis=-1)
    return priced(cost, arrays, rows, knobs, point)[1]


def _descend(
    observed: Observed,
    still: Frozen,
    slopes: Float[np.ndarray, "step knob"],
    point: np.ndarray,
    prior: np.ndarray,
    knobs: list[str],
) -> tuple[np.ndarray, np.ndarray]:
    """The point of least loss with slopes held, and how well the run determines each knob."""
    request = np.array([name == "request_s" for name in knobs], np.float64)

    def loss(scaled: Float[Array, " knob"]) -> Float[Array, ""]:
        change = scaled * prior - point
        misfit = _loss(observed, still, slopes @ change, jnp.sum(request * change))
        return misfit + jnp.sum(scaled * scaled)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        adam = optax.adam(optax.cosine_decay_schedule(0.1, ITERATIONS))
        low = np.where([name in RATES for name in knobs], -6.0, 0.0)

        @jax.jit
        def run(scaled):
            def update(carry, _):
                scaled, state = carry
                change, state = adam.update(jax.grad(loss)(scaled), state)
                return (jnp.clip(optax.apply_updates(scaled, change), low, 6.0), state), None

            return jax.lax.scan(update, (scaled, adam.init(scaled)), length=ITERATIONS)[0][0]

        scaled = run(jnp.asarray(point / prior))
        curvature = np.asarray(jax.hessian(loss)(scaled)) / 2.0
    spread = np.sqrt(np.maximum(np.diag(np.linalg.pinv(curvature)), 0.0))
    return np.asarray(scaled) * prior, np.minimum(spread, 1.0) * prior


def _misfit(observed: Observed, still: Frozen, change_s: np.ndarray, later_s: float) -> float:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return float(_loss(observed, still, jnp.asarray(change_s), jnp.asarray(later_s)))


def _loss(observed: Observed, still: Frozen, change_s: Any, later_s: Any) -> Float[Array, ""]:
    """Squared misfit, in units of `MISFIT`, when steps take `change_s` and requests `later_s` longer."""
    ttft_s, e2el_s = still.latencies(change_s)
    ttft_s, e2el_s = jnp.maximum(ttft_s + later_s, 1e-6), jnp.maximum(e2el_s + later_s, 1e-6)
    several = still.tokens > 1
    tpot_s = jnp.maximum(e2el_s - ttft_s, 1e-7) / np.maximum(still.tokens - 1, 1)
    if observed.ttft_s is not None and observed.e2el_s is not None:
        measured_ttft, measured_e2el = observed.ttft_s[still.index], observed.e2el_s[still.index]
        measured_tpot = np.maximum(measured_e2el - measured_ttft, 1e-7) / np.maximum(still.tokens - 1, 1)
        first = jnp.mean(_huber(jnp.log(ttft_s / measured_ttft)))
        between = _huber(jnp.log(tpot_s / measured_tpot))
        return (first + jnp.sum(jnp.where(several, between, 0.0)) / max(int(several.sum()), 1)) / MISFIT**2
    found = {"ttft": ttft_s, "e2el": e2el_s, "tpot": tpot_s[np.flatnonzero(several)]}
    terms = []
    for (metric, statistic), measured in observed.statistics.items():
        if metric in found and statistic in ("mean", "median") and len(found[metric]):
            values = found[metric]
            value = jnp.mean(values) if statistic == "mean" else jnp.median(values)
            terms.append(_huber(jnp.log(value / measured)))
    return sum(terms, jnp.zeros(())) / MISFIT**2


def _huber(error: Float[Array, "..."]) -> Float[Array, "..."]:
    return optax.losses.huber_loss(error, delta=HUBER)


def errors_of(observed: Observed, result: SimulationResult) -> dict[str, float]:
    """Relative errors of a simulated run, by statistic and metric: `mean_ttft`."""
    still = frozen(result)
    several = still.tokens > 1
    sample = {
        "ttft": still.ttft_s,
        "e2el": still.e2el_s,
        "tpot": ((still.e2el_s - still.ttft_s) / np.maximum(still.tokens - 1, 1))[several],
    }
    return {
        f"{statistic}_{metric}": statistic_of(sample[metric], statistic) / measured - 1.0
        for (metric, statistic), measured in observed.statistics.items()
        if metric in sample and len(sample[metric])
    }

"""Seconds of steps, and their slopes in the constants to learn, by forward-mode differentiation of the cost kernels."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from predictors.run_fit import RATES, adjusted_arrays
from sim.cost.model import CostModel
from sim.cost.stats import BatchStats
from sim.deployment.plan import PlanArrays, trimmed


CHUNK = 512

BATCH = tuple(BatchStats.__dataclass_fields__)
"""The columns of `rows` below."""


def priced(
    cost: CostModel, arrays: PlanArrays, rows: Float[np.ndarray, "step stat"], knobs: list[str], point: np.ndarray
) -> tuple[Float[np.ndarray, " step"], Float[np.ndarray, "step knob"], Float[np.ndarray, " step"]]:
    """Seconds of each step, their slopes in `point`, and the relative error that the cost model claims.

    `point` has the logarithm of a rate's factor, the seconds of any other knob; `request_s` changes no step.
    """
    small = trimmed(arrays, few_shapes=True)
    cost, small = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree) for tree in (cost, small))
    priceable = [at for at, name in enumerate(knobs) if name != "request_s"]
    names, values = tuple(knobs[at] for at in priceable), np.asarray(point, np.float64)[priceable]
    parts = []
    with jax.enable_x64(True):
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            padded = np.pad(some, [(0, CHUNK - len(some)), (0, 0)])
            parts.append([np.asarray(part)[: len(some)] for part in _priced(names, cost, small, padded, values)])
    found, seconds, errors = (np.concatenate(list(part)) for part in zip(*parts, strict=True))
    slopes = np.zeros((len(rows), len(knobs)))
    slopes[:, priceable] = found
    return seconds, slopes, errors


@partial(jax.jit, static_argnums=0)
def _priced(
    knobs: tuple[str, ...], cost: CostModel, arrays: PlanArrays, rows: Float[Array, "step stat"], point: Array
) -> tuple[Any, Any, Any]:
    def seconds(values):
        named = {name: jnp.exp(values[at]) if name in RATES else values[at] for at, name in enumerate(knobs)}
        terms = cost.terms(adjusted_arrays(arrays, named))
        found = jax.vmap(lambda row: cost.price(terms, BatchStats(*row)))(rows)
        return found.total_s, (found.total_s, found.rel_error)

    slopes, (total_s, errors) = jax.jacfwd(seconds, has_aux=True)(point)
    return slopes, total_s, errors

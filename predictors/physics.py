"""Fits the positive constants of a physics form to measured seconds: robust least squares on the logarithm.

    loss(p) = mean of huber(log(form(exp p)) - log measured),    huber(e) = e^2/2, linear beyond |e| = 0.1

Adam descends from given values, with a rate that falls along a cosine, within given bounds. Nothing is drawn at random.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float


HUBER_DELTA = 0.1


def fit_constants(
    seconds: Callable[[Mapping[str, Any]], Float[Array, " row"]],
    start: Mapping[str, Any],
    measured_s: Float[np.ndarray, " row"],
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    weights: Float[np.ndarray, " row"] | None = None,
    steps: int = 1500,
    rate: float = 0.03,
) -> tuple[dict[str, np.ndarray], float]:
    """Constants that bring `seconds(constants)` closest to `measured_s`, and the loss there.

    **Arguments:**

    - `start`: positive numbers or arrays, by name; entries of an array move apart.
    - `bounds`: smallest and largest value, by name; those not named are free within a factor of 100.
    - `weights`: of each row; None: all alike.

    **Raises:** ValueError where no constants on the way give a finite loss.
    """
    limits = {
        name: np.log(np.asarray((bounds or {}).get(name, (np.min(value) / 100.0, np.max(value) * 100.0))))
        for name, value in start.items()
    }
    share = np.ones(len(measured_s)) if weights is None else np.asarray(weights, np.float64)
    share = share / share.sum()
    target = np.log(measured_s)

    def loss(logs):
        error = jnp.log(seconds({name: jnp.exp(value) for name, value in logs.items()})) - target
        return jnp.sum(share * optax.losses.huber_loss(error, delta=HUBER_DELTA))

    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    @jax.jit
    def descend(logs):
        def update(carry, _):
            logs, state, best, least = carry
            value, slope = jax.value_and_grad(loss)(logs)
            better = value < least
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), logs, best)
            change, state = adam.update(slope, state, logs)
            logs = {
                name: jnp.clip(moved, limits[name][0], limits[name][1])
                for name, moved in optax.apply_updates(logs, change).items()
            }
            return (logs, state, best, jnp.minimum(value, least)), None

        carry = (logs, adam.init(logs), logs, jnp.asarray(jnp.inf, target.dtype))
        return jax.lax.scan(update, carry, length=steps)[0]

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        logs = {name: jnp.asarray(np.log(np.asarray(value, np.float64))) for name, value in start.items()}
        _, _, best, least = descend(logs)
    if not np.isfinite(least):
        raise ValueError(f"measured and computed seconds must be positive and finite, got a loss of {float(least)}.")
    return {name: np.exp(np.asarray(value)) for name, value in best.items()}, float(least)

"""What physics leaves: an ensemble of small networks for log(measured/physics), with what it knows of its own error.

Each member is a perceptron with two hidden layers or more (flax). Features are clipped to the range they were trained
in, so that beyond it the physics extrapolates alone with a constant factor; and where the members disagree the factor
shrinks:

    log factor = mean s^2/(s^2 + spread^2),    spread = standard deviation over members,    s = 0.05

A prediction outside the range of any feature is marked.
"""

from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float


AGREEMENT = 0.05


class Network(nn.Module):
    """Features `[..., feature]` to a number `[...]`; starts at 0. `bend`: name of the activation in `flax.linen`."""

    width: int
    depth: int = 2
    bend: str = "silu"

    @nn.compact
    def __call__(self, features: Float[Array, "*axes feature"]) -> Float[Array, "*axes"]:
        """The perceptron."""
        bend, hidden = getattr(nn, self.bend), features
        for _ in range(self.depth):
            hidden = bend(nn.Dense(self.width)(hidden))
        return nn.Dense(1, kernel_init=nn.initializers.zeros)(hidden)[..., 0]


class Correction(NamedTuple):
    """A log factor on the physics, the disagreement of the members, and 1 where a feature left its range (else 0)."""

    log_factor: Float[Array, "*axes"]
    spread: Float[Array, "*axes"]
    outside: Float[Array, "*axes"]


class Residual(eqx.Module):
    """The trained ensemble. `parameters`: flax parameters with a leading axis of members, float32."""

    parameters: Any
    center: Float[Array, " feature"]
    scale: Float[Array, " feature"]
    low: Float[Array, " feature"]
    high: Float[Array, " feature"]
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True, default=2)
    bend: str = eqx.field(static=True, default="silu")

    def __call__(self, features: Float[Array, "*axes feature"]) -> Correction:
        """Correction for features of any leading axes."""
        dtype = features.dtype
        low, high, center, scale = (jnp.asarray(leaf, dtype) for leaf in (self.low, self.high, self.center, self.scale))
        slack = 1e-6 * (high - low) + 1e-6
        outside = jnp.any((features < low - slack) | (features > high + slack), axis=-1)
        inputs = (jnp.clip(features, low, high) - center) / scale
        parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.parameters)
        network = Network(self.width, self.depth, self.bend)
        members: Any = jax.vmap(lambda one: network.apply({"params": one}, inputs))(parameters)
        mean, variance = jnp.mean(members, axis=0), jnp.var(members, axis=0)
        # a root of 0 has no slope: where the members agree, none is taken
        agree = variance == 0.0
        spread = jnp.where(agree, 0.0, jnp.sqrt(jnp.where(agree, 1.0, variance)))
        trust = AGREEMENT**2 / (AGREEMENT**2 + variance)
        return Correction(mean * trust, spread, outside.astype(dtype))


class Schedule(NamedTuple):
    """How an ensemble is trained: AdamW with a rate that falls along a cosine, on a Huber loss of the log error.

    The rate rises from 0 during the share `warm` of the steps.
    """

    members: int = 4
    width: int = 64
    steps: int = 4000
    batch: int = 2048
    rate: float = 3e-3
    decay: float = 1e-4
    delta: float = 0.03
    depth: int = 2
    bend: str = "silu"
    warm: float = 0.0


DEFAULT = Schedule()


def train(
    features: Float[np.ndarray, "row feature"],
    log_ratio: Float[np.ndarray, " row"],
    *,
    seed: int,
    schedule: Schedule = DEFAULT,
    weights: Float[np.ndarray, " row"] | None = None,
) -> Residual:
    """Fit the ensemble to `log_ratio`, log(measured/physics), of each row; the same for the same seed.

    **Arguments:**

    - `weights`: chance of each row to be drawn, relative; None: all alike.
    """
    center, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    inputs = np.asarray((features - center) / scale, np.float32)
    keys = jax.random.split(jax.random.key(seed), schedule.members)
    chance = None if weights is None else np.log(np.maximum(weights, 1e-30)).astype(np.float32)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes an integer counter with floats
        parameters = _train(keys, inputs, np.asarray(log_ratio, np.float32), chance, schedule)
    ranges: dict[str, Any] = {
        "center": center,
        "scale": scale,
        "low": features.min(axis=0),
        "high": features.max(axis=0),
    }
    shape: dict[str, Any] = {"width": schedule.width, "depth": schedule.depth, "bend": schedule.bend}
    return Residual(parameters=jax.tree.map(np.asarray, parameters), **shape, **ranges)


@eqx.filter_jit
def _train(keys, inputs, targets, chance, schedule: Schedule) -> Any:
    network = Network(schedule.width, schedule.depth, schedule.bend)
    rate: Any = optax.cosine_decay_schedule(schedule.rate, schedule.steps)
    if schedule.warm > 0.0:
        rising = int(schedule.warm * schedule.steps)
        rate = optax.warmup_cosine_decay_schedule(0.0, schedule.rate, rising, schedule.steps)
    optimiser = optax.adamw(rate, weight_decay=schedule.decay)

    def loss(parameters, rows):
        error = network.apply({"params": parameters}, inputs[rows]) - targets[rows]
        return jnp.mean(optax.losses.huber_loss(error, delta=schedule.delta))

    def member(key):
        first, rest = jax.random.split(key)
        parameters = network.init(first, inputs[:1])["params"]

        def update(carry, key):
            parameters, state = carry
            if chance is None:
                rows = jax.random.randint(key, (schedule.batch,), 0, len(targets))
            else:
                rows = jax.random.categorical(key, chance, shape=(schedule.batch,))
            slope = jax.grad(loss)(parameters, rows)
            change, state = optimiser.update(slope, state, parameters)
            return (optax.apply_updates(parameters, change), state), None

        start = (parameters, optimiser.init(parameters))
        return jax.lax.scan(update, start, jax.random.split(rest, schedule.steps))[0][0]

    return jax.lax.map(member, keys)

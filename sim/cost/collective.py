"""How long the collectives of a step take: a soft minimum over three protocols."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sim.deployment.plan import CollectiveSlots
from sim.hardware.collective_table import SHARPNESS


def soft_min(times_s: Float[Array, "*axes protocol"]) -> Float[Array, "*axes"]:
    r"""$(\sum_p t_p^{-k})^{-1/k}$ with k = `SHARPNESS`: smooth, below the minimum by at most `n ** (-1/k)`.

    **Arguments:**

    - `times_s`: positive times; a protocol that is not used has a huge one (1e6 s).

    **Returns:** seconds; 0 where the smallest time is 0.
    """
    scale = lax.stop_gradient(jnp.min(times_s, axis=-1, keepdims=True))  # powers of seconds leave float32
    safe = jnp.where(scale > 0, scale, 1.0)
    ratio = jnp.where(scale > 0, times_s / safe, 1.0)
    total = jnp.sum(ratio**-SHARPNESS, axis=-1)  # a whole number: two products instead of a general power
    return jnp.where(scale[..., 0] > 0, safe[..., 0] * total ** (-1 / SHARPNESS), 0.0)


def collective_s(
    slots: CollectiveSlots, padded_tokens: Float[Array, "*config"], emitting: Float[Array, "*config"]
) -> Float[Array, "*config collective"]:
    r"""Seconds of one step's collectives by slot.

    One collective over m bytes takes `soft_min(a_p + factor m / bandwidth_p)`; m is the full buffer of one rank
    (the tensor of an all-reduce, the gathered output of an all-gather, the input of a reduce-scatter, all that a
    rank sends in an all-to-all, the message of a send). The slot's time is `count` times that.

    **Arguments:**

    - `slots`: constants by slot, shapes `[*config, collective(, protocol)]`.
    - `padded_tokens`: tokens of the step, for the slots whose `emitting` is 0.
    - `emitting`: rows that need logits, for the slots whose `emitting` is 1.
    """
    rows = slots.emitting * emitting[..., None] + (1.0 - slots.emitting) * padded_tokens[..., None]
    size_bytes = slots.bytes_per_token * rows
    used = slots.bytes_per_s > 0
    bandwidth = jnp.where(used, slots.bytes_per_s, 1.0)
    transfer_s = (slots.factor * size_bytes)[..., None] / bandwidth
    return slots.count * soft_min(jnp.where(used, slots.a_s + transfer_s, 1e6))

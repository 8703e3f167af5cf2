"""How long the collectives of a step take: a soft minimum over three protocols."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sim.cost.slots import slots_first
from sim.deployment.plan import CollectiveSlots
from sim.hardware.collective_table import SHARPNESS


UNUSED_S = 1e6


class CollectiveTerms(NamedTuple):
    """What of the collectives does not depend on the batch; lists have one entry per protocol.

    `times`: collectives of this size per step; `a_s`: latency; `row_s`: one row's traffic. A protocol that is not used
    takes `UNUSED_S`.
    """

    times: Float[Array, "collective *config"]
    emitting: Float[Array, "collective *config"]
    a_s: list[Float[Array, "collective *config"]]
    row_s: list[Float[Array, "collective *config"]]


def collective_terms(slots: CollectiveSlots) -> CollectiveTerms:
    """Constants of all slots; shapes as declared, the slots' axis first."""
    protocols = range(slots.a_s.shape[-1])
    used = slots.bytes_per_s > 0
    a_s = jnp.where(used, slots.a_s, UNUSED_S)
    traffic = (slots.factor * slots.bytes_per_token)[..., None]
    row_s = jnp.where(used, traffic / jnp.where(used, slots.bytes_per_s, 1.0), 0.0)
    return CollectiveTerms(
        times=slots_first(slots.count),
        emitting=slots_first(slots.emitting),
        a_s=[slots_first(a_s[..., protocol]) for protocol in protocols],
        row_s=[slots_first(row_s[..., protocol]) for protocol in protocols],
    )


def soft_min(times_s: Sequence[Float[Array, "*axes"]]) -> Float[Array, "*axes"]:
    r"""$(\sum_p t_p^{-k})^{-1/k}$ with k = `SHARPNESS`: smooth, below the minimum by at most `n ** (-1/k)`.

    **Arguments:**

    - `times_s`: the time of each protocol; one that is not used has a huge one (`UNUSED_S`).

    **Returns:** seconds; 0 where the smallest time is 0.
    """
    scale = lax.stop_gradient(reduce(jnp.minimum, times_s))  # powers of seconds leave float32
    some = scale > 0
    safe = jnp.where(some, scale, 1.0)
    total = sum(((safe / jnp.where(some, time_s, 1.0)) ** SHARPNESS for time_s in times_s), jnp.zeros_like(scale))
    return jnp.where(some, safe * total ** (-1 / SHARPNESS), 0.0)


def collective_s(
    terms: CollectiveTerms, padded_tokens: Float[Array, "*config"], emitting: Float[Array, "*config"]
) -> Float[Array, "collective *config"]:
    r"""Seconds of one step's collectives by slot.

    One collective over m bytes takes `soft_min(a_p + factor m / bandwidth_p)`; m is the full buffer of one rank
    (the tensor of an all-reduce, the gathered output of an all-gather, the input of a reduce-scatter, all that a
    rank sends in an all-to-all, the message of a send). The slot's time is `count` times that.

    **Arguments:**

    - `terms`: from `collective_terms`.
    - `padded_tokens`: tokens of the step, for the slots whose `emitting` is 0.
    - `emitting`: rows that need logits, for the slots whose `emitting` is 1.
    """
    rows = terms.emitting * emitting + (1.0 - terms.emitting) * padded_tokens
    times_s = [a_s + rows * row_s for a_s, row_s in zip(terms.a_s, terms.row_s, strict=True)]
    return terms.times * soft_min(times_s)

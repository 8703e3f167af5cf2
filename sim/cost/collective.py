"""How long the collectives of a step take: a soft minimum over three protocols, made to pass through measured times."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sim.cost.priced import Priced
from sim.cost.slots import slots_first
from sim.deployment.plan import CollectiveSlots
from sim.hardware.collective_table import SHARPNESS


UNUSED_S = 1e6
LEAST_BYTES = 1e-3


class CollectiveTerms(NamedTuple):
    """What of the collectives does not depend on the batch; lists have one entry per protocol.

    `times`: collectives of this size per step; `a_s`: latency; `row_s`: one row's traffic. A protocol that is not used
    takes `UNUSED_S`. `row_bytes`: bytes a rank sends for one row. `edge`, `per_width`, `rise`: the measured points but
    the last, one over the distance to the next, and how much the log ratio grows to there; `log_ratio` at the first.
    """

    times: Float[Array, "collective *config"]
    emitting: Float[Array, "collective *config"]
    a_s: list[Float[Array, "collective *config"]]
    row_s: list[Float[Array, "collective *config"]]
    row_bytes: Float[Array, "collective *config"]
    edge: Float[Array, "point collective *config"]
    per_width: Float[Array, "point collective *config"]
    rise: Float[Array, "point collective *config"]
    log_ratio: Float[Array, "collective *config"]
    rel_error: Float[Array, "collective *config"]
    estimated: Float[Array, "collective *config"]
    largest: Float[Array, "collective *config"]


def collective_terms(slots: CollectiveSlots) -> CollectiveTerms:
    """Constants of all slots; shapes as declared, the slots' axis first, points before it."""
    protocols = range(slots.a_s.shape[-1])
    used = slots.bytes_per_s > 0
    a_s = jnp.where(used, slots.a_s, UNUSED_S)
    row_bytes = slots.factor * slots.bytes_per_token
    row_s = jnp.where(used, row_bytes[..., None] / jnp.where(used, slots.bytes_per_s, 1.0), 0.0)
    points, ratios = (jnp.moveaxis(leaf, (-1, -2), (0, 1)) for leaf in (slots.log_sent, slots.log_ratio))
    return CollectiveTerms(
        times=slots_first(slots.count),
        emitting=slots_first(slots.emitting),
        a_s=[slots_first(a_s[..., protocol]) for protocol in protocols],
        row_s=[slots_first(row_s[..., protocol]) for protocol in protocols],
        row_bytes=slots_first(row_bytes),
        edge=points[:-1],
        per_width=1.0 / jnp.diff(points, axis=0),
        rise=jnp.diff(ratios, axis=0),
        log_ratio=ratios[0],
        rel_error=slots_first(slots.rel_error),
        estimated=slots_first(slots.estimated),
        largest=slots_first(slots.largest),
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

    One collective over m bytes takes `soft_min(a_p + factor m / bandwidth_p) exp(ratio(log(factor m)))`; m is the full
    buffer of one rank (the tensor of an all-reduce, the gathered output of an all-gather, the input of a
    reduce-scatter, all that a rank sends in an all-to-all, the message of a send). The ratio is linear between measured
    points and constant beyond them. The slot's time is `count` times that.

    **Arguments:**

    - `terms`: from `collective_terms`.
    - `padded_tokens`: tokens of the step, for the slots whose `emitting` is 0.
    - `emitting`: rows that need logits, for the slots whose `emitting` is 1.
    """
    rows = terms.emitting * emitting + (1.0 - terms.emitting) * padded_tokens
    times_s = [a_s + rows * row_s for a_s, row_s in zip(terms.a_s, terms.row_s, strict=True)]
    sent = jnp.log(jnp.maximum(rows * terms.row_bytes, LEAST_BYTES))
    passed = jnp.clip((sent - terms.edge) * terms.per_width, 0.0, 1.0)
    ratio = terms.log_ratio + jnp.sum(passed * terms.rise, axis=0)
    return terms.times * soft_min(times_s) * jnp.exp(ratio)


def collective_price(
    terms: CollectiveTerms, padded_tokens: Float[Array, "*config"], emitting: Float[Array, "*config"]
) -> Priced:
    """As `collective_s`, 0 where a slot has no rows, with the error to expect and what lies beyond measurements."""
    rows = terms.emitting * emitting + (1.0 - terms.emitting) * padded_tokens
    seconds = jnp.where(rows > 0.0, collective_s(terms, padded_tokens, emitting), 0.0)
    beyond = jnp.where(rows * terms.row_bytes > terms.largest, 1.0, terms.estimated)
    return Priced(seconds, seconds * terms.rel_error, seconds * beyond)

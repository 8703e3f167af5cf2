"""Kernels that only move activations: norms, rotary embedding, activation, cache write, quantisation, embedding.

One kernel over T tokens takes `floor + T bytes / rate`. What it reads was just written by the kernel before, so the
rate is the last-level cache's while input and output fit there: a share `f^4/(1 + f^4)`, f = T bytes/(share cache), of
the bytes moves at the memory's rate, the rest at the cache's.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.kernel import TokenKernel
from sim.cost.priced import Priced, uncalibrated
from sim.cost.slots import slots_first
from sim.deployment.plan import DeviceArrays, ElementwiseSlots


class ElementwiseConstants(TokenKernel):
    """Shortest elementwise kernel, and the share of the cache it can fill. Source: `analytic.toml`."""

    floor_s: Float[Array, ""]
    cache_share: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, slots: ElementwiseSlots, device: DeviceArrays) -> "ElementwiseTerms":
        """See `elementwise_terms`."""
        return elementwise_terms(slots, device, self)

    def price(self, terms: "ElementwiseTerms", rows: Float[Array, "*config"]) -> Priced:
        """All kernels of each slot, `[elementwise, *config]`, over `rows` tokens."""
        return uncalibrated(elementwise_s(terms, rows), self.rel_error)


class MoveTerms(NamedTuple):
    """Moving activations on one device: one over what the cache serves, seconds per byte in it, and beyond it more."""

    per_capacity: Float[Array, "*config"]
    cached_s: Float[Array, "*config"]
    missed_s: Float[Array, "*config"]


class ElementwiseTerms(NamedTuple):
    """What of the elementwise kernels does not depend on the batch; `times`: kernels of this size per step."""

    times: Float[Array, "elementwise *config"]
    bytes_per_token: Float[Array, "elementwise *config"]
    floor_s: Float[Array, ""]
    move: MoveTerms


def move_terms(device: DeviceArrays, cache_share: Float[Array, ""]) -> MoveTerms:
    """Rates of cache and memory of each configuration; the cache serves `cache_share` of its size."""
    cached_s = 1.0 / jnp.maximum(device.cache_bytes_per_s, device.memory_bytes_per_s)
    return MoveTerms(
        per_capacity=1.0 / jnp.maximum(cache_share * device.cache_bytes, 1.0),
        cached_s=cached_s,
        missed_s=1.0 / device.memory_bytes_per_s - cached_s,
    )


def moved_s(terms: MoveTerms, moved_bytes: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Seconds to move one kernel's input and output of `moved_bytes`."""
    fill = jnp.minimum(moved_bytes * terms.per_capacity, 1e4)
    square = fill * fill
    fourth = square * square
    return moved_bytes * (terms.cached_s + terms.missed_s * (fourth / (1.0 + fourth)))


def elementwise_terms(
    slots: ElementwiseSlots, device: DeviceArrays, constants: ElementwiseConstants
) -> ElementwiseTerms:
    """Constants of all slots; shapes as declared, the slots' last axis first."""
    slots = slots_first(slots)
    return ElementwiseTerms(
        slots.count, slots.bytes_per_token, constants.floor_s, move_terms(device, constants.cache_share)
    )


def elementwise_s(terms: ElementwiseTerms, tokens: Float[Array, "*config"]) -> Float[Array, "elementwise *config"]:
    """Seconds of all kernels of each slot over `tokens` tokens; 0 for no tokens."""
    seconds = terms.floor_s + moved_s(terms.move, tokens * terms.bytes_per_token)
    return terms.times * jnp.where(tokens > 0.0, seconds, 0.0)

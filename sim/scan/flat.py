"""Reading and writing one element per lane of flat arrays, and each lane's arithmetic of blocks."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float64, Int32, Int64


NO_CONTEXT = 2**31 - 1
"""A number of tokens that never occurs."""


class Places(NamedTuple):
    """Where each lane's part of the flat arrays begins, and the arithmetic of its blocks."""

    lane: Int32[Array, "lane"]
    slot: Int32[Array, "lane"]
    ring: Int32[Array, "lane"]
    phase: Int32[Array, "lane"]
    row: Int32[Array, "lane"]
    block_size: Int32[Array, "lane"]
    per_block: Float64[Array, "lane"]

    def full_blocks(self, tokens):
        """floor(tokens / block_size); the half keeps the product away from the integers, so truncation is exact."""
        return ((as_real(tokens) + 0.5) * self.per_block).astype(jnp.int32)

    def blocks(self, tokens):
        """ceil(tokens / block_size)."""
        return self.full_blocks(tokens + self.block_size - 1)

    def phase_of(self, held, now):
        """Phase of the steps in which a decode takes a block that holds `held` tokens at phase `now`."""
        phase = now - held + self.full_blocks(held) * self.block_size
        return jnp.where(phase < 0, phase + self.block_size, phase)


def as_int(mask: Array) -> Int32[Array, "lane"]:
    """0 or 1."""
    return mask.astype(jnp.int32)


def as_real(count: Array) -> Float64[Array, "lane"]:
    """The same number in float64."""
    return count.astype(jnp.float64)


def high(pair: Int64[Array, "lane"]) -> Int32[Array, "lane"]:
    """The upper half of a pair of 32-bit integers."""
    return (pair >> 32).astype(jnp.int32)


def low(pair: Int64[Array, "lane"]) -> Int32[Array, "lane"]:
    """The lower half of a pair of 32-bit integers."""
    return pair.astype(jnp.int32)


def take(array: Array, *index: Array) -> Array:
    """One element per lane; small integers as int32."""
    out = array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return out.astype(jnp.int32) if out.dtype == jnp.int16 else out


def put(flat: Array, index: Array, value: Array, where: Array) -> Array:
    """Write one element per lane where asked."""
    index = jnp.where(where, index, flat.shape[0])
    return flat.at[index].set(value.astype(flat.dtype), mode="drop", wrap_negative_indices=False)


def add_to(flat: Array, index: Array, value: int, where: Array) -> Array:
    """Add to one element per lane where asked."""
    index = jnp.where(where, index, flat.shape[0])
    return flat.at[index].add(jnp.asarray(value, flat.dtype), mode="drop", wrap_negative_indices=False)


def put_column(key: Array, slot: Array, lane: Array, value, where: Array, after: Array) -> Array:
    """Write one slot per lane where asked, after the reads of `key` that gave `after`.

    The compiler copies all of `key` in each iteration if a read and the write are not ordered by their data, so
    the index is made to depend on `after`, by a comparison that never holds.
    """
    slot = jnp.where(where, slot, key.shape[0]) + as_int(after == NO_CONTEXT)
    return key.at[slot, lane].set(value, mode="drop", wrap_negative_indices=False)

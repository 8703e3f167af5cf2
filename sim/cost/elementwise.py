"""Kernels that only move activations: norms, rotary embedding, activation, cache write, quantisation, embedding.

One kernel over T tokens takes `floor + T bytes / rate`; what it reads was just written by the kernel before, so the rate
is the last-level cache's while input and output fit there: a share `1/(1 + (T bytes/(share cache))^4)` of the bytes
moves at the cache's rate, the rest at the memory's.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.deployment.plan import DeviceArrays, ElementwiseSlots


class ElementwiseConstants(eqx.Module):
    """Shortest elementwise kernel, and the share of the cache it can fill. Source: `analytic.toml`."""

    floor_s: Float[Array, ""]
    cache_share: Float[Array, ""]


def moved_s(
    moved_bytes: Float[Array, "*#shape"], device: DeviceArrays, constants: ElementwiseConstants
) -> Float[Array, "*shape"]:
    """Seconds to move a kernel's working set of `moved_bytes` through cache or memory; device leaves `[..., 1]`."""
    fill = moved_bytes / jnp.maximum(constants.cache_share * device.cache_bytes[..., None], 1.0)
    square = jnp.minimum(fill, 1e4) ** 2
    cached = 1.0 / (1.0 + square * square)
    cache_rate = jnp.maximum(device.cache_bytes_per_s, device.memory_bytes_per_s)[..., None]
    return moved_bytes * (cached / cache_rate + (1.0 - cached) / device.memory_bytes_per_s[..., None])


def elementwise_s(
    tokens: Float[Array, "*config"], slots: ElementwiseSlots, device: DeviceArrays, constants: ElementwiseConstants
) -> Float[Array, "*config elementwise"]:
    """Seconds of all kernels of each slot over `tokens` tokens, `[..., elementwise]`; 0 for no tokens."""
    rows = tokens[..., None]
    seconds = constants.floor_s + moved_s(rows * slots.bytes_per_token, device, constants)
    return slots.count * jnp.where(rows > 0.0, seconds, 0.0)

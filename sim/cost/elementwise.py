"""Kernels that only move activations: norms, rotary embedding, activation, cache write, quantisation, embedding.

One kernel over T tokens takes `floor + T bytes / rate`. What it reads was just written by the kernel before, so the
rate is the last-level cache's while input and output fit there: a share `f^4/(1 + f^4)`, f = T bytes/(share cache), of
the bytes moves at the memory's rate, the rest at the cache's.
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
    share = 1.0 / jnp.maximum(constants.cache_share * device.cache_bytes, 1.0)
    per_memory = 1.0 / device.memory_bytes_per_s
    per_cache = 1.0 / jnp.maximum(device.cache_bytes_per_s, device.memory_bytes_per_s)
    fill = jnp.minimum(moved_bytes * share[..., None], 1e4)
    square = fill * fill
    missed = square * square / (1.0 + square * square)
    return moved_bytes * (per_cache[..., None] + missed * (per_memory - per_cache)[..., None])


def elementwise_s(
    tokens: Float[Array, "*config"], slots: ElementwiseSlots, device: DeviceArrays, constants: ElementwiseConstants
) -> Float[Array, "*config elementwise"]:
    """Seconds of all kernels of each slot over `tokens` tokens, `[..., elementwise]`; 0 for no tokens."""
    rows = tokens[..., None]
    seconds = constants.floor_s + moved_s(rows * slots.bytes_per_token, device, constants)
    return slots.count * jnp.where(rows > 0.0, seconds, 0.0)

"""Routed experts of one rank as grouped products.

T tokens visit k of E experts each, evenly: `A = local (1 - (1 - k/E)^T)` experts are active and get `R = T k local/E`
rows, padded to tiles: P = max(A tile, R + A tile/2), half a tile per expert on average. With gm matrices of H x I each,

    t = kernels floor + (products^4 + stream^4)^(1/4) + around
    products = min over tiles of 2 P gm H I/(share rate)
    stream = (A gm H I e + 2 R (2 H + (gm + 1) I))/rate: weights of active experts, activations of the rank's rows
    around = 4 T k (gm I + H) bytes through cache or memory: activation and weighted sum

The last term runs over all T k rows on every rank, also under expert parallelism.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.elementwise import ElementwiseConstants, moved_s
from sim.cost.gemm import OUTPUT_BYTES
from sim.cost.soft import soft_maximum
from sim.deployment.plan import DeviceArrays, MoeSlots


class MoeConstants(eqx.Module):
    """Row tiles of grouped products with their share of the ceiling, and kernels per layer. Source: `analytic.toml`."""

    tile_rows: Float[Array, " tile"]
    tile_share: Float[Array, " tile"]
    kernels: Float[Array, ""]


def active_experts(tokens: Float[Array, "*config"], slots: MoeSlots) -> Float[Array, "*config moe"]:
    """Expected local experts that at least one of `tokens` tokens visits: `local (1 - (1 - k/E)^T)`."""
    missed = jnp.clip(1.0 - slots.top_k / jnp.maximum(slots.experts, 1.0), 1e-9, 1.0)
    return slots.local_experts * -jnp.expm1(tokens[..., None] * jnp.log(missed))


def moe_bytes(tokens: Float[Array, "*config"], slots: MoeSlots) -> Float[Array, "*config moe"]:
    """Bytes one layer's grouped products move: weights of active experts, activations of the rank's rows."""
    rows = tokens[..., None] * slots.top_k * slots.local_experts / jnp.maximum(slots.experts, 1.0)
    weights = active_experts(tokens, slots) * slots.matrices * slots.hidden * slots.inter
    return weights * slots.weight_bytes_per_param + rows * OUTPUT_BYTES * (
        2.0 * slots.hidden + (slots.matrices + 1.0) * slots.inter
    )


def moe_s(
    tokens: Float[Array, "*config"],
    slots: MoeSlots,
    device: DeviceArrays,
    constants: MoeConstants,
    elementwise: ElementwiseConstants,
) -> Float[Array, "*config moe"]:
    """Seconds of all layers of each slot over `tokens` tokens, `[..., moe]`; 0 for no tokens."""
    stream = device.memory_bytes_per_s[..., None]
    active = active_experts(tokens, slots)
    routed = tokens[..., None] * slots.top_k
    rows = routed * slots.local_experts / jnp.maximum(slots.experts, 1.0)
    row_flops = 2.0 * slots.matrices * slots.hidden * slots.inter
    per_share = 1.0 / constants.tile_share
    padded = jnp.full_like(active, jnp.inf)
    for tile in range(constants.tile_rows.shape[0]):
        size = active * constants.tile_rows[tile]
        padded = jnp.minimum(padded, jnp.maximum(size, rows + 0.5 * size) * per_share[tile])
    compute_s = padded * row_flops / slots.flops_per_s
    products_s = soft_maximum(jnp, compute_s, moe_bytes(tokens, slots) / stream)
    around = 2.0 * routed * OUTPUT_BYTES * (slots.matrices * slots.inter + slots.hidden)
    seconds = constants.kernels * device.kernel_floor_s[..., None] + products_s + moved_s(around, device, elementwise)
    return slots.count * jnp.where(tokens[..., None] > 0.0, seconds, 0.0)

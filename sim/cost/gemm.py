"""Dense products `[m, k] x [k, n]` by tiles and waves.

For a tile of tm x tn outputs and k split in s parts, one block takes

    block = prologue + epilogue tm tn/16384 + max(2 tm tn (k/s) units/(share rate), (tm e_in + tn e_w)(k/s)/unit stream)

(e: bytes per element), and all of them `ceil(blocks/units)` waves, blocks = ceil(m/tm) ceil(n/tn) s. The library's
choice is the least over tiles; s fills the units where blocks alone do not, and costs a reduction. With the memory
roofline (weights, input, output at the achieved stream rate; the last-level cache is ignored) in a soft maximum of
power 4, and the kernel floor: `t = floor + (waves^4 + stream^4)^(1/4)`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.soft import soft_maximum
from sim.deployment.plan import DeviceArrays, GemmSlots


OUTPUT_BYTES = 2.0
TILE_OUTPUTS = 16384.0


class GemmConstants(eqx.Module):
    """Shape and rate of the tiles a library picks from, and the fixed times of a block. Source: `analytic.toml`."""

    tile_rows: Float[Array, " tile"]
    tile_columns: Float[Array, " tile"]
    tile_share: Float[Array, " tile"]
    prologue_s: Float[Array, ""]
    epilogue_s: Float[Array, ""]
    split_s: Float[Array, ""]
    max_split: Float[Array, ""]


def gemm_bytes(rows: Float[Array, "*#shape"], slots: GemmSlots) -> Float[Array, "*shape"]:
    """Bytes of one product with `rows` rows: weights, input, output."""
    return slots.n * slots.k * slots.weight_bytes_per_param + rows * (
        slots.k * slots.input_bytes + slots.n * OUTPUT_BYTES
    )


def gemm_s(
    rows: Float[Array, "*#shape"], slots: GemmSlots, device: DeviceArrays, constants: GemmConstants
) -> Float[Array, "*shape"]:
    """Seconds of one product of each slot, `[..., gemm]`; 0 where `rows` is 0.

    **Arguments:**

    - `rows`: m, broadcast against the slots `[..., gemm]`.
    - `slots`, `device`, `constants`: shapes as declared.
    """
    units = device.compute_units[..., None]
    per_unit, per_stream = 1.0 / units, 1.0 / device.memory_bytes_per_s[..., None]
    per_rate = units / slots.flops_per_s
    per_unit_stream = 1.0 / device.unit_stream_bytes_per_s[..., None]
    n, k = jnp.maximum(slots.n, 1.0), jnp.maximum(slots.k, 1.0)
    m = jnp.maximum(rows, 1.0)
    partial_s = 4.0 * m * n * per_stream
    area = constants.tile_rows * constants.tile_columns
    per_row, per_column = 1.0 / constants.tile_rows, 1.0 / constants.tile_columns
    flops = 2.0 * area / constants.tile_share
    fixed_s = constants.prologue_s + constants.epilogue_s / TILE_OUTPUTS * area
    best = jnp.full_like(m * n, jnp.inf)
    for tile in range(constants.tile_rows.shape[0]):
        blocks = jnp.ceil(m * per_row[tile]) * jnp.ceil(n * per_column[tile])
        split = jnp.clip(jnp.floor(units / blocks), 1.0, constants.max_split)
        # half a block less: whole waves stay whole whatever the rounding of 1 / units
        waves = jnp.ceil((blocks * split - 0.5) * per_unit)
        loaded = (
            constants.tile_rows[tile] * slots.input_bytes + constants.tile_columns[tile] * slots.weight_bytes_per_param
        )
        key_s = jnp.maximum(flops[tile] * per_rate, loaded * per_unit_stream)
        reduce_s = jnp.where(split > 1.0, constants.split_s + partial_s * split, 0.0)
        total = waves * (fixed_s[tile] + key_s * k / split) + reduce_s
        best = jnp.minimum(best, total)
    seconds = device.kernel_floor_s[..., None] + soft_maximum(jnp, best, gemm_bytes(rows, slots) * per_stream)
    return jnp.where(rows > 0.0, seconds, 0.0)

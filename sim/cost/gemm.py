"""Dense products `[m, k] x [k, n]` by tiles and waves.

For a tile of tm x tn outputs and k split in s parts, one block takes

    block = prologue + epilogue tm tn/16384 + max(2 tm tn (k/s) units/(share rate), (tm e_in + tn e_w)(k/s)/unit stream)

(e: bytes per element), and all of them `ceil(blocks/units)` waves, blocks = ceil(m/tm) ceil(n/tn) s. The library's
choice is the least over tiles; s fills the units where blocks alone do not, and costs a reduction. With the memory
roofline (weights, input, output at the achieved stream rate; the last-level cache is ignored) in a soft maximum of
power 4, and the kernel floor: `t = floor + (waves^4 + stream^4)^(1/4)`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.kernel import TokenKernel
from sim.cost.priced import Priced, uncalibrated
from sim.cost.slots import slots_first
from sim.cost.soft import soft_maximum
from sim.cost.work import OUTPUT_BYTES
from sim.deployment.plan import DeviceArrays, GemmSlots


TILE_OUTPUTS = 16384.0


class GemmConstants(TokenKernel):
    """Shape and rate of the tiles a library picks from, and the fixed times of a block. Source: `analytic.toml`."""

    tile_rows: Float[Array, " tile"]
    tile_columns: Float[Array, " tile"]
    tile_share: Float[Array, " tile"]
    prologue_s: Float[Array, ""]
    epilogue_s: Float[Array, ""]
    split_s: Float[Array, ""]
    max_split: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, slots: GemmSlots, device: DeviceArrays) -> "GemmTerms":
        """See `gemm_terms`."""
        return gemm_terms(slots, device, self)

    def price(self, terms: "GemmTerms", rows: Float[Array, "gemm *config"]) -> Priced:
        """All products of each slot; `rows`: the m of each."""
        return uncalibrated(terms.times * gemm_s(terms, rows), self.rel_error)


class GemmTerms(NamedTuple):
    """What of the products does not depend on the batch.

    `times`: products of this shape per step. Lists have one entry per tile: `per_row` tiles of one row, `fixed_s` of a
    block, and by slot `columns` tiles side by side and `depth_s`, a block's time over all of k. `reduce_s`: a split
    reduction of one row and part. `weight_stream_s`, `row_stream_s`: memory time of the weights, and of one row's
    input and output.
    """

    times: Float[Array, "gemm *config"]
    floor_s: Float[Array, "*config"]
    units: Float[Array, "*config"]
    per_unit: Float[Array, "*config"]
    per_row: list[Float[Array, ""]]
    fixed_s: list[Float[Array, ""]]
    columns: list[Float[Array, "gemm *config"]]
    depth_s: list[Float[Array, "gemm *config"]]
    split_s: Float[Array, ""]
    max_split: Float[Array, ""]
    reduce_s: Float[Array, "gemm *config"]
    weight_stream_s: Float[Array, "gemm *config"]
    row_stream_s: Float[Array, "gemm *config"]


def gemm_terms(slots: GemmSlots, device: DeviceArrays, constants: GemmConstants) -> GemmTerms:
    """Constants of all slots; shapes as declared, the slots' last axis first."""
    slots = slots_first(slots)
    per_stream, per_unit = 1.0 / device.memory_bytes_per_s, 1.0 / device.compute_units
    per_rate = device.compute_units / slots.flops_per_s
    per_unit_stream = 1.0 / device.unit_stream_bytes_per_s
    n, k = jnp.maximum(slots.n, 1.0), jnp.maximum(slots.k, 1.0)
    area = constants.tile_rows * constants.tile_columns
    tiles = range(constants.tile_rows.shape[0])

    def depth_s(tile: int) -> Float[Array, "gemm *config"]:
        flops = 2.0 * area[tile] / constants.tile_share[tile]
        loaded = (
            constants.tile_rows[tile] * slots.input_bytes + constants.tile_columns[tile] * slots.weight_bytes_per_param
        )
        return k * jnp.maximum(flops * per_rate, loaded * per_unit_stream)

    return GemmTerms(
        times=slots.count,
        floor_s=device.kernel_floor_s,
        units=device.compute_units,
        per_unit=per_unit,
        per_row=[1.0 / constants.tile_rows[tile] for tile in tiles],
        fixed_s=[constants.prologue_s + constants.epilogue_s / TILE_OUTPUTS * area[tile] for tile in tiles],
        columns=[jnp.ceil(n / constants.tile_columns[tile]) for tile in tiles],
        depth_s=[depth_s(tile) for tile in tiles],
        split_s=constants.split_s,
        max_split=constants.max_split,
        reduce_s=4.0 * n * per_stream,
        weight_stream_s=slots.n * slots.k * slots.weight_bytes_per_param * per_stream,
        row_stream_s=(slots.k * slots.input_bytes + slots.n * OUTPUT_BYTES) * per_stream,
    )


def gemm_s(terms: GemmTerms, rows: Float[Array, "gemm *config"]) -> Float[Array, "gemm *config"]:
    """Seconds of one product of each slot; 0 where `rows`, the m of each slot, is 0."""
    m = jnp.maximum(rows, 1.0)
    part_s = m * terms.reduce_s
    best = jnp.full_like(part_s, jnp.inf)
    for per_row, fixed_s, columns, depth_s in zip(
        terms.per_row, terms.fixed_s, terms.columns, terms.depth_s, strict=True
    ):
        blocks = jnp.ceil(m * per_row) * columns
        split = jnp.clip(jnp.floor(terms.units / blocks), 1.0, terms.max_split)
        # half a block less: whole waves stay whole whatever the rounding of 1 / units
        waves = jnp.ceil((blocks * split - 0.5) * terms.per_unit)
        reduction_s = jnp.where(split > 1.0, terms.split_s + part_s * split, 0.0)
        best = jnp.minimum(best, waves * (fixed_s + depth_s / split) + reduction_s)
    seconds = terms.floor_s + soft_maximum(jnp, best, terms.weight_stream_s + m * terms.row_stream_s)
    return jnp.where(rows > 0.0, seconds, 0.0)

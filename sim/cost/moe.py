"""Routed experts of one rank as grouped products.

T tokens visit k of E experts each, evenly: `A = local (1 - (1 - k/E)^T)` experts are active and get `R = T k local/E`
rows, padded to tiles: P = max(A tile, R + A tile/2), half a tile per expert on average. With gm matrices of H x I each,

    t = kernels floor + (products^4 + stream^4)^(1/4) + around
    products = min over tiles of 2 P gm H I/(share rate)
    stream = (A gm H I e + 2 R (2 H + (gm + 1) I))/rate: weights of active experts, activations of the rank's rows
    around = 4 T k (gm I + H) bytes through cache or memory: activation and weighted sum

The last term runs over all T k rows on every rank, also under expert parallelism.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.elementwise import MoveTerms, move_terms, moved_s
from sim.cost.kernel import ExpertKernel
from sim.cost.priced import Priced, uncalibrated
from sim.cost.slots import slots_first
from sim.cost.soft import soft_maximum
from sim.cost.work import OUTPUT_BYTES, active_experts
from sim.deployment.plan import DeviceArrays, MoeSlots


class MoeConstants(ExpertKernel):
    """Row tiles of grouped products with their share of the ceiling, and kernels per layer. Source: `analytic.toml`."""

    tile_rows: Float[Array, " tile"]
    tile_share: Float[Array, " tile"]
    kernels: Float[Array, ""]
    cache_share: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, slots: MoeSlots, device: DeviceArrays) -> "MoeTerms":
        """See `moe_terms`."""
        return moe_terms(slots, device, self)

    def price(self, terms: "MoeTerms", rows: Float[Array, "*config"]) -> Priced:
        """All layers of each slot, `[moe, *config]`, over `rows` tokens."""
        return uncalibrated(moe_s(terms, rows), self.rel_error)

    def price_loads(
        self,
        terms: "MoeTerms",
        tokens: Float[Array, "*config"],
        rows: Float[Array, "#moe *config"],
        active: Float[Array, "#moe *config"],
    ) -> Priced:
        """The same on a rank of which `active` experts get `rows` rows."""
        return uncalibrated(loaded_s(terms, tokens, rows, active), self.rel_error)


class MoeTerms(NamedTuple):
    """What of the routed experts does not depend on the batch.

    `times`: layers. `log_missed`: log(1 - k/E). Lists have one entry per tile: its rows, and one over its share.
    `row_s`: one padded row at the ceiling; `expert_stream_s`, `row_stream_s`: memory time of one expert's weights, and
    of one row.
    """

    times: Float[Array, "moe *config"]
    local_experts: Float[Array, "moe *config"]
    log_missed: Float[Array, "moe *config"]
    rows_per_token: Float[Array, "moe *config"]
    floor_s: Float[Array, "*config"]
    tile_rows: list[Float[Array, ""]]
    per_share: list[Float[Array, ""]]
    row_s: Float[Array, "moe *config"]
    expert_stream_s: Float[Array, "moe *config"]
    row_stream_s: Float[Array, "moe *config"]
    around_bytes: Float[Array, "moe *config"]
    move: MoveTerms


def moe_terms(slots: MoeSlots, device: DeviceArrays, constants: MoeConstants) -> MoeTerms:
    """Constants of all slots; shapes as declared, the slots' last axis first."""
    slots = slots_first(slots)
    visited = slots.top_k / jnp.maximum(slots.experts, 1.0)
    weights = slots.matrices * slots.hidden * slots.inter
    per_stream = 1.0 / device.memory_bytes_per_s
    tiles = range(constants.tile_rows.shape[0])
    return MoeTerms(
        times=slots.count,
        local_experts=slots.local_experts,
        log_missed=jnp.log(jnp.clip(1.0 - visited, 1e-9, 1.0)),
        rows_per_token=visited * slots.local_experts,
        floor_s=constants.kernels * device.kernel_floor_s,
        tile_rows=[constants.tile_rows[tile] for tile in tiles],
        per_share=[1.0 / constants.tile_share[tile] for tile in tiles],
        row_s=2.0 * weights / slots.flops_per_s,
        expert_stream_s=weights * slots.weight_bytes_per_param * per_stream,
        row_stream_s=OUTPUT_BYTES * (2.0 * slots.hidden + (slots.matrices + 1.0) * slots.inter) * per_stream,
        around_bytes=2.0 * slots.top_k * OUTPUT_BYTES * (slots.matrices * slots.inter + slots.hidden),
        move=move_terms(device, constants.cache_share),
    )


def moe_s(terms: MoeTerms, tokens: Float[Array, "*config"]) -> Float[Array, "moe *config"]:
    """Seconds of all layers of each slot over `tokens` tokens; 0 for no tokens."""
    active = active_experts(terms.local_experts, terms.log_missed, tokens)
    return loaded_s(terms, tokens, tokens * terms.rows_per_token, active)


def loaded_s(
    terms: MoeTerms,
    tokens: Float[Array, "*config"],
    rows: Float[Array, "#moe *config"],
    active: Float[Array, "#moe *config"],
) -> Float[Array, "moe *config"]:
    """Seconds of all layers of each slot on a rank of which `active` experts get `rows` rows; 0 for no tokens."""
    padded = jnp.full_like(active, jnp.inf)
    for tile_rows, per_share in zip(terms.tile_rows, terms.per_share, strict=True):
        size = active * tile_rows
        padded = jnp.minimum(padded, jnp.maximum(size, rows + 0.5 * size) * per_share)
    stream_s = active * terms.expert_stream_s + rows * terms.row_stream_s
    products_s = soft_maximum(jnp, padded * terms.row_s, stream_s)
    seconds = terms.floor_s + products_s + moved_s(terms.move, tokens * terms.around_bytes)
    return terms.times * jnp.where(tokens > 0.0, seconds, 0.0)

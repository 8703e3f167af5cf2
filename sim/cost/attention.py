"""Attention and state layers: from a plan's slots to the constants of the lengths' closed form (`sim.cost.lengths`).

A decode block holds the query heads of one KV head, padded to 64 rows; it reads a key in
`chain_s = max(2 rows (qk + v) units/rate, bytes/unit stream)`, and all blocks together stream the cache at
`token_s = (stream^4 + compute^4)^(1/4)` per token. A prefill block holds `tile_rows` query rows. Keys are stepped
through in blocks of 128, of which the last is half used on average.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from sim.cost.lengths import (
    AttentionTerms,
    DecodeTerms,
    LengthTerms,
    PrefillTerms,
    RecurrentTerms,
    windowed_chunk,
    windowed_rows,
)
from sim.cost.soft import soft_maximum
from sim.cost.stats import BatchStats
from sim.deployment.plan import UNLIMITED, AttentionSlots, DeviceArrays, PlanArrays, RecurrentSlots


ACTIVATION_BYTES = 2.0


class AttentionConstants(eqx.Module):
    """Floors and tiles of attention kernels. Source: `analytic.toml`."""

    block_keys: Float[Array, ""]
    block_s: Float[Array, ""]
    empty_block_s: Float[Array, ""]
    decode_floor_s: Float[Array, ""]
    several_s: Float[Array, ""]
    split_s: Float[Array, ""]
    prefill_floor_s: Float[Array, ""]
    decode_block_s: Float[Array, ""]
    decode_tile_rows: Float[Array, ""]
    split_blocks_per_unit: Float[Array, ""]


class RecurrentConstants(eqx.Module):
    """Kernels per state layer, and the share of the matrix ceiling its scan reaches. Source: `analytic.toml`."""

    kernels: Float[Array, ""]
    share: Float[Array, ""]


def attention_terms(
    xp: Any, slots: AttentionSlots, device: DeviceArrays, constants: AttentionConstants
) -> AttentionTerms:
    """Closed-form constants of all slots at once, leaves `[..., kind]`. `xp`: `numpy` or `jax.numpy`."""
    units = device.compute_units[..., None]
    stream = device.memory_bytes_per_s[..., None]
    rate = slots.flops_per_s
    kv_heads = xp.maximum(slots.kv_heads, 1.0)
    group = xp.maximum(slots.q_heads / kv_heads, 1.0)
    dims = slots.qk_dim + slots.v_dim

    row_blocks = kv_heads * xp.ceil(group / constants.decode_tile_rows)
    block_flops = 2.0 * constants.decode_tile_rows * dims
    chain_compute_s = block_flops * units / rate
    chain_load_s = slots.kv_bytes_per_token / kv_heads / device.unit_stream_bytes_per_s[..., None]
    stream_s = slots.kv_bytes_per_token / stream
    compute_s = row_blocks * block_flops / rate

    packed_group = 1.0 + slots.packed * (group - 1.0)
    key_s = 2.0 * slots.tile_rows * slots.prefill_dim * units / rate
    expanded_bytes = xp.where(
        slots.context_flops > 0.0, 2.0 * ACTIVATION_BYTES * slots.q_heads * slots.prefill_dim, 0.0
    )
    heads = xp.maximum(slots.q_heads / packed_group, 1.0)
    rereads = (1.0 - slots.packed) * (group - 1.0)
    same = xp.ones_like(slots.count)
    return AttentionTerms(
        layers=slots.count,
        decode=DecodeTerms(
            floor_s=constants.decode_floor_s * same,
            several_s=constants.several_s * same,
            split_s=constants.split_s * same,
            row_s=constants.decode_block_s * row_blocks / units,
            token_s=soft_maximum(xp, stream_s, compute_s),
            chain_s=xp.maximum(chain_compute_s, chain_load_s),
            split_share=row_blocks / (constants.split_blocks_per_unit * units),
        ),
        prefill=PrefillTerms(
            floor_s=constants.prefill_floor_s * same,
            tiles_per_token=packed_group / slots.tile_rows,
            heads=heads,
            units=units * same,
            key_s=key_s,
            block_s=constants.block_s + 0.5 * constants.block_keys * key_s,
            empty_s=constants.empty_block_s * slots.wave * heads / units,
            wave=slots.wave,
            kv_token_s=stream_s,
            context_token_s=slots.context_flops / slots.flops_per_s + expanded_bytes / stream,
            rereads=rereads,
            rereads_per_row=rereads / units,
            cache_share=slots.kv_bytes_per_token / xp.maximum(device.cache_bytes[..., None] * kv_heads, 1.0),
            joint=slots.joint,
        ),
        window=slots.window,
        chunked=slots.chunked,
    )


def recurrent_terms(
    xp: Any, slots: RecurrentSlots, device: DeviceArrays, constants: RecurrentConstants, floor_s: Float[Array, ""]
) -> RecurrentTerms:
    """Closed-form constants of all state slots, leaves `[..., recurrent]`: a state is read and written per sequence."""
    return RecurrentTerms(
        layers=slots.count,
        floor_s=constants.kernels * floor_s * xp.ones_like(slots.count),
        sequence_s=2.0 * slots.state_bytes / device.memory_bytes_per_s[..., None],
        token_s=slots.flops_per_token / (constants.share * slots.flops_per_s),
    )


def used_terms(attention: AttentionTerms, recurrent: RecurrentTerms) -> LengthTerms:
    """The kinds with any layer of one plan (leaves `[kind]`, numpy), as Python floats; no window: None."""

    def row(terms, index: int):
        return jax.tree.map(lambda leaf: float(leaf[index]), terms)

    kinds = [row(attention, index) for index in np.flatnonzero(attention.layers).tolist()]
    states = [row(recurrent, index) for index in np.flatnonzero(recurrent.layers).tolist()]
    return LengthTerms(
        tuple(kind if kind.window < UNLIMITED else kind._replace(window=None, chunked=None) for kind in kinds),
        tuple(states),
    )


def attention_work(
    xp: Any, plan: PlanArrays, stats: BatchStats
) -> tuple[Float[Array, "*config"], Float[Array, "*config"]]:
    """Cache and state bytes read, and FLOPs, of one step over all layers."""
    slots = plan.attention
    rows = xp.maximum(stats.decodes, 1.0)[..., None]
    mean = stats.decode_sum[..., None] / rows
    variance = xp.maximum(stats.decode_sumsq[..., None] / rows - mean * mean, 0.0)
    mean, _, _ = windowed_rows(xp, mean, variance, stats.decode_max[..., None], slots.window, slots.chunked)
    tokens = xp.maximum(stats.prefill_tokens, 1.0)[..., None]
    chunks = xp.maximum(stats.prefill_chunks, 1.0)[..., None]
    seen, context, _ = windowed_chunk(
        xp,
        stats.prefill_area[..., None] / tokens,
        tokens / chunks,
        chunks,
        stats.prefill_kv_tokens[..., None],
        stats.prefill_max_tokens[..., None],
        slots.window,
        slots.chunked,
    )
    keys = mean * stats.decodes[..., None]
    pairs = seen * stats.prefill_tokens[..., None]
    read = slots.count * slots.kv_bytes_per_token * (keys + context)
    flops = 2.0 * slots.count * slots.q_heads * ((slots.qk_dim + slots.v_dim) * keys + slots.prefill_dim * pairs)
    states = plan.recurrent
    sequences = (stats.decodes + stats.prefill_chunks)[..., None]
    state_bytes = 2.0 * states.count * states.state_bytes * sequences
    state_flops = states.count * states.flops_per_token * (stats.decodes + stats.prefill_tokens)[..., None]
    return read.sum(-1) + state_bytes.sum(-1), flops.sum(-1) + state_flops.sum(-1)

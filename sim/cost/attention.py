"""Attention and state layers: from a plan's slots to the constants of the lengths' closed form (`sim.cost.lengths`).

A decode block holds the query heads of one KV head, padded to 64 rows; it reads a key in
`chain_s = max(2 rows (qk + v) units/rate, bytes/unit stream)`, and all blocks together stream the cache at
`token_s = (stream^4 + compute^4)^(1/4)` per token. A prefill block holds `tile_rows` query rows. Keys are stepped
through in blocks of 128, of which the last is half used on average.
"""

from typing import Any, NamedTuple

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
from sim.cost.slots import slots_first
from sim.cost.soft import soft_maximum
from sim.cost.stats import BatchStats
from sim.deployment.plan import UNLIMITED, AttentionSlots, DeviceArrays, RecurrentSlots


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
    """Closed-form constants of all slots at once, leaves `[kind, *config]`. `xp`: `numpy` or `jax.numpy`."""
    slots = slots_first(slots, xp)
    units, stream = device.compute_units, device.memory_bytes_per_s
    rate = slots.flops_per_s
    kv_heads = xp.maximum(slots.kv_heads, 1.0)
    group = xp.maximum(slots.q_heads / kv_heads, 1.0)
    dims = slots.qk_dim + slots.v_dim

    row_blocks = kv_heads * xp.ceil(group / constants.decode_tile_rows)
    block_flops = 2.0 * constants.decode_tile_rows * dims
    chain_compute_s = block_flops * units / rate
    chain_load_s = slots.kv_bytes_per_token / kv_heads / device.unit_stream_bytes_per_s
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
            cache_share=slots.kv_bytes_per_token / xp.maximum(device.cache_bytes * kv_heads, 1.0),
            joint=slots.joint,
        ),
        window=slots.window,
        chunked=slots.chunked,
    )


def recurrent_terms(
    xp: Any, slots: RecurrentSlots, device: DeviceArrays, constants: RecurrentConstants, floor_s: Float[Array, ""]
) -> RecurrentTerms:
    """Closed-form constants of all state slots, leaves `[recurrent, *config]`: states read and written."""
    slots = slots_first(slots, xp)
    return RecurrentTerms(
        layers=slots.count,
        floor_s=constants.kernels * floor_s * xp.ones_like(slots.count),
        sequence_s=2.0 * slots.state_bytes / device.memory_bytes_per_s,
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


class WorkTerms(NamedTuple):
    """What attention and states read and compute, by kind: all layers together. Leaves `[kind, *config]`."""

    kv_bytes: Float[Array, "kind *config"]
    key_flops: Float[Array, "kind *config"]
    pair_flops: Float[Array, "kind *config"]
    window: Float[Array, "kind *config"]
    chunked: Float[Array, "kind *config"]
    state_bytes: Float[Array, "*config"]
    state_flops: Float[Array, "*config"]


def work_terms(xp: Any, attention: AttentionSlots, recurrent: RecurrentSlots) -> WorkTerms:
    """Bytes per key, FLOPs per key of a decode row and per pair of a chunk; states per sequence and per token."""
    kinds, states = slots_first(attention, xp), slots_first(recurrent, xp)
    heads = 2.0 * kinds.count * kinds.q_heads
    return WorkTerms(
        kv_bytes=kinds.count * kinds.kv_bytes_per_token,
        key_flops=heads * (kinds.qk_dim + kinds.v_dim),
        pair_flops=heads * kinds.prefill_dim,
        window=kinds.window,
        chunked=kinds.chunked,
        state_bytes=xp.sum(2.0 * states.count * states.state_bytes, axis=0),
        state_flops=xp.sum(states.count * states.flops_per_token, axis=0),
    )


def attention_work(
    xp: Any, terms: WorkTerms, stats: BatchStats
) -> tuple[Float[Array, "*config"], Float[Array, "*config"]]:
    """Cache and state bytes read, and FLOPs, of one step over all layers."""
    rows = xp.maximum(stats.decodes, 1.0)
    mean = stats.decode_sum / rows
    variance = xp.maximum(stats.decode_sumsq / rows - mean * mean, 0.0)
    mean, _, _ = windowed_rows(xp, mean, variance, stats.decode_max, terms.window, terms.chunked)
    tokens, chunks = xp.maximum(stats.prefill_tokens, 1.0), xp.maximum(stats.prefill_chunks, 1.0)
    seen, context, _ = windowed_chunk(
        xp,
        stats.prefill_area / tokens,
        tokens / chunks,
        chunks,
        stats.prefill_kv_tokens,
        stats.prefill_max_tokens,
        terms.window,
        terms.chunked,
    )
    keys = mean * stats.decodes
    read = xp.sum(terms.kv_bytes * (keys + context), axis=0)
    flops = xp.sum(terms.key_flops * keys + terms.pair_flops * (seen * stats.prefill_tokens), axis=0)
    read = read + terms.state_bytes * (stats.decodes + stats.prefill_chunks)
    return read, flops + terms.state_flops * (stats.decodes + stats.prefill_tokens)

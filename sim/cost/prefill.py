"""Attention of a batch with prefill chunks, and of the decodes that ride along in their kernel.

Blocks of query rows are list-scheduled on the compute units: mean block time x ceil(blocks/units) + (longest block -
mean block), and the blocks of decodes that have nothing to do, as a decode gets as many tiles as a chunk; in a soft
maximum (power 4) with the stream of keys. Where query heads do not share a block, heads drift apart and keys are read
again once the batch's keys of one head exceed the last-level cache: `1 + gate min(g - 1, (g - 1)(n + 1)/units)` times,
gate = f^4/(1 + f^4), f = keys over cache.

A block holds `tile_rows` query rows. Keys are stepped through in blocks of 128, of which the last is half used on
average. Under a window the form is exact for one chunk, whose rows see ever more keys.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from sim.cost.kernel import LengthKernel
from sim.cost.number import Number
from sim.cost.stats import BatchStats
from sim.deployment.plan import AttentionSlots, DeviceArrays


ACTIVATION_BYTES = 2.0
TINY_S4 = 1e-36


class PrefillTerms(NamedTuple):
    """The kernel of one layer that prefill chunks run in.

    - `floor_s`; `tiles_per_token`: tiles of one query position; `heads`: blocks of a tile; `units`: blocks at once.
    - `key_s`: one key of one block; `block_s`: a block's fixed time; `empty_s`: all blocks of one decode for a tile
      that it does not have; `wave`: 1 for whole waves, 0 for balanced work.
    - `kv_token_s`: one token of context streamed; `context_token_s`: one prior token expanded.
    - `rereads`: query heads that read a KV head's keys apart, less one; `rereads_per_row`: the same over the units;
      `cache_share`: one over the tokens of one KV head that the last-level cache holds.
    - `joint`: 1 if decodes ride in this kernel.
    """

    floor_s: Number
    tiles_per_token: Number
    heads: Number
    units: Number
    key_s: Number
    block_s: Number
    empty_s: Number
    wave: Number
    kv_token_s: Number
    context_token_s: Number
    rereads: Number
    rereads_per_row: Number
    cache_share: Number
    joint: Number


class PrefillConstants(LengthKernel[PrefillTerms]):
    """Floors and tiles of prefill kernels. Source: `analytic.toml`."""

    block_keys: Float[Array, ""]
    block_s: Float[Array, ""]
    empty_block_s: Float[Array, ""]
    floor_s: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, xp: Any, slots: AttentionSlots, device: DeviceArrays) -> PrefillTerms:
        """Closed-form constants of all slots at once; `slots` and result with leaves `[kind, *config]`."""
        units, stream = device.compute_units, device.memory_bytes_per_s
        kv_heads = xp.maximum(slots.kv_heads, 1.0)
        group = xp.maximum(slots.q_heads / kv_heads, 1.0)
        packed_group = 1.0 + slots.packed * (group - 1.0)
        key_s = 2.0 * slots.tile_rows * slots.prefill_dim * units / slots.flops_per_s
        expanded_bytes = xp.where(
            slots.context_flops > 0.0, 2.0 * ACTIVATION_BYTES * slots.q_heads * slots.prefill_dim, 0.0
        )
        heads = xp.maximum(slots.q_heads / packed_group, 1.0)
        rereads = (1.0 - slots.packed) * (group - 1.0)
        same = xp.ones_like(slots.count)
        return PrefillTerms(
            floor_s=self.floor_s * same,
            tiles_per_token=packed_group / slots.tile_rows,
            heads=heads,
            units=units * same,
            key_s=key_s,
            block_s=self.block_s + 0.5 * self.block_keys * key_s,
            empty_s=self.empty_block_s * slots.wave * heads / units,
            wave=slots.wave,
            kv_token_s=slots.kv_bytes_per_token / stream,
            context_token_s=slots.context_flops / slots.flops_per_s + expanded_bytes / stream,
            rereads=rereads,
            rereads_per_row=rereads / units,
            cache_share=slots.kv_bytes_per_token / xp.maximum(device.cache_bytes * kv_heads, 1.0),
            joint=slots.joint,
        )

    def doubt(self, slots: AttentionSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Nothing was measured."""
        return self.rel_error, 1.0


def prefill_s(
    xp: Any,
    terms: PrefillTerms,
    tokens: Number,
    chunks: Number,
    seen: Number,
    context: Number,
    deepest: Number,
    prior: Number,
    decodes: Number,
    keys: Number,
    longest: Number,
    decode_alone_s: Number,
) -> Number:
    """Seconds of one layer over a batch with prefill.

    **Arguments:**

    - `tokens`, `chunks`: prefilled tokens and chunks, at least 1.
    - `seen`: mean keys per prefilled token; `context`: keys loaded for chunks; `deepest`: longest chunk's keys;
      `prior`: tokens before the chunks.
    - `decodes`, `keys`, `longest`: rows that decode, the keys they read, and the most of one.
    - `decode_alone_s`: their time in their own kernel, added where they do not ride in this one.
    """
    (
        floor_s,
        tiles_per_token,
        heads,
        units,
        key_s,
        block_s,
        empty_s,
        wave,
        kv_token_s,
        context_token_s,
        rereads,
        rereads_per_row,
        cache_share,
        joint,
    ) = terms
    maximum, minimum = xp.maximum, xp.minimum
    chunk = tokens / chunks
    riders = joint * decodes
    rider_keys = joint * keys
    depth = xp.ceil(chunk * tiles_per_token)
    tiles = chunks * depth
    blocks = tiles + riders
    mean_s = key_s * (tiles * seen + 0.5 * tokens + rider_keys) / blocks + block_s
    longest_s = key_s * maximum(deepest, joint * longest) + block_s
    waves = blocks * heads / units
    waves = waves + wave * (xp.ceil(waves) - waves)
    schedule_s = maximum(mean_s * waves, longest_s + wave * mean_s * (waves - 1.0))
    schedule_s = schedule_s + empty_s * riders * (depth - 1.0)
    fill = rider_keys * cache_share
    fill = fill * fill
    fill = fill * fill
    again = minimum(rereads, rereads_per_row * (decodes + 1.0)) * fill / (1.0 + fill)
    stream_s = kv_token_s * (context + rider_keys * (1.0 + again))
    schedule_s = schedule_s * schedule_s
    stream_s = stream_s * stream_s
    both_s = xp.sqrt(xp.sqrt(schedule_s * schedule_s + stream_s * stream_s + TINY_S4))
    return floor_s + both_s + context_token_s * prior + (1.0 - joint) * decode_alone_s


def windowed_chunk(
    xp: Any,
    seen: Number,
    chunk: Number,
    chunks: Number,
    context: Number,
    deepest: Number,
    window: Number,
    chunked: Number,
) -> tuple[Number, Number, Number]:
    """Mean keys per prefilled token, keys loaded and deepest block under a window; exact for one chunk."""
    first = seen - 0.5 * chunk
    ramp = xp.minimum(xp.maximum(window - first, 0.0), chunk)
    reach = xp.minimum(first, window) + ramp - 0.5 * ramp * ramp / chunk
    past = 1.0 - ramp / chunk
    reach = reach - chunked * 0.5 * past * window
    return reach, xp.minimum(context, chunks * (chunk + window)), xp.minimum(deepest, window)

"""Attention of a batch with prefill chunks, and of the decodes that ride along in their kernel.

Blocks of query rows are list-scheduled on the compute units, head by head: block after block starts on the unit that is
free first. With W the time of all blocks over the units, b the mean block by its share of the work, and L a long
block that
starts when all but the work `after` it has been given out, the last unit ends at

    max(L, waves, W + wave (1 - w) max(L - after - b/2, 0)),        waves = wave max over classes d ceil(blocks/units)

`waves` is exact for blocks of one length, the last term what is expected of many lengths: w = 1/(1 + 150 spread^2),
spread
the relative deviation of b. Classes of blocks are the tiles of the chunks, the long and the short decodes (as many long
ones as `sim.cost.decode` takes); a decode also gets as many tiles as the longest chunk, all but one with nothing to do.
`wave` is 0 where work is balanced. The time of the schedule is in a soft maximum (power 4) with the stream of keys,
queries
and outputs.

Where query heads do not share a block, heads drift apart and keys are read again once the batch's keys of one head
exceed
the last-level cache: `1 + gate min(g - 1, (g - 1) blocks/units)` times, gate = f^4/(1 + f^4), f = keys over cache.

**Steps.** A block steps through its keys by 128. Where that shows (`stepped`), a tile is 64 rows and the steps of one
chunk
are counted exactly, as those of decodes of equal lengths; of other lengths the last step is used half on average.
Under a
window the mean keys are exact for one chunk, whose rows see ever more keys.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from sim.cost.grid import Grid, Roots, factor, mesh
from sim.cost.kernel import LengthKernel
from sim.cost.number import Number
from sim.cost.stats import BatchStats
from sim.deployment.plan import AttentionSlots, DeviceArrays


ACTIVATION_BYTES = 2.0
STEP_KEYS = 128.0
STEPS_PER_KEY = 1.0 / STEP_KEYS
HALF_STEP = 0.5 * STEP_KEYS
STEPPED_ROWS = 64.0
EVEN = 12.0 / (STEP_KEYS * STEP_KEYS)  # one over the variance of lengths spread over one step
SPREAD = 150.0
TINY = 1e-6
TINY_S4 = 1e-36
ROUNDING = 1e-3

PREFILL_AXES = (
    Roots(16.0, 32768.0, 9),
    Roots(1.0, 65537.0, 5),
    Roots(1.0, 1025.0, 7),
    Roots(1.0, 65537.0, 7),
    Roots(1.0, 4.5, 2),
)
"""Of the learned factor: prefilled tokens; tokens before a chunk, decodes and their mean keys, each plus 1; and the
keys of the longest decode over the mean."""
BATCH_AXES = (Roots(16.0, 16384.0, 8), Roots(1.0, 257.0, 6))
"""Of a second one, for chunks without prior tokens while nothing decodes: tokens of a chunk, and chunks."""
PREFILL_NODES = len(mesh(PREFILL_AXES)[0])


class PrefillTerms(NamedTuple):
    """The kernel of one layer that prefill chunks run in.

    - `floor_s`; `tiles_per_token`: tiles of one query position; `heads`: blocks of a tile; `units`: blocks at once.
    - `key_s`: one key of one block; `block_s`: a block's fixed time; `empty_s`: a block that has nothing to do.
    - `stepped`: 1 where keys are stepped through by 128 in tiles of 64 rows; `wave`: 1 for list-scheduled blocks, 0 for
      balanced work.
    - `kv_token_s`: one token of context streamed; `row_token_s`: queries and outputs of one row;
      `token_s`: one new row before and after the kernel; `context_token_s`: one prior token expanded.
    - `rereads`: query heads that read a KV head's keys apart, less one; `rereads_per_block`: the same over the units;
      `cache_share`: one over the tokens of one KV head that the last-level cache holds.
    - `joint`: 1 if decodes ride in this kernel.
    - `grid`: learned factors by `PREFILL_AXES` and, after those, by `BATCH_AXES`.
    """

    floor_s: Number
    tiles_per_token: Number
    heads: Number
    units: Number
    key_s: Number
    block_s: Number
    empty_s: Number
    stepped: Number
    wave: Number
    kv_token_s: Number
    row_token_s: Number
    token_s: Number
    context_token_s: Number
    rereads: Number
    rereads_per_block: Number
    cache_share: Number
    joint: Number
    grid: Grid | None = None


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
        rereads = (1.0 - slots.packed) * (group - 1.0)
        same = xp.ones_like(slots.count)
        stepped = slots.wave * xp.where(packed_group * STEPPED_ROWS == slots.tile_rows, 1.0, 0.0)
        return PrefillTerms(
            floor_s=self.floor_s * same,
            tiles_per_token=packed_group / slots.tile_rows,
            heads=xp.maximum(slots.q_heads / packed_group, 1.0),
            units=units * same,
            key_s=key_s,
            block_s=self.block_s + 0.5 * self.block_keys * key_s * (1.0 - stepped),
            empty_s=self.empty_block_s * slots.wave,
            stepped=stepped,
            wave=slots.wave,
            kv_token_s=slots.kv_bytes_per_token / stream,
            row_token_s=ACTIVATION_BYTES * slots.q_heads * slots.prefill_dim / stream,
            token_s=0.0 * same,
            context_token_s=slots.context_flops / slots.flops_per_s + expanded_bytes / stream,
            rereads=rereads,
            rereads_per_block=rereads / units,
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
    mean: Number,
    variance: Number,
    longest: Number,
    decode_alone_s: Number,
) -> Number:
    """Seconds of one layer over a batch with prefill.

    **Arguments:**

    - `tokens`, `chunks`: prefilled tokens and chunks, at least 1.
    - `seen`: mean keys per prefilled token; `context`: keys loaded for chunks; `deepest`: longest chunk's keys;
      `prior`: tokens before the chunks.
    - `decodes`: rows that decode; `mean`, `variance`, `longest`: of the keys they read.
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
        stepped,
        wave,
        kv_token_s,
        row_token_s,
        token_s,
        context_token_s,
        rereads,
        rereads_per_block,
        cache_share,
        joint,
        grid,
    ) = terms
    maximum, minimum, ceil, floor, where = xp.maximum, xp.minimum, xp.ceil, xp.floor, xp.where
    half = HALF_STEP * stepped
    chunk = tokens / chunks
    alike = deepest * chunks <= context

    # tiles of the chunks, and the keys they step through
    depth = ceil(chunk * tiles_per_token)
    tiles = where(alike, chunks * depth, maximum(tokens * tiles_per_token + 0.5 * chunks, chunks))
    deep = deepest + stepped * (STEP_KEYS * ceil(deepest * STEPS_PER_KEY) - deepest)
    first = ceil((seen - 0.5 * (chunk + 1.0)) * (2.0 * STEPS_PER_KEY) - ROUNDING) + 1.0
    end = first + depth - 1.0
    counted = chunks * (STEP_KEYS * (floor(0.25 * end * end) - floor(0.25 * first * first)) + deep)
    keys = tiles * (seen + half) + 0.5 * (tokens - tiles)
    keys = where(alike, keys + stepped * (counted - keys), keys)
    tiles_s = key_s * keys + tiles * block_s
    tile_s = tiles_s / tiles
    deep_s = key_s * deep + block_s

    # decodes: long ones and others
    riders = joint * decodes
    beyond = longest - mean
    long = riders * (variance + TINY) / (variance + beyond * beyond + TINY)
    even = stepped / (1.0 + EVEN * variance)
    rest = half + even * (STEP_KEYS * ceil(mean * STEPS_PER_KEY) - mean - half)
    row_s = key_s * (mean + rest) + block_s
    long_s = joint * (key_s * (longest + rest) + block_s)
    rows_s = riders * row_s
    longs_s = minimum(long * long_s, rows_s)
    shorts_s = rows_s - longs_s
    short_s = shorts_s / maximum(riders - long, TINY)

    # the schedule
    share = heads / units
    busy_s = tiles_s + rows_s
    idle = (chunks + riders) * ceil(maximum(chunk, deepest - prior) * tiles_per_token) - tiles - riders
    off_s = deep_s - tile_s
    scatter = 0.2 * off_s * off_s
    heavy_s = tile_s + scatter / tile_s
    block = (tiles_s * heavy_s + longs_s * long_s + shorts_s * short_s) / busy_s
    squares = tiles_s * (heavy_s * heavy_s + scatter) + longs_s * long_s * long_s + shorts_s * short_s * short_s
    spread = maximum(squares / (busy_s * block * block) - 1.0, 0.0) * SPREAD
    half_share = 0.5 / units
    after_s = maximum(long_s - half_share * tiles_s, deep_s - half_share * rows_s) - 0.5 * block
    tail_s = spread / (1.0 + spread) * maximum(after_s, 0.0)
    waves_s = maximum(
        long_s * ceil(share * long - ROUNDING),
        where(
            alike,
            maximum(
                tile_s * ceil(share * tiles - ROUNDING),
                minimum(tile_s, long_s) * ceil(share * (tiles + long) - ROUNDING),
            ),
            0.0,
        ),
    )
    work_s = share * busy_s
    chain_s = maximum(deep_s, long_s)
    blocks = share * (tiles + riders) - ROUNDING
    mixed = riders > 0.0
    second_s = chain_s + where(mixed, wave * minimum(tile_s, row_s), 0.0)
    quick = where(mixed, where(tile_s < row_s, tiles, riders), 0.0) / (tiles + riders)
    several_s = maximum(work_s, second_s)
    many_s = maximum(maximum(work_s + wave * tail_s, wave * waves_s), several_s)
    schedule_s = where(blocks > 1.0 + quick, many_s, where(blocks > 1.0, several_s, chain_s))
    schedule_s = schedule_s + share * empty_s * maximum(idle, 0.0)

    # what is streamed
    fill = riders * mean
    read = fill
    fill = fill * cache_share
    fill = fill * fill
    fill = fill * fill
    again = minimum(rereads, rereads_per_block * (tiles + decodes)) * fill / (1.0 + fill)
    stream_s = kv_token_s * (context + read * (1.0 + again)) + row_token_s * (tokens + riders)
    schedule_s = schedule_s * schedule_s
    stream_s = stream_s * stream_s
    both_s = xp.sqrt(xp.sqrt(schedule_s * schedule_s + stream_s * stream_s + TINY_S4))
    kernel_s = floor_s + both_s + token_s * (tokens + riders)
    if grid is not None:
        stretch = longest / maximum(mean, 1.0)
        kernel_s = (
            kernel_s
            * factor(xp, grid, PREFILL_AXES, tokens, prior / chunks + 1.0, riders + 1.0, mean + 1.0, stretch)
            * factor(xp, Grid(grid.values, grid.start + PREFILL_NODES), BATCH_AXES, chunk, chunks)
        )
    return kernel_s + context_token_s * prior + (1.0 - joint) * decode_alone_s


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

"""The part of a step's price that depends on the lengths in the batch: a closed form on numbers or arrays.

One function serves every engine: the exact engine calls it once per step on Python floats (`FLOATS`), the
wide engine on arrays (`jax.numpy`), the analytic kernel on arrays with an axis of attention kinds.

**Decode alone** (one kernel per layer, query heads packed per KV head). The cache is streamed, S tokens at `b` seconds
each; but a row longer than the others is read by its own block, one token per `c` seconds, when the others are
done. With A(w) rows longer than w, that is the integral of max(c, b A(w)) over w. Here the lengths are taken as two
classes with the batch's mean, variance V and maximum X, for which the integral is

    b S + (X - lo) max(0, c - m b) + lo max(0, c - n b),    m = n V/(V + (X - mean)^2),    lo = mean - V/(X - mean)

and max(b S, c X) for equal lengths. With few rows the kernel splits each over more blocks: c shrinks, a reduction follows.

**Prefill, and decodes that ride along.** Blocks of query rows are list-scheduled on the compute units: mean block
time x ceil(blocks/units) + (longest block - mean block), and blocks of decodes that have nothing to do, as a decode gets as
many tiles as a chunk; in a soft maximum (power 4) with the stream of keys. Where query heads
do not share a block, heads drift apart and keys are read again once the batch's keys of one head exceed
the last-level cache: `1 + gate min(g - 1, (g - 1)(n + 1)/units)` times, gate = f^4/(1 + f^4), f = keys over cache.

**Windows.** A row of length l reads min(l, w) keys. Decode, from the mean mu and variance V alone (k = 2/pi):

    E[min(l, w)] = min(mu, w) - k V/(2 (d + sqrt(d^2 + k V))),    d = |mu - w|

exact when all lengths are equal, and for a normal law with its mean at w. With chunked-local attention a row past its
chunk reads half of it on average. Prefill: exact for one chunk, whose rows see uniformly more keys from first to last.
"""

import math
from typing import NamedTuple

from jaxtyping import Array, Float


Number = float | Float[Array, "..."]

NORMAL_SHARE = 2.0 / math.pi
TINY_TOKENS = 1e-6
TINY_S = 1e-9


class _Floats:
    """The five functions `lengths_s` needs, on Python floats."""

    maximum = staticmethod(max)
    minimum = staticmethod(min)
    sqrt = staticmethod(math.sqrt)
    ceil = staticmethod(math.ceil)

    @staticmethod
    def where(condition, this, other):
        """`this` if `condition` else `other`."""
        return this if condition else other


FLOATS = _Floats()


class AttentionTerms(NamedTuple):
    """One kind of attention layer; every time is per layer, `count` layers.

    - `decode_floor_s`: the decode kernel on one short row; `several_s`: more if there are more rows; `split_s`: more while
      rows are split; `row_s`: start and end of one row's blocks.
    - `decode_token_s`: one token of one row streamed by the whole device; `chain_token_s`: by one block.
    - `split_rows`: rows below which a row is split over several blocks.
    - `prefill_floor_s`; `heads`: blocks per tile of `tile_positions` query positions; `key_s`: one key of one block;
      `block_s`: a block's fixed time; `empty_s`: all blocks of one decode for one tile that it does not have; `units`: blocks that run at once; `wave`: 1 for whole waves, 0 for balanced work.
    - `kv_token_s`: one token of context streamed in prefill; `context_token_s`: one prior token expanded.
    - `rereads`: query heads that read a KV head's keys apart, less one; `cache_tokens`: tokens of one KV head that the
      last-level cache holds.
    - `joint`: 1 if decodes ride in the prefill kernel.
    - `window`, `chunked`: keys a row may look back, and 1 if chunks instead of a sliding window; None without.
    """

    count: Number
    decode_floor_s: Number
    several_s: Number
    split_s: Number
    row_s: Number
    decode_token_s: Number
    chain_token_s: Number
    split_rows: Number
    prefill_floor_s: Number
    heads: Number
    tile_positions: Number
    key_s: Number
    block_s: Number
    empty_s: Number
    units: Number
    wave: Number
    kv_token_s: Number
    context_token_s: Number
    rereads: Number
    cache_tokens: Number
    joint: Number
    window: Number | None
    chunked: Number | None


class RecurrentTerms(NamedTuple):
    """One kind of state layer: `floor_s` if anything runs, `sequence_s` per sequence (state read and written),
    `token_s` per prefilled token."""

    count: Number
    floor_s: Number
    sequence_s: Number
    token_s: Number


class LengthTerms(NamedTuple):
    """Constants of the closed form: one entry per used kind. Leaves are floats, or arrays that broadcast."""

    attention: tuple[AttentionTerms, ...] = ()
    recurrent: tuple[RecurrentTerms, ...] = ()


def lengths_s(
    xp,
    terms: LengthTerms,
    prefill_tokens: Number,
    prefill_chunks: Number,
    prefill_area: Number,
    prefill_kv_tokens: Number,
    prefill_max_tokens: Number,
    decodes: Number,
    decode_sum: Number,
    decode_max: Number,
    decode_sumsq: Number,
) -> Number:
    """Seconds of all attention and state layers for one batch; 0 when nothing attends.

    **Arguments:**

    - `xp`: `FLOATS`, `numpy` or `jax.numpy`.
    - `terms`: from `sim.cost.table.PriceTable.lengths`, or stacked ones (`stack_terms`).
    - the rest: as in `BatchStats`, numbers or arrays of one shape.
    """
    total = 0.0
    for kind in terms.attention:
        total = total + attention_kind_s(
            xp,
            kind,
            prefill_tokens,
            prefill_chunks,
            prefill_area,
            prefill_kv_tokens,
            prefill_max_tokens,
            decodes,
            decode_sum,
            decode_max,
            decode_sumsq,
        )
    for state in terms.recurrent:
        total = total + recurrent_kind_s(xp, state, prefill_tokens, prefill_chunks, decodes)
    return total


def attention_kind_s(
    xp,
    kind: AttentionTerms,
    prefill_tokens: Number,
    prefill_chunks: Number,
    prefill_area: Number,
    prefill_kv_tokens: Number,
    prefill_max_tokens: Number,
    decodes: Number,
    decode_sum: Number,
    decode_max: Number,
    decode_sumsq: Number,
) -> Number:
    """Seconds of the `count` layers of one kind. Arguments as for `lengths_s`."""
    maximum, where = xp.maximum, xp.where
    (
        count,
        decode_floor_s,
        several_s,
        split_s,
        row_s,
        decode_token_s,
        chain_token_s,
        split_rows,
        prefill_floor_s,
        heads,
        tile_positions,
        key_s,
        block_s,
        empty_s,
        units,
        wave,
        kv_token_s,
        context_token_s,
        rereads,
        cache_tokens,
        joint,
        window,
        chunked,
    ) = kind
    rows = maximum(decodes, 1.0)
    mean = decode_sum / rows
    variance = maximum(decode_sumsq / rows - mean * mean, 0.0)
    longest = decode_max
    keys = decode_sum
    if window is not None:
        mean, variance, longest = windowed_rows(xp, mean, variance, longest, window, chunked)
        keys = mean * decodes

    beyond = longest - mean
    long_rows = rows * variance / (variance + beyond * beyond + TINY_TOKENS)
    low = maximum(mean - variance / (beyond + TINY_TOKENS), 0.0)
    splits = maximum(split_rows / rows, 1.0)
    chain_s = chain_token_s / splits
    decode_s = (
        decode_floor_s
        + several_s * xp.minimum(rows - 1.0, 1.0)
        + split_s * xp.minimum(splits - 1.0, 1.0)
        + row_s * rows
        + decode_token_s * keys
        + (longest - low) * maximum(chain_s - long_rows * decode_token_s, 0.0)
        + low * maximum(chain_s - rows * decode_token_s, 0.0)
    )
    decode_s = where(decodes > 0, decode_s, 0.0)
    if xp is FLOATS and not prefill_tokens:
        return count * decode_s

    tokens = maximum(prefill_tokens, 1.0)
    chunks = maximum(prefill_chunks, 1.0)
    chunk = tokens / chunks
    seen = prefill_area / tokens
    context = prefill_kv_tokens
    deepest = prefill_max_tokens
    if window is not None:
        seen, context, deepest = windowed_chunk(xp, seen, chunk, chunks, context, deepest, window, chunked)

    depth = xp.ceil(chunk / tile_positions)
    tiles = chunks * depth
    blocks = heads * (tiles + joint * decodes)
    work_s = heads * key_s * (tiles * (seen + 0.5 * tile_positions) + joint * keys) + block_s * blocks
    block_mean_s = work_s / blocks
    longest_s = maximum(deepest, joint * longest) * key_s + block_s
    waves = blocks / units
    waves = waves + wave * (xp.ceil(waves) - waves)
    schedule_s = maximum(block_mean_s * waves + wave * maximum(longest_s - block_mean_s, 0.0), longest_s)
    fill = keys / cache_tokens
    fill = fill * fill
    fill = fill * fill
    again = joint * xp.minimum(rereads, rereads * (decodes + 1.0) / units) * fill / (1.0 + fill)
    schedule_s = schedule_s + empty_s * decodes * (depth - 1.0)
    stream_s = (context + (joint + again) * keys) * kv_token_s
    schedule_s = schedule_s * schedule_s
    stream_s = stream_s * stream_s
    both_s = xp.sqrt(xp.sqrt(schedule_s * schedule_s + stream_s * stream_s + TINY_S**4))
    prior = prefill_kv_tokens - prefill_tokens
    prefill_s = prefill_floor_s + both_s + prior * context_token_s + (1.0 - joint) * decode_s
    return count * where(prefill_tokens > 0, prefill_s, decode_s)


def windowed_rows(xp, mean, variance, longest, window, chunked):
    """Mean, variance and maximum of the keys that decode rows of the given lengths read."""
    gap = mean - window
    spread = NORMAL_SHARE * variance
    root = xp.sqrt(gap * gap + spread + TINY_TOKENS)
    distance = xp.maximum(gap, -gap)
    inside = xp.minimum(mean, window) - spread / (2.0 * (distance + root))
    share_past = 0.5 + 0.5 * gap / root
    inside = inside - chunked * 0.5 * share_past * window
    return inside, variance * (1.0 - share_past), xp.minimum(longest, window)


def windowed_chunk(xp, seen, chunk, chunks, context, deepest, window, chunked):
    """Mean keys per prefilled token, keys loaded and deepest block under a window; exact for one chunk."""
    first = seen - 0.5 * chunk
    ramp = xp.minimum(xp.maximum(window - first, 0.0), chunk)
    reach = xp.minimum(first, window) + ramp - 0.5 * ramp * ramp / chunk
    past = 1.0 - ramp / chunk
    reach = reach - chunked * 0.5 * past * window
    return reach, xp.minimum(context, chunks * (chunk + window)), xp.minimum(deepest, window)


def recurrent_kind_s(
    xp, kind: RecurrentTerms, prefill_tokens: Number, prefill_chunks: Number, decodes: Number
) -> Number:
    """Seconds of the `count` state layers of one kind: states streamed once per sequence, chunked scan per token."""
    sequences = prefill_chunks + decodes
    busy_s = kind.floor_s + kind.sequence_s * sequences + kind.token_s * prefill_tokens
    return kind.count * xp.where(sequences > 0, busy_s, 0.0)

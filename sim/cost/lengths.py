"""The part of a step's price that depends on the lengths in the batch: a closed form on numbers or arrays.

One function serves every engine: the exact engine calls it once per step on Python floats (`FLOATS`), the
wide engine on arrays (`jax.numpy`), the analytic kernel on arrays with an axis of attention kinds.

**Decode alone** (one kernel per layer, query heads packed per KV head). The cache is streamed, S tokens at `b` seconds
each; but a row longer than the others is read by its own block, one token per `c` seconds, when the others are
done. With A(w) rows longer than w, that is the integral of max(c, b A(w)) over w. Here the lengths are taken as two
classes with the batch's mean, variance V and maximum X, for which the integral is

    b S + (X - lo) max(0, c - m b) + lo max(0, c - n b),    m = n V/(V + (X - mean)^2),    lo = mean - V/(X - mean)

and max(b S, c X) for equal lengths. With few rows the kernel splits each over more blocks: c shrinks, and a
reduction follows.

**Prefill, and decodes that ride along.** Blocks of query rows are list-scheduled on the compute units: mean block
time x ceil(blocks/units) + (longest block - mean block), and the blocks of decodes that have nothing to do, as a decode
gets as many tiles as a chunk; in a soft maximum (power 4) with the stream of keys. Where query heads do
not share a block, heads drift apart and keys are read again once the batch's keys of one head exceed the
last-level cache: `1 + gate min(g - 1, (g - 1)(n + 1)/units)` times, gate = f^4/(1 + f^4), f = keys over cache.

**Windows.** A row of length l reads min(l, w) keys. Decode, from the mean mu and variance V alone (k = 2/pi):

    E[min(l, w)] = min(mu, w) - k V/(2 (d + sqrt(d^2 + k V))),    d = |mu - w|

exact when all lengths are equal, and for a normal law with its mean at w. With chunked-local attention a row past its
chunk reads any part of it, half on average. Prefill: exact for one chunk, whose rows see ever more keys.
"""

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

from jaxtyping import Array, Float


Number = float | Float[Array, "..."]

NORMAL_SHARE = 2.0 / math.pi
TINY_TOKENS = 1e-6
TINY_S4 = 1e-36


def _where(condition: bool, this: float, other: float) -> float:
    return this if condition else other


# The functions of `numpy` that the closed form needs, on Python floats.
FLOATS = SimpleNamespace(maximum=max, minimum=min, sqrt=math.sqrt, ceil=math.ceil, where=_where)


class DecodeTerms(NamedTuple):
    """The decode kernel of one layer.

    - `floor_s`: one short row; `several_s`: more if there are more rows; `split_s`: more while rows are split.
    - `row_s`: start and end of one row's blocks.
    - `token_s`: one token of one row streamed by the whole device; `chain_s`: by one block.
    - `split_share`: one over the number of rows below which a row is split over several blocks.
    """

    floor_s: Number
    several_s: Number
    split_s: Number
    row_s: Number
    token_s: Number
    chain_s: Number
    split_share: Number


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


class AttentionTerms(NamedTuple):
    """One kind of attention: `layers` of them, their two kernels, and the window if there is one.

    `window`: keys a row may look back; `chunked`: 1 if chunks instead of a sliding window. Both None without.
    """

    layers: Number
    decode: DecodeTerms
    prefill: PrefillTerms
    window: Number | None = None
    chunked: Number | None = None


class RecurrentTerms(NamedTuple):
    """One kind of state layer, `layers` of them.

    `floor_s` if anything runs, `sequence_s` per sequence (state read and written), `token_s` per prefilled token.
    """

    layers: Number
    floor_s: Number
    sequence_s: Number
    token_s: Number


class LengthTerms(NamedTuple):
    """Constants of the closed form: one entry per used kind. Leaves are floats, or arrays that broadcast."""

    attention: tuple[AttentionTerms, ...] = ()
    recurrent: tuple[RecurrentTerms, ...] = ()


def lengths_s(
    xp: Any,
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
    if xp is FLOATS and not prefill_tokens:
        return decodes_s(terms, decodes, decode_sum, decode_max, decode_sumsq)
    maximum, minimum = xp.maximum, xp.minimum
    total = 0.0
    for layers, decode, prefill, window, chunked in terms.attention:
        floor_s, several_s, split_s, row_s, token_s, chain_s, split_share = decode
        rows = maximum(decodes, 1.0)
        mean = decode_sum / rows
        variance = maximum(decode_sumsq / rows - mean * mean, 0.0)
        longest = decode_max
        keys = decode_sum
        if window is not None and chunked is not None:
            mean, variance, longest = windowed_rows(xp, mean, variance, longest, window, chunked)
            keys = mean * decodes
        beyond = longest - mean
        long_rows = rows * variance / (variance + beyond * beyond + TINY_TOKENS)
        low = maximum(mean - variance / (beyond + TINY_TOKENS), 0.0)
        unsplit = minimum(rows * split_share, 1.0)
        chain_s = chain_s * unsplit
        decode_s = (
            floor_s
            + several_s * minimum(rows - 1.0, 1.0)
            + split_s * (1.0 - unsplit)
            + row_s * rows
            + token_s * keys
            + (longest - low) * maximum(chain_s - long_rows * token_s, 0.0)
            + low * maximum(chain_s - rows * token_s, 0.0)
        )
        decode_s = xp.where(decodes > 0, decode_s, 0.0)

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
        ) = prefill
        tokens = maximum(prefill_tokens, 1.0)
        chunks = maximum(prefill_chunks, 1.0)
        chunk = tokens / chunks
        seen = prefill_area / tokens
        context = prefill_kv_tokens
        deepest = prefill_max_tokens
        if window is not None and chunked is not None:
            seen, context, deepest = windowed_chunk(xp, seen, chunk, chunks, context, deepest, window, chunked)
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
        expand_s = context_token_s * (prefill_kv_tokens - prefill_tokens)
        prefill_s = floor_s + both_s + expand_s + (1.0 - joint) * decode_s
        total = total + layers * xp.where(prefill_tokens > 0, prefill_s, decode_s)

    for layers, floor_s, sequence_s, token_s in terms.recurrent:
        sequences = prefill_chunks + decodes
        busy_s = floor_s + sequence_s * sequences + token_s * prefill_tokens
        total = total + layers * xp.where(sequences > 0, busy_s, 0.0)
    return total


def decodes_s(terms: LengthTerms, decodes: Any, decode_sum: Any, decode_max: Any, decode_sumsq: Any) -> float:
    """What `lengths_s` gives on numbers for a batch that only decodes, bit for bit, in half the time."""
    if not decodes:
        return 0.0
    rows = decodes if decodes > 1.0 else 1.0
    batch_mean = decode_sum / rows
    batch_variance = decode_sumsq / rows - batch_mean * batch_mean
    if batch_variance < 0.0:
        batch_variance = 0.0
    total: Any = 0.0
    attention: Any = terms.attention
    for layers, decode, _, window, chunked in attention:
        floor_s, several_s, split_s, row_s, token_s, chain_s, split_share = decode
        mean, variance, longest, keys = batch_mean, batch_variance, decode_max, decode_sum
        if window is not None and chunked is not None:
            mean, variance, longest = windowed_rows(FLOATS, mean, variance, longest, window, chunked)
            keys = mean * decodes
        beyond = longest - mean
        long_rows = rows * variance / (variance + beyond * beyond + TINY_TOKENS)
        low = mean - variance / (beyond + TINY_TOKENS)
        if low < 0.0:
            low = 0.0
        unsplit = rows * split_share
        if unsplit > 1.0:
            unsplit = 1.0
        chain_s = chain_s * unsplit
        late_s, early_s = chain_s - long_rows * token_s, chain_s - rows * token_s
        total += layers * (
            floor_s
            + several_s * (1.0 if rows > 2.0 else rows - 1.0)
            + split_s * (1.0 - unsplit)
            + row_s * rows
            + token_s * keys
            + (longest - low) * (late_s if late_s > 0.0 else 0.0)
            + low * (early_s if early_s > 0.0 else 0.0)
        )
    recurrent: Any = terms.recurrent
    for layers, floor_s, sequence_s, _ in recurrent:
        total += layers * (floor_s + sequence_s * decodes)
    return float(total)


def windowed_rows(
    xp: Any, mean: Number, variance: Number, longest: Number, window: Number, chunked: Number
) -> tuple[Number, Number, Number]:
    """Mean, variance and maximum of the keys that decode rows of the given lengths read."""
    gap = mean - window
    spread = NORMAL_SHARE * variance
    root = xp.sqrt(gap * gap + spread + TINY_TOKENS)
    distance = xp.maximum(gap, -gap)
    inside = xp.minimum(mean, window) - spread / (2.0 * (distance + root))
    share_past = 0.5 + 0.5 * gap / root
    in_chunks = chunked * share_past * window
    variance = variance * (1.0 - share_past) + in_chunks * window / 12.0
    return inside - 0.5 * in_chunks, variance, xp.minimum(longest, window)


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

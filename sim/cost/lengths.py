"""The part of a step's price that depends on the lengths in the batch: a closed form on numbers or arrays.

One function serves every engine: the exact engine calls it once per step on Python floats (`FLOATS`), the
wide engine on arrays (`jax.numpy`), the analytic kernel on arrays with an axis of attention kinds. A batch that only
decodes runs the kernel of `sim.cost.decode`, one with prefill chunks that of `sim.cost.prefill`; state layers have a
form of their own (`sim.cost.recurrent`).
"""

from typing import Any, NamedTuple, Protocol

from sim.cost.context import ContextTerms, moved_s, pieces
from sim.cost.decode import DecodeTerms, decode_float_s, decode_s, windowed_rows
from sim.cost.number import FLOATS, Number
from sim.cost.prefill import PrefillTerms, prefill_s, windowed_chunk
from sim.cost.recurrent import RecurrentTerms, recurrent_s


class AttentionTerms(NamedTuple):
    """One kind of attention: `layers` of them, their two kernels, and the window if there is one.

    `window`: keys a row may look back; `chunked`: 1 if chunks instead of a sliding window. Both None without.
    `verify`: the decode kernel with the queries of a row that verifies drafts; None without.
    """

    layers: Number
    decode: DecodeTerms
    prefill: PrefillTerms
    window: Number | None = None
    chunked: Number | None = None
    verify: DecodeTerms | None = None


class LengthTerms(NamedTuple):
    """Constants of the closed form: one entry per used kind. Leaves are floats, or arrays that broadcast.

    `context`: how context-parallel ranks divide attention; None where there are none. `query_tokens`: of a decode row
    with all its drafts; None without.
    """

    attention: tuple[AttentionTerms, ...] = ()
    recurrent: tuple[RecurrentTerms, ...] = ()
    context: ContextTerms | None = None
    query_tokens: Number | None = None


class Sums(Protocol):
    """A batch of one step, as far as its lengths matter: numbers named as in `BatchStats`."""

    prefill_tokens: int
    prefill_chunks: int
    prefill_area: int
    prefill_kv_tokens: int
    prefill_max_tokens: int
    decodes: int
    decode_sum: int
    decode_max: int
    decode_sumsq: int
    draft_tokens: int


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
    draft_tokens: Number = 0.0,
) -> Number:
    """Seconds of all attention and state layers for one batch, and of what ranks send for it; 0 when nothing attends.

    **Arguments:**

    - `xp`: `FLOATS`, `numpy` or `jax.numpy`.
    - `terms`: from `sim.cost.table.PriceTable.lengths`, or stacked ones (`stack_terms`).
    - the rest: as in `BatchStats`, numbers or arrays of one shape.

    A row that verifies k drafts reads its keys once for 1 + k queries: the decode kernel with 1 + k times the query
    heads. A batch with some of the drafts that its rows may have lies in between, by their share.
    """
    if xp is FLOATS and not prefill_tokens:
        return decodes_s(terms, decodes, decode_sum, decode_max, decode_sumsq, draft_tokens)
    maximum = xp.maximum
    total: Any = 0.0
    rows = maximum(decodes, 1.0)
    batch_mean = decode_sum / rows
    batch_variance = maximum(decode_sumsq / rows - batch_mean * batch_mean, 0.0)
    tokens = maximum(prefill_tokens, 1.0)
    chunks = maximum(prefill_chunks, 1.0)
    prior = prefill_kv_tokens - prefill_tokens
    split = terms.context
    for layers, decode, prefill, window, chunked, verify in terms.attention:
        mean, variance, longest = batch_mean, batch_variance, decode_max
        seen, context, deepest = prefill_area / tokens, prefill_kv_tokens, prefill_max_tokens
        if window is not None and chunked is not None:
            mean, variance, longest = windowed_rows(xp, mean, variance, longest, window, chunked)
            seen, context, deepest = windowed_chunk(
                xp, seen, tokens / chunks, chunks, context, deepest, window, chunked
            )
        keys = mean, variance, longest
        own = tokens, chunks, context, prior
        if split is not None:
            share = split.key_share
            keys = mean * share, variance * (share * share), longest * share
            own = pieces(xp, split.query_ranks, *own)
        rows_own, chunks_own, context_own, prior_own = own
        alone_s = decode_s(xp, decode, decodes, *keys)
        if verify is not None and terms.query_tokens is not None:
            more_s = maximum(decode_s(xp, verify, decodes, *keys) - alone_s, 0.0)
            most = maximum((terms.query_tokens - 1.0) * rows, 1.0)
            alone_s = alone_s + xp.minimum(draft_tokens / most, 1.0) * more_s
        mixed_s = prefill_s(
            xp,
            prefill,
            rows_own,
            chunks_own,
            seen,
            context_own,
            deepest,
            prior_own,
            decodes,
            mean,
            variance,
            longest,
            alone_s,
        )
        total = total + layers * xp.where(prefill_tokens > 0, mixed_s, alone_s)

    for state in terms.recurrent:
        total = total + state.layers * recurrent_s(xp, state, prefill_tokens, prefill_chunks, decodes)
    for moved in split.moved if split is not None else ():
        total = total + moved_s(xp, moved, prefill_tokens, decodes, prior)
    return total


def batch_s(terms: LengthTerms, batch: Sums) -> float:
    """`lengths_s` of one batch, on Python floats."""
    if not batch.prefill_tokens:
        return decodes_s(
            terms, batch.decodes, batch.decode_sum, batch.decode_max, batch.decode_sumsq, batch.draft_tokens
        )
    return float(
        lengths_s(
            FLOATS,
            terms,
            batch.prefill_tokens,
            batch.prefill_chunks,
            batch.prefill_area,
            batch.prefill_kv_tokens,
            batch.prefill_max_tokens,
            batch.decodes,
            batch.decode_sum,
            batch.decode_max,
            batch.decode_sumsq,
            batch.draft_tokens,
        )
    )


def decodes_s(
    terms: LengthTerms, decodes: Any, decode_sum: Any, decode_max: Any, decode_sumsq: Any, draft_tokens: Any = 0.0
) -> float:
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
    split: Any = terms.context
    for layers, decode, _, window, chunked, verify in attention:
        mean, variance, longest = batch_mean, batch_variance, decode_max
        if window is not None and chunked is not None:
            mean, variance, longest = windowed_rows(FLOATS, mean, variance, longest, window, chunked)
        if split is not None:
            share = split.key_share
            mean, variance, longest = mean * share, variance * (share * share), longest * share
        alone_s = decode_float_s(decode, rows, mean, variance, longest)
        if draft_tokens and verify is not None and terms.query_tokens is not None:
            more_s = decode_float_s(verify, rows, mean, variance, longest) - alone_s
            alone_s += min(draft_tokens / max((terms.query_tokens - 1.0) * rows, 1.0), 1.0) * max(more_s, 0.0)
        total += layers * alone_s
    recurrent: Any = terms.recurrent
    for layers, floor_s, sequence_s, *_ in recurrent:
        total += layers * (floor_s + sequence_s * decodes)
    if split is not None:
        for moved in split.moved:
            total = total + moved_s(FLOATS, moved, 0.0, decodes, 0.0)
    return float(total)

"""One iteration of all lanes: the micro-operations of a scheduling step, masked.

In one iteration a lane may end one request or preempt one, start its step, run one prefill chunk (of the unfinished
prefill, else of the head of the queue), and execute the step when nothing more can be done in it. A lane with more to
do than one of each stays in its step for another iteration, so any number per step is exact.

Rules: vLLM V1, first come first served, chunked prefill, blocks counted, recompute preemption, no prefix reuse.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float64, Int32

from sim.scan.state import Lanes, Prices, Shape, State, Workloads


RUNS, COMPLETES, DROPS, DROPS_PART = 1, 2, 4, 8
"""Bits of `Log.event`: a chunk ran; it was the prefill's last; a decode was preempted; an unfinished prefill was."""
EVENT_BITS = 4


class Log(NamedTuple):
    """What an iteration did: `time_ns` is the end of the step it executed, or -1; `event` = request * 16 + bits."""

    time_ns: Float64[Array, "lane"]
    event: Int32[Array, "lane"]


class StepLog(NamedTuple):
    """Everything about the step that an iteration executed; void where `Log.time_ns` is -1."""

    duration_ns: Float64[Array, "lane"]
    prefill_tokens: Int32[Array, "lane"]
    prefill_chunks: Int32[Array, "lane"]
    prefill_area: Float64[Array, "lane"]
    prefill_kv_tokens: Int32[Array, "lane"]
    prefill_max_tokens: Int32[Array, "lane"]
    decodes: Int32[Array, "lane"]
    decode_sum: Float64[Array, "lane"]
    decode_max: Int32[Array, "lane"]
    decode_sumsq: Float64[Array, "lane"]
    emitting: Int32[Array, "lane"]
    running: Int32[Array, "lane"]
    finished: Int32[Array, "lane"]
    free_blocks: Int32[Array, "lane"]
    preempted: Int32[Array, "lane"]


def iterate(
    shape: Shape,
    lengths_s: Callable,
    lanes: Lanes,
    workloads: Workloads,
    prices: Prices,
    terms: Any,
    base: Int32[Array, "lane"],
    state: State,
) -> tuple[State, Log, StepLog]:
    """Advance every lane by one iteration.

    `terms`: `prices.terms` gathered by lane. `base`: the steps of `state.step` at which the keys were last re-based.
    """
    s = state
    lane = jnp.arange(shape.lanes, dtype=jnp.int32)
    slot0, ring0, phase0, row0 = lane * shape.slots, lane * shape.ring, lane * shape.phases, lane * shape.rows
    per_block = 1.0 / lanes.block_size.astype(jnp.float64)
    since = s.step - base

    def full_blocks(tokens):
        # the half keeps the product away from the integers, so the truncation is exact
        return ((tokens.astype(jnp.float64) + 0.5) * per_block).astype(jnp.int32)

    def blocks_of(tokens):
        return full_blocks(tokens + lanes.block_size - 1)

    def phase_of(held):
        """Phase of the steps in which a decode takes a block that holds `held` tokens at this step's start."""
        past = held - full_blocks(held) * lanes.block_size
        phase = s.phase - past
        return jnp.where(phase < 0, phase + lanes.block_size, phase), past == 0

    # What there is to end, and whether the demand for blocks fits.
    ring_mask = shape.ring - 1
    ends_at = ring0 + ((s.step - 1) & ring_mask)
    ending = _take(s.ends, ends_at)
    ends = ending >= 0
    demand = _take(s.phases, phase0 + s.phase)
    has_part = s.part_done > 0
    is_open = s.tokens_left >= 0
    preempts = ~ends & ~is_open & (demand > s.free)

    # The request at hand: the last admitted one if it is unfinished or to be preempted, else the head of the queue.
    subject = s.next - _int(has_part | preempts)
    row = row0 + subject
    place = lanes.workload + subject
    arrival_ns, arrival2_ns = _take(workloads.arrival_ns, place), _take(workloads.arrival_ns, place + 1)
    lengths, lengths2 = _take(workloads.lengths, place), _take(workloads.lengths, place + 1)
    own, own2 = _take(s.lives, row), _take(s.lives, row + 1)
    life, emitted = _high(own), _low(own)
    target = _high(lengths) + emitted
    left = _low(lengths) - emitted
    last_step = jnp.where(life > 0, life - 1, s.step) + left - 1
    last_at = ring0 + (last_step & ring_mask)
    same_end = _take(s.ends, last_at)

    # Remove one decode: its last token is out, or it is the victim, then the first of those that end with it.
    drops_part = preempts & has_part
    drops = preempts & ~has_part & (last_step >= s.step)
    removes = ends | drops
    slot = jnp.where(ends, ending, jnp.where(drops, same_end, s.free_slot))
    link = _take(s.link, slot0 + slot)
    key_at = _take(s.key, jnp.maximum(slot, 0), lane)
    held = key_at + since - 1
    phase_out, due = phase_of(held)
    part_blocks = blocks_of(s.part_done)
    free = s.free + jnp.where(removes, blocks_of(held), jnp.where(drops_part, part_blocks, 0))
    lost = jnp.where(drops, held, jnp.where(drops_part, s.part_done, 0))
    demand = demand - _int(removes & due)
    context = _real(jnp.where(removes, held + 1, 0))
    decodes = s.decodes - _int(removes)
    context_sum = s.context - context
    context_sq = s.context_sq - context * context
    finished = s.finished + _int(ends)
    preempted = s.preempted + _int(drops | drops_part)
    part_done = jnp.where(preempts, 0, s.part_done)
    has_part = has_part & ~preempts
    (ends, removes, drops, drops_part, preempts, slot, free, decodes, preempted, part_done, has_part, demand, held, part_blocks, phase_out) = lax.optimization_barrier((ends, removes, drops, drops_part, preempts, slot, free, decodes, preempted, part_done, has_part, demand, held, part_blocks, phase_out))
    key = s.key.at[_after(jnp.where(removes, slot, shape.slots), key_at), lane].set(
        jnp.iinfo(s.key.dtype).min, mode="drop", wrap_negative_indices=False
    )

    # Start the step.
    ready = ~preempts & ~(ends & (link >= 0)) & (is_open | (demand <= free))
    starts = ready & ~is_open
    free = free - jnp.where(starts, demand, 0)
    waits = subject < lanes.requests
    idle = starts & (decodes == 0) & ~has_part & waits
    time_ns = jnp.where(idle, jnp.maximum(s.time_ns, arrival_ns), s.time_ns)
    tokens_left = jnp.where(starts, lanes.budget - decodes, s.tokens_left)
    longest_key = jnp.max(key, axis=0)
    start_max = jnp.where(starts, longest_key.astype(jnp.int32) + since, s.start_max)
    start_sum = jnp.where(starts, context_sum, s.start_sum)
    start_sq = jnp.where(starts, context_sq, s.start_sq)
    longest = jnp.where(starts, 0, s.longest)
    completed = jnp.where(starts, 0, s.completed)

    (ready, starts, free, time_ns, tokens_left, longest, completed) = lax.optimization_barrier((ready, starts, free, time_ns, tokens_left, longest, completed))
    # One prefill chunk: of the unfinished prefill, or of the head of the queue.
    limit = jnp.minimum(lanes.concurrency + finished, lanes.requests)
    open_to_head = (preempted == 0) & (tokens_left > 0) & (decodes < lanes.seats)
    head = ready & ~has_part & open_to_head & (subject < limit) & (arrival_ns <= time_ns)
    skips = head & (life > 0)
    tries = (ready & has_part & (tokens_left > 0)) | (head & ~skips)
    chain = jnp.minimum(target, part_done + tokens_left)
    part_blocks = jnp.where(has_part, part_blocks, 0)
    needs = blocks_of(chain) - part_blocks
    runs = tries & (needs <= free) & (has_part | ~lanes.reserve | (blocks_of(target) <= free))
    gives_up = tries & has_part & ~runs
    completes = runs & (chain == target)
    free = free + jnp.where(runs, -needs, jnp.where(gives_up, part_blocks, 0))
    tokens_left = tokens_left - jnp.where(runs, chain - part_done, 0)
    lost = lost + jnp.where(gives_up, part_done, 0)
    preempted = preempted + _int(gives_up)
    longest = jnp.maximum(longest, jnp.where(runs, chain, 0))
    completed = completed + _int(completes)
    part_done = jnp.where(runs, jnp.where(completes, 0, chain), jnp.where(gives_up, 0, part_done))
    next_row = s.next + _int((runs & ~has_part) | skips) - _int(preempts | gives_up)

    (runs, gives_up, completes, chain, free, tokens_left, longest, completed, part_done, skips, limit) = lax.optimization_barrier((runs, gives_up, completes, chain, free, tokens_left, longest, completed, part_done, skips, limit))
    # A completed prefill becomes a decode.
    fits = completes & (slot >= 0)
    phase_in, _ = phase_of(target - 1)
    target_f = _real(jnp.where(completes, target, 0))
    decodes = decodes + _int(completes)
    context_sum = context_sum + target_f
    context_sq = context_sq + target_f * target_f
    key = key.at[_after(jnp.where(fits, slot, shape.slots), longest_key), lane].set(
        (target - since).astype(key.dtype), mode="drop", wrap_negative_indices=False
    )
    chains = _put(s.ends, _after(jnp.where(ends, ends_at, last_at), same_end), link, removes)
    chains = _put(chains, last_at, slot, fits)
    links = _put(s.link, slot0 + slot, jnp.where(fits, same_end, s.free_slot), removes | fits)
    free_slot = jnp.where(removes & ~fits, slot, jnp.where(fits & ~removes, link, s.free_slot))
    phases = _add(s.phases, phase0 + phase_out, -1, removes)
    phases = _add(phases, phase0 + phase_in, 1, fits)
    born = jnp.where(completes, s.step + 1, 0)
    total = emitted + jnp.where(drops, s.step + 1 - life, 0)
    lives = _put(s.lives, _after(row, own2), (born.astype(jnp.int64) << 32) + total.astype(jnp.int64), completes | drops)

    (decodes, context_sum, context_sq) = lax.optimization_barrier((decodes, context_sum, context_sq))
    # May the request behind it be admitted, too?
    target2 = _high(lengths2) + _low(own2)
    room = (blocks_of(jnp.minimum(target2, tokens_left)) <= free) & (~lanes.reserve | (blocks_of(target2) <= free))
    behind = (
        (runs | skips)
        & (tokens_left > 0)
        & (decodes < lanes.seats)
        & (subject + 1 < limit)
        & (arrival2_ns <= time_ns)
        & (room | (_high(own2) > 0))
    )

    # Execute. The chunks' sums follow from the sums before and after them.
    tokens = lanes.budget - tokens_left
    executes = ready & ~behind & (tokens > 0)
    rows = decodes - completed
    chunks = completed + _int(part_done > 0)
    prefill_tokens = _real(tokens - rows)
    part = _real(part_done)
    kv_tokens = context_sum - start_sum + part
    prior = kv_tokens - prefill_tokens
    area = 0.5 * (context_sq - start_sq + part * part - prior * prior + prefill_tokens)
    decode_max = jnp.where(rows > 0, start_max, 0)
    (executes, chunks, prefill_tokens, kv_tokens, area, tokens) = lax.optimization_barrier((executes, chunks, prefill_tokens, kv_tokens, area, tokens))
    seconds = (
        _take(prices.token_s, lanes.table, _int(chunks == 0), tokens)
        + _take(prices.row_s, lanes.plan, decodes)
        + lengths_s(
            jnp,
            terms,
            prefill_tokens,
            _real(chunks),
            area,
            kv_tokens,
            _real(longest),
            _real(rows),
            start_sum,
            _real(decode_max),
            start_sq,
        )
    )
    duration_ns = jnp.floor(1e9 * seconds + 0.5)
    end_ns = time_ns + duration_ns
    phase = s.phase + _int(executes)
    grows = jnp.where(executes, decodes, 0)
    after = State(
        key=key,
        link=links,
        ends=chains,
        phases=phases,
        lives=lives,
        time_ns=jnp.where(executes, end_ns, time_ns),
        step=s.step + _int(executes),
        phase=jnp.where(phase == lanes.block_size, 0, phase),
        next=next_row,
        finished=finished,
        free=free,
        free_slot=free_slot,
        decodes=decodes,
        context=context_sum + _real(grows),
        context_sq=context_sq + jnp.where(executes, 2.0 * context_sum + _real(decodes), 0.0),
        part_done=part_done,
        tokens_left=jnp.where(ready & behind, tokens_left, -1),
        preempted=jnp.where(executes, 0, preempted),
        completed=completed,
        longest=longest,
        start_sum=start_sum,
        start_sq=start_sq,
        start_max=start_max,
        computed=s.computed
        + _real(jnp.where(executes, tokens, 0) - lost)
        + jnp.where(completes & ~fits, jnp.nan, 0.0),
    )
    bits = _int(runs) * RUNS + _int(completes) * COMPLETES + _int(drops) * DROPS + _int(drops_part | gives_up) * DROPS_PART
    log = Log(time_ns=jnp.where(executes, end_ns, -1.0), event=(subject << EVENT_BITS) + bits)
    steps = StepLog(
        duration_ns=duration_ns,
        prefill_tokens=tokens - rows,
        prefill_chunks=chunks,
        prefill_area=area,
        prefill_kv_tokens=kv_tokens.astype(jnp.int32),
        prefill_max_tokens=longest,
        decodes=rows,
        decode_sum=start_sum,
        decode_max=decode_max,
        decode_sumsq=start_sq,
        emitting=decodes,
        running=decodes + _int(part_done > 0),
        finished=finished,
        free_blocks=free,
        preempted=preempted,
    )
    return after, log, steps


def _int(mask):
    return mask.astype(jnp.int32)


def _real(count):
    return count.astype(jnp.float64)


def _high(pair):
    return (pair >> 32).astype(jnp.int32)


def _low(pair):
    return pair.astype(jnp.int32)


def _take(array, *index):
    """One element per lane; small integers as int32."""
    out = array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return out.astype(jnp.int32) if out.dtype == jnp.int16 else out


def _after(index, value):
    """`index`, made to depend on `value`, so that the write there comes after the read that gave `value`.

    Without it the compiler copies the whole array in each iteration to keep the two apart. No array here holds
    -2**15 + 1, but the compiler doesn't know.
    """
    return index + _int(value.astype(jnp.int32) == -(2**15) + 1)


def _put(flat, index, value, where):
    """Write one element per lane where asked."""
    return flat.at[jnp.where(where, index, flat.shape[0])].set(
        value.astype(flat.dtype), mode="drop", wrap_negative_indices=False
    )


def _add(flat, index, value, where):
    """Add to one element per lane where asked."""
    return flat.at[jnp.where(where, index, flat.shape[0])].add(
        jnp.asarray(value, flat.dtype), mode="drop", wrap_negative_indices=False
    )

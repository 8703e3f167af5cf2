"""One iteration of all lanes: the micro-operations of a scheduling step, masked.

In one iteration a lane may end one request or preempt one, start its step, run one prefill chunk (of the unfinished
prefill, else of the head of the queue), and execute the step when nothing more can be done in it. A lane with more to
do than one of each stays in its step for another iteration, so any number per step is exact.

Rules: vLLM V1, first come first served, chunked prefill, blocks counted, recompute preemption, no prefix reuse.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float64, Int32

from sim.scan.state import (
    EMITTED,
    FIRST,
    LAST_START,
    PREEMPTIONS,
    SCHEDULED,
    SLOT,
    Lanes,
    Prices,
    Shape,
    State,
    Workloads,
)


class StepLog(NamedTuple):
    """What an iteration executed; `time_ns`, the step's end, is -1 where it executed nothing."""

    time_ns: Float64[Array, "lane"]
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
    shape: Shape, lengths_s: Callable, lanes: Lanes, workloads: Workloads, prices: Prices, terms: Any, state: State
) -> tuple[State, StepLog]:
    """Advance every lane by one iteration. `terms`: `prices.terms` gathered by lane."""
    s = state
    lane = jnp.arange(shape.lanes, dtype=jnp.int32)
    slot0, ring0, phase0, row0 = lane * shape.slots, lane * shape.ring, lane * shape.phases, lane * shape.rows
    block = lanes.block_size.astype(jnp.float64)
    per_block = 1.0 / block

    def whole_blocks(tokens):
        # the half keeps the product away from the integers, so the truncation is exact
        return ((tokens.astype(jnp.float64) + 0.5) * per_block).astype(jnp.int32)

    def blocks_of(tokens):
        return whole_blocks(tokens + lanes.block_size - 1)

    def phase_of(tokens):
        """Phase of the steps in which a decode that holds `tokens` at this step takes a block."""
        past = tokens - whole_blocks(tokens) * lanes.block_size
        phase = s.phase - past
        return jnp.where(phase < 0, phase + lanes.block_size, phase), past == 0

    # What there is to end, and whether the demand for blocks fits.
    ring_mask = shape.ring - 1
    ends_at = ring0 + ((s.step - 1) & ring_mask)
    ending = _take(s.ends, ends_at)
    ends = ending >= 0
    demand = _take(s.phases, phase0 + s.phase)
    has_part = s.part_left > 0
    preempts = ~ends & ~s.open & (demand > s.free)

    # The request at hand: the last admitted one if it is unfinished or to be preempted, else the head of the queue.
    subject = s.next - (has_part | preempts).astype(jnp.int32)
    row = row0 + subject
    own = s.requests.at[jnp.stack([row, row + 1])].get(mode="promise_in_bounds", wrap_negative_indices=False)
    place = lanes.workload + subject
    length = workloads.lengths.at[jnp.stack([place, place + 1])].get(
        mode="promise_in_bounds", wrap_negative_indices=False
    )
    arrival_ns = _take(workloads.arrival_ns, place)
    arrival2_ns = _take(workloads.arrival_ns, place + 1)
    emitted = own[0, :, EMITTED]
    target = length[0, :, 0] + emitted
    left = length[0, :, 1] - emitted
    target2 = length[1, :, 0] + own[1, :, EMITTED]
    life = own[0, :, LAST_START]
    last_step = life + left - 2

    # Remove one decode: its last token is out, or it is the victim.
    drops_part = preempts & has_part
    drops = preempts & ~has_part & (last_step >= s.step)
    removes = ends | drops
    slot = jnp.where(ends, ending, jnp.where(drops, own[0, :, SLOT], s.free_slot))
    link = _take(s.link, slot0 + slot)
    key_at = s.key.at[jnp.maximum(slot, 0), lane].get(mode="promise_in_bounds", wrap_negative_indices=False)
    context = key_at.astype(jnp.int32) + (s.step - s.base)
    held = context - 1
    phase_out, due = phase_of(held)
    part_blocks = blocks_of(s.part_done)
    freed = jnp.where(removes, blocks_of(held), jnp.where(drops_part, part_blocks, 0))
    lost = jnp.where(drops, held, jnp.where(drops_part, s.part_done, 0))
    free = s.free + freed
    demand = demand - (removes & due).astype(jnp.int32)
    context_f = jnp.where(removes, context, 0).astype(jnp.float64)
    removed = removes.astype(jnp.int32)
    decodes = s.decodes - removed
    context_sum = s.context - context_f
    context_sq = s.context_sq - context_f * context_f
    finished = s.finished + ends.astype(jnp.int32)
    preempted = s.preempted + (drops | drops_part).astype(jnp.int32)
    part_left = jnp.where(preempts, 0, s.part_left)
    part_done = jnp.where(preempts, 0, s.part_done)
    has_part = has_part & ~preempts
    key = s.key.at[_after(jnp.where(removes, slot, shape.slots), key_at), lane].set(
        jnp.iinfo(s.key.dtype).min, mode="drop", wrap_negative_indices=False
    )
    removed_at = jnp.where(ends, ends_at, ring0 + (last_step & ring_mask))

    # Start the step.
    ready = ~preempts & ~(ends & (link >= 0)) & (s.open | (demand <= free))
    starts = ready & ~s.open
    free = free - jnp.where(starts, demand, 0)
    waits = subject < lanes.requests
    idle = starts & (decodes == 0) & ~has_part & waits
    time_ns = jnp.where(idle, jnp.maximum(s.time_ns, arrival_ns), s.time_ns)
    tokens_left = jnp.where(starts, lanes.budget - decodes, s.tokens_left)
    longest_key = jnp.max(key, axis=0)
    longest_context = longest_key.astype(jnp.int32) + (s.step - s.base)
    start_max = jnp.where(starts, longest_context, s.start_max)
    start_sum = jnp.where(starts, context_sum, s.start_sum)
    start_sq = jnp.where(starts, context_sq, s.start_sq)
    chunks = jnp.where(starts, 0, s.chunks)
    area = jnp.where(starts, 0.0, s.area)
    longest = jnp.where(starts, 0, s.longest)
    completed = jnp.where(starts, 0, s.completed)

    # One prefill chunk: of the unfinished prefill, or of the head of the queue.
    limit = lanes.concurrency + finished
    admits = (preempted == 0) & (tokens_left > 0) & (decodes < lanes.seats)
    head = ready & ~has_part & admits & waits & (subject < limit) & (arrival_ns <= time_ns)
    skips = head & (life > 0)
    tries = (ready & has_part & (tokens_left > 0)) | (head & ~skips)
    chunk = jnp.minimum(target - part_done, tokens_left)
    chain = part_done + chunk
    part_blocks = jnp.where(has_part, part_blocks, 0)
    needs = blocks_of(chain) - part_blocks
    whole = ~lanes.reserve | has_part | (blocks_of(target) <= free)
    runs = tries & (needs <= free) & whole
    gives_up = tries & has_part & ~runs
    free = free + jnp.where(runs, -needs, jnp.where(gives_up, part_blocks, 0))
    lost = lost + jnp.where(gives_up, part_done, 0)
    preempted = preempted + gives_up.astype(jnp.int32)
    tokens_left = tokens_left - jnp.where(runs, chunk, 0)
    completes = runs & (chain == target)
    chunks = chunks + runs.astype(jnp.int32)
    chunk_f = jnp.where(runs, chunk, 0).astype(jnp.float64)
    area = area + chunk_f * (part_done.astype(jnp.float64) + 0.5 * (chunk_f + 1.0))
    longest = jnp.maximum(longest, jnp.where(runs, chain, 0))
    completed = completed + completes.astype(jnp.int32)
    kv_prior = jnp.where(runs, part_done, 0)
    part_left = jnp.where(runs, target - chain, jnp.where(gives_up, 0, part_left))
    part_done = jnp.where(runs & ~completes, chain, jnp.where(completes | gives_up, 0, part_done))
    enters = (runs & ~has_part) | skips
    backs = preempts | gives_up
    next_row = s.next + enters.astype(jnp.int32) - backs.astype(jnp.int32)

    # A completed prefill becomes a decode.
    fits = completes & (slot >= 0)
    last = s.step + left - 1
    last_at = ring0 + (last & ring_mask)
    same_end = _take(s.ends, last_at)
    heads = _put(s.ends, _after(removed_at, same_end), link, removes)
    phase_in, _ = phase_of(target - 1)
    decodes = decodes + completes.astype(jnp.int32)
    target_f = jnp.where(completes, target, 0).astype(jnp.float64)
    context_sum = context_sum + target_f
    context_sq = context_sq + target_f * target_f
    heads = _put(heads, last_at, slot, fits)
    links = _put(s.link, slot0 + slot, jnp.where(fits, same_end, s.free_slot), removes | fits)
    free_slot = jnp.where(removes & ~fits, slot, jnp.where(fits & ~removes, link, s.free_slot))
    phases = _add(s.phases, phase0 + phase_out, -1, removes)
    phases = _add(phases, phase0 + phase_in, 1, fits)
    key = key.at[_after(jnp.where(fits, slot, shape.slots), longest_key), lane].set(
        (target - s.step + s.base).astype(key.dtype), mode="drop", wrap_negative_indices=False
    )

    # The request's own row.
    columns: list[Any] = [None] * own.shape[-1]
    now = s.step + 1
    first, scheduled = own[0, :, FIRST], own[0, :, SCHEDULED]
    victim = drops | drops_part | gives_up
    columns[FIRST] = jnp.where(completes & (first == 0), now, first)
    columns[SCHEDULED] = jnp.where(runs & (scheduled == 0), now, scheduled)
    columns[LAST_START] = jnp.where(completes, now, jnp.where(drops, 0, life))
    columns[EMITTED] = emitted + jnp.where(drops, now - life, 0)
    columns[SLOT] = jnp.where(fits, slot, own[0, :, SLOT])
    columns[PREEMPTIONS] = own[0, :, PREEMPTIONS] + victim.astype(jnp.int32)
    requests = s.requests.at[jnp.where(runs | victim, row, s.requests.shape[0])].set(
        jnp.stack(columns, axis=-1), mode="drop", wrap_negative_indices=False
    )

    # May the request behind it be admitted, too?
    next_chunk = blocks_of(jnp.minimum(target2, tokens_left))
    room = (next_chunk <= free) & (~lanes.reserve | (blocks_of(target2) <= free))
    behind = (
        (runs | skips)
        & (tokens_left > 0)
        & (decodes < lanes.seats)
        & (subject + 1 < jnp.minimum(limit, lanes.requests))
        & (arrival2_ns <= time_ns)
        & (room | (own[1, :, LAST_START] > 0))
    )

    # Execute.
    tokens = lanes.budget - tokens_left
    executes = ready & ~behind & (tokens > 0)
    rows = decodes - completed
    prefill_tokens = tokens - rows
    kv_tokens = prefill_tokens + kv_prior
    seconds = (
        _take(prices.token_s, lanes.table, (chunks == 0).astype(jnp.int32), tokens)
        + _take(prices.row_s, lanes.plan, decodes)
        + lengths_s(
            jnp,
            terms,
            prefill_tokens.astype(jnp.float64),
            chunks.astype(jnp.float64),
            area,
            kv_tokens.astype(jnp.float64),
            longest.astype(jnp.float64),
            rows.astype(jnp.float64),
            start_sum,
            jnp.where(rows > 0, start_max, 0).astype(jnp.float64),
            start_sq,
        )
    )
    duration_ns = jnp.floor(1e9 * seconds + 0.5)
    time_ns = jnp.where(executes, time_ns + duration_ns, time_ns)
    phase = s.phase + executes.astype(jnp.int32)
    grows = jnp.where(executes, decodes, 0).astype(jnp.float64)
    after = State(
        key=key,
        link=links,
        ends=heads,
        phases=phases,
        requests=requests,
        time_ns=time_ns,
        step=s.step + executes.astype(jnp.int32),
        base=s.base,
        phase=jnp.where(phase == lanes.block_size, 0, phase),
        next=next_row,
        finished=finished,
        free=free,
        free_slot=free_slot,
        decodes=decodes,
        context=context_sum + grows,
        context_sq=context_sq + jnp.where(executes, 2.0 * context_sum, 0.0) + grows,
        part_left=part_left,
        part_done=part_done,
        open=ready & behind,
        tokens_left=tokens_left,
        preempted=jnp.where(executes, 0, preempted),
        chunks=chunks,
        area=area,
        longest=longest,
        completed=completed,
        start_sum=start_sum,
        start_sq=start_sq,
        start_max=start_max,
        emitted=s.emitted + grows,
        computed=s.computed + jnp.where(executes, tokens, 0).astype(jnp.float64) - lost.astype(jnp.float64),
        overflow=s.overflow | (completes & ~fits),
    )
    log = StepLog(
        time_ns=jnp.where(executes, time_ns, -1.0),
        duration_ns=duration_ns,
        prefill_tokens=prefill_tokens,
        prefill_chunks=chunks,
        prefill_area=area,
        prefill_kv_tokens=kv_tokens,
        prefill_max_tokens=longest,
        decodes=rows,
        decode_sum=start_sum,
        decode_max=jnp.where(rows > 0, start_max, 0),
        decode_sumsq=start_sq,
        emitting=decodes,
        running=decodes + (part_left > 0).astype(jnp.int32),
        finished=finished,
        free_blocks=free,
        preempted=preempted,
    )
    return after, log


def _take(array, *index):
    """One element per lane; integers as int32."""
    out = array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return out.astype(jnp.int32) if jnp.issubdtype(out.dtype, jnp.integer) else out


def _after(index, value):
    """`index`, made to depend on `value`, so that a write there comes after the read that gave `value`.

    Without it the compiler copies the whole array in each iteration, to keep the two apart. No array here holds -2**15 + 1,
    but the compiler doesn't know.
    """
    return index + (value.astype(jnp.int32) == -32767).astype(jnp.int32)


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

"""One iteration of all lanes: the micro-operations of a scheduling step, masked.

In one iteration a lane may end one request or preempt one, start its step, run one prefill chunk (of the unfinished
prefill, else of the head of the queue), and execute the step when nothing more can be done in it. A lane with more to
do than one of each stays in its step for another iteration, so any number per step is exact.

Rules: vLLM V1, first come first served, chunked prefill, blocks counted, recompute preemption, no prefix reuse.

Each part below hands over a tuple behind an optimization barrier. Without it the compiler repeats all that a value
depends on in the kernel of every value that depends on it, at a third of the speed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float64, Int, Int32

from sim.scan.flat import Places, add_to, as_int, as_real, high, low, put, put_column, take
from sim.scan.rounded import RoundedNumpy, rounded
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


class _Look(NamedTuple):
    """What there is to do, and the request at hand (`subject`): the last admitted one if it is unfinished or to
    be preempted, else the head of the queue. `*2`: of the request behind it."""

    ends: Bool[Array, "lane"]
    preempts: Bool[Array, "lane"]
    has_part: Bool[Array, "lane"]
    ending: Int32[Array, "lane"]
    demand: Int32[Array, "lane"]
    subject: Int32[Array, "lane"]
    life: Int32[Array, "lane"]
    emitted: Int32[Array, "lane"]
    target: Int32[Array, "lane"]
    last_step: Int32[Array, "lane"]
    same_end: Int32[Array, "lane"]
    arrival_ns: Float64[Array, "lane"]
    arrival2_ns: Float64[Array, "lane"]
    target2: Int32[Array, "lane"]
    life2: Int32[Array, "lane"]
    ends_at: Int32[Array, "lane"]
    last_at: Int32[Array, "lane"]


class _Removed(NamedTuple):
    """After one decode has left, its last token out or preempted, or the unfinished prefill has been preempted."""

    removes: Bool[Array, "lane"]
    drops: Bool[Array, "lane"]
    drops_part: Bool[Array, "lane"]
    slot: Int32[Array, "lane"]
    link: Int32[Array, "lane"]
    key: Int[Array, "slot lane"]
    phase: Int32[Array, "lane"]
    demand: Int32[Array, "lane"]
    free: Int32[Array, "lane"]
    lost: Int32[Array, "lane"]
    decodes: Int32[Array, "lane"]
    context: Float64[Array, "lane"]
    context_sq: Float64[Array, "lane"]
    finished: Int32[Array, "lane"]
    preempted: Int32[Array, "lane"]
    part_done: Int32[Array, "lane"]
    part_blocks: Int32[Array, "lane"]


class _Started(NamedTuple):
    """After the step has started: decodes have their blocks, the clock has jumped over an idle time."""

    ready: Bool[Array, "lane"]
    free: Int32[Array, "lane"]
    time_ns: Float64[Array, "lane"]
    tokens_left: Int32[Array, "lane"]
    completed: Int32[Array, "lane"]
    longest: Int32[Array, "lane"]
    start_sum: Float64[Array, "lane"]
    start_sq: Float64[Array, "lane"]
    start_max: Int32[Array, "lane"]


class _Chunked(NamedTuple):
    """After one prefill chunk."""

    runs: Bool[Array, "lane"]
    completes: Bool[Array, "lane"]
    skips: Bool[Array, "lane"]
    gives_up: Bool[Array, "lane"]
    limit: Int32[Array, "lane"]
    free: Int32[Array, "lane"]
    lost: Int32[Array, "lane"]
    tokens_left: Int32[Array, "lane"]
    preempted: Int32[Array, "lane"]
    completed: Int32[Array, "lane"]
    longest: Int32[Array, "lane"]
    part_done: Int32[Array, "lane"]
    next: Int32[Array, "lane"]
    decodes: Int32[Array, "lane"]
    context: Float64[Array, "lane"]
    context_sq: Float64[Array, "lane"]
    joins: Bool[Array, "lane"]


def iterate(
    shape: Shape,
    lengths_s: Callable,
    lanes: Lanes,
    workloads: Workloads,
    prices: Prices,
    terms: Any,
    state: State,
) -> tuple[State, Log, StepLog]:
    """Advance every lane by one iteration. `terms`: `prices.terms` gathered by lane."""
    index = jnp.arange(shape.lanes, dtype=jnp.int32)
    at = Places(
        lane=index,
        slot=index * shape.slots,
        ring=index * shape.ring,
        phase=index * shape.phases,
        row=index * shape.rows,
        block_size=lanes.block_size,
        per_block=1.0 / as_real(lanes.block_size),
    )
    look = _look(shape, lanes, workloads, at, state)
    removed = _remove(at, state, look)
    started = _start(lanes, state, look, removed)
    chunked = _chunk(lanes, at, look, removed, started)
    state = _store(lanes, at, state, look, removed, started, chunked)
    return _execute(lengths_s, lanes, prices, terms, at, state, look, removed, started, chunked)


def _look(shape: Shape, lanes: Lanes, workloads: Workloads, at: Places, s: State) -> _Look:
    ends_at = at.ring + ((s.step - 1) & (shape.ring - 1))
    ending = take(s.ends, ends_at)
    demand = take(s.phases, at.phase + s.phase)
    ends = ending >= 0
    has_part = s.part_done > 0
    preempts = ~ends & (s.tokens_left < 0) & (demand > s.free)
    subject = s.next - as_int(has_part | preempts)
    row, place = at.row + subject, lanes.workload + subject
    arrival_ns, arrival2_ns = take(workloads.arrival_ns, place), take(workloads.arrival_ns, place + 1)
    if s.release_ns is not None:
        # the end that this very iteration removes releases one, too
        released, at_ns = s.finished + lanes.concurrency, s.time_ns + lanes.delay_ns
        now, now2 = ends & (subject == released), ends & (subject + 1 == released)
        arrival_ns = jnp.maximum(arrival_ns, jnp.where(now, at_ns, take(s.release_ns, row)))
        arrival2_ns = jnp.maximum(arrival2_ns, jnp.where(now2, at_ns, take(s.release_ns, row + 1)))
    lengths, lengths2 = take(workloads.lengths, place), take(workloads.lengths, place + 1)
    own, own2 = take(s.lives, row), take(s.lives, row + 1)
    life, emitted = high(own), low(own)
    last_step = jnp.where(life > 0, life - 1, s.step) + low(lengths) - emitted - 1
    last_at = at.ring + (last_step & (shape.ring - 1))
    return lax.optimization_barrier(
        _Look(
            ends=ends,
            preempts=preempts,
            has_part=has_part & ~preempts,
            ending=ending,
            demand=demand,
            subject=subject,
            life=life,
            emitted=emitted,
            target=high(lengths) + emitted,
            last_step=last_step,
            same_end=take(s.ends, last_at),
            arrival_ns=arrival_ns,
            arrival2_ns=arrival2_ns,
            target2=high(lengths2) + low(own2),
            life2=high(own2),
            ends_at=ends_at,
            last_at=last_at,
        )
    )


def _remove(at: Places, s: State, look: _Look) -> _Removed:
    had_part = s.part_done > 0
    drops_part = look.preempts & had_part
    drops = look.preempts & ~had_part & (look.last_step >= s.step)
    removes = look.ends | drops
    # a victim was admitted after all others, so it is the first of those that end with it
    slot = jnp.where(look.ends, look.ending, jnp.where(drops, look.same_end, s.free_slot))
    held = take(s.key, jnp.maximum(slot, 0), at.lane) + (s.step - s.base) - 1
    part_blocks = at.blocks(s.part_done)
    freed = jnp.where(removes, at.blocks(held), jnp.where(drops_part, part_blocks, 0))
    phase = at.phase_of(held, s.phase)
    context = as_real(jnp.where(removes, held + 1, 0))
    return lax.optimization_barrier(
        _Removed(
            removes=removes,
            drops=drops,
            drops_part=drops_part,
            slot=slot,
            link=take(s.link, at.slot + slot),
            key=put_column(s.key, slot, at.lane, jnp.iinfo(s.key.dtype).min, removes, after=held),
            phase=phase,
            demand=look.demand - as_int(removes & (phase == s.phase)),
            free=s.free + freed,
            lost=jnp.where(drops, held, jnp.where(drops_part, s.part_done, 0)),
            decodes=s.decodes - as_int(removes),
            context=s.context - context,
            context_sq=s.context_sq - context * context,
            finished=s.finished + as_int(look.ends),
            preempted=s.preempted + as_int(drops | drops_part),
            part_done=jnp.where(look.preempts, 0, s.part_done),
            part_blocks=jnp.where(look.preempts, 0, part_blocks),
        )
    )


def _start(lanes: Lanes, s: State, look: _Look, removed: _Removed) -> _Started:
    is_open = s.tokens_left >= 0
    more_end = look.ends & (removed.link >= 0)
    ready = ~look.preempts & ~more_end & (is_open | (removed.demand <= removed.free))
    starts = ready & ~is_open
    idle = starts & (removed.decodes == 0) & ~look.has_part & (look.subject < lanes.requests)
    longest = jnp.max(removed.key, axis=0).astype(jnp.int32) + (s.step - s.base)
    return lax.optimization_barrier(
        _Started(
            ready=ready,
            free=removed.free - jnp.where(starts, removed.demand, 0),
            time_ns=jnp.where(idle, jnp.maximum(s.time_ns, look.arrival_ns), s.time_ns),
            tokens_left=jnp.where(starts, lanes.budget - removed.decodes, s.tokens_left),
            completed=jnp.where(starts, 0, s.completed),
            longest=jnp.where(starts, 0, s.longest),
            start_sum=jnp.where(starts, removed.context, s.start_sum),
            start_sq=jnp.where(starts, removed.context_sq, s.start_sq),
            start_max=jnp.where(starts, longest, s.start_max),
        )
    )


def _chunk(lanes: Lanes, at: Places, look: _Look, removed: _Removed, started: _Started) -> _Chunked:
    ready, free, tokens_left = started.ready, started.free, started.tokens_left
    done = removed.part_done
    limit = jnp.minimum(lanes.concurrency + removed.finished, lanes.requests)
    head = (
        ready
        & ~look.has_part
        & (removed.preempted == 0)
        & (tokens_left > 0)
        & (removed.decodes < lanes.seats)
        & (look.subject < limit)
        & (look.arrival_ns <= started.time_ns)
    )
    skips = head & (look.life > 0)  # it ended before the ones in front of it were preempted
    tries = (ready & look.has_part & (tokens_left > 0)) | (head & ~skips)
    chain = jnp.minimum(look.target, done + tokens_left)
    needs = at.blocks(chain) - removed.part_blocks
    runs = tries & (needs <= free) & (look.has_part | ~lanes.reserve | (at.blocks(look.target) <= free))
    gives_up = tries & look.has_part & ~runs
    completes = runs & (chain == look.target)
    joining = as_real(jnp.where(completes, look.target, 0))
    return lax.optimization_barrier(
        _Chunked(
            runs=runs,
            completes=completes,
            skips=skips,
            gives_up=gives_up,
            limit=limit,
            free=free + jnp.where(runs, -needs, jnp.where(gives_up, removed.part_blocks, 0)),
            lost=removed.lost + jnp.where(gives_up, done, 0),
            tokens_left=tokens_left - jnp.where(runs, chain - done, 0),
            preempted=removed.preempted + as_int(gives_up),
            completed=started.completed + as_int(completes),
            longest=jnp.maximum(started.longest, jnp.where(runs, chain, 0)),
            part_done=jnp.where(completes | gives_up, 0, jnp.where(runs, chain, done)),
            next=look.subject + as_int(runs | skips | (look.has_part & ~gives_up)),
            decodes=removed.decodes + as_int(completes),
            context=removed.context + joining,
            context_sq=removed.context_sq + joining * joining,
            joins=completes & (removed.slot >= 0),
        )
    )


def _store(
    lanes: Lanes, at: Places, s: State, look: _Look, removed: _Removed, started: _Started, chunked: _Chunked
) -> State:
    """Write the large arrays. A decode that joins takes the slot of one that leaves, if one does."""
    removes, joins, slot, link = removed.removes, chunked.joins, removed.slot, removed.link
    ends = put(s.ends, jnp.where(look.ends, look.ends_at, look.last_at), link, removes)
    phases = add_to(s.phases, at.phase + removed.phase, -1, removes)
    born = jnp.where(chunked.completes, s.step + 1, 0).astype(jnp.int64)
    emitted = look.emitted + jnp.where(removed.drops, s.step + 1 - look.life, 0)
    key = (look.target - (s.step - s.base)).astype(s.key.dtype)
    release_ns = s.release_ns
    if release_ns is not None:
        released = s.finished + lanes.concurrency
        release_ns = put(
            release_ns, at.row + released, s.time_ns + lanes.delay_ns, look.ends & (released < lanes.requests)
        )
    return s._replace(
        key=put_column(removed.key, slot, at.lane, key, joins, after=started.start_max),
        link=put(s.link, at.slot + slot, jnp.where(joins, look.same_end, s.free_slot), removes | joins),
        ends=put(ends, look.last_at, slot, joins),
        phases=add_to(phases, at.phase + at.phase_of(look.target - 1, s.phase), 1, joins),
        lives=put(
            s.lives, at.row + look.subject, (born << 32) + emitted.astype(jnp.int64), chunked.completes | removed.drops
        ),
        release_ns=release_ns,
        free_slot=jnp.where(removes & ~joins, slot, jnp.where(joins & ~removes, link, s.free_slot)),
    )


def _execute(
    lengths_s: Callable,
    lanes: Lanes,
    prices: Prices,
    terms: Any,
    at: Places,
    s: State,
    look: _Look,
    removed: _Removed,
    started: _Started,
    chunked: _Chunked,
) -> tuple[State, Log, StepLog]:
    """Price the step and let it pass, unless the request behind the one at hand may be admitted to it, too."""
    free, tokens_left, decodes = chunked.free, chunked.tokens_left, chunked.decodes
    part = at.blocks(jnp.minimum(look.target2, tokens_left))
    room = (part <= free) & (~lanes.reserve | (at.blocks(look.target2) <= free))
    stays = (
        (chunked.runs | chunked.skips)
        & (tokens_left > 0)
        & (decodes < lanes.seats)
        & (look.subject + 1 < chunked.limit)
        & (look.arrival2_ns <= started.time_ns)
        & (room | (look.life2 > 0))
    )
    tokens = lanes.budget - tokens_left
    executes = started.ready & ~stays & (tokens > 0)
    rows = decodes - chunked.completed
    chunks = chunked.completed + as_int(chunked.part_done > 0)
    # the chunks' sums follow from those of the contexts before and after them
    prefill_tokens = as_real(tokens - rows)
    part_done = as_real(chunked.part_done)
    kv_tokens = chunked.context - started.start_sum + part_done
    prior = kv_tokens - prefill_tokens
    area = 0.5 * (chunked.context_sq - started.start_sq + part_done * part_done - prior * prior + prefill_tokens)
    decode_max = jnp.where(rows > 0, started.start_max, 0)
    stays, tokens, executes, rows, chunks, prefill_tokens, kv_tokens, area, decode_max = lax.optimization_barrier(
        (stays, tokens, executes, rows, chunks, prefill_tokens, kv_tokens, area, decode_max)
    )
    fixed_s = take(prices.token_s, lanes.table, as_int(chunks == 0), tokens) + take(prices.row_s, lanes.plan, decodes)
    statistics = (
        prefill_tokens,
        as_real(chunks),
        area,
        kv_tokens,
        as_real(chunked.longest),
        as_real(rows),
        started.start_sum,
        as_real(decode_max),
        started.start_sq,
    )
    fixed_s, terms, statistics = rounded((fixed_s, terms, statistics), prices.zero)
    step_ns = 1e9 * (fixed_s + lengths_s(RoundedNumpy, terms, *statistics)) + 0.5
    duration_ns = jnp.floor(step_ns.value)
    time_ns = lax.optimization_barrier(started.time_ns + duration_ns)
    phase = s.phase + as_int(executes)
    overflow = chunked.completes & ~chunked.joins
    after = s._replace(
        time_ns=jnp.where(executes, time_ns, started.time_ns),
        step=s.step + as_int(executes),
        phase=jnp.where(phase == lanes.block_size, 0, phase),
        next=chunked.next,
        finished=removed.finished,
        free=free,
        decodes=decodes,
        context=chunked.context + as_real(jnp.where(executes, decodes, 0)),
        context_sq=chunked.context_sq + jnp.where(executes, 2.0 * chunked.context + as_real(decodes), 0.0),
        part_done=chunked.part_done,
        tokens_left=jnp.where(started.ready & stays, tokens_left, -1),
        preempted=jnp.where(executes, 0, chunked.preempted),
        completed=chunked.completed,
        longest=chunked.longest,
        start_sum=started.start_sum,
        start_sq=started.start_sq,
        start_max=started.start_max,
        computed=s.computed
        + as_real(jnp.where(executes, tokens, 0) - chunked.lost)
        + jnp.where(overflow, jnp.nan, 0.0),
    )
    event = (
        (look.subject << EVENT_BITS)
        + as_int(chunked.runs) * RUNS
        + as_int(chunked.completes) * COMPLETES
        + as_int(removed.drops) * DROPS
        + as_int(removed.drops_part | chunked.gives_up) * DROPS_PART
    )
    steps = StepLog(
        duration_ns=duration_ns,
        prefill_tokens=tokens - rows,
        prefill_chunks=chunks,
        prefill_area=area,
        prefill_kv_tokens=kv_tokens.astype(jnp.int32),
        prefill_max_tokens=chunked.longest,
        decodes=rows,
        decode_sum=started.start_sum,
        decode_max=decode_max,
        decode_sumsq=started.start_sq,
        emitting=decodes,
        running=decodes + as_int(chunked.part_done > 0),
        finished=removed.finished,
        free_blocks=free,
        preempted=chunked.preempted,
    )
    return after, Log(time_ns=jnp.where(executes, time_ns, -1.0), event=event), steps

"""One iteration of all lanes: the micro-operations of a scheduling step, masked.

In one iteration a lane may end one request or preempt one, start its step, run one prefill chunk (of the unfinished
prefill, else of the head of the queue), and execute the step when nothing more can be done in it. A lane with more to
do than one of each stays in its step for another iteration, so any number per step is exact.

Rules: vLLM V1, first come first served, chunked prefill, blocks counted, recompute preemption, no prefix reuse.

Each part below hands over a tuple behind an optimization barrier. Without it the compiler repeats all that a value depends
on in the kernel of every value that depends on it, at a third of the speed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float64, Int, Int32, Int64

from sim.scan.state import Lanes, Prices, Shape, State, Workloads


RUNS, COMPLETES, DROPS, DROPS_PART = 1, 2, 4, 8
"""Bits of `Log.event`: a chunk ran; it was the prefill's last; a decode was preempted; an unfinished prefill was."""
EVENT_BITS = 4
_NO_CONTEXT = 2**31 - 1


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


class _Places(NamedTuple):
    """Where each lane's part of the flat arrays begins, and its blocks' arithmetic."""

    lane: Int32[Array, "lane"]
    slot: Int32[Array, "lane"]
    ring: Int32[Array, "lane"]
    phase: Int32[Array, "lane"]
    row: Int32[Array, "lane"]
    block_size: Int32[Array, "lane"]
    per_block: Float64[Array, "lane"]

    def full_blocks(self, tokens):
        """floor(tokens / block_size); the half keeps the product away from the integers, so truncation is exact."""
        return ((_real(tokens) + 0.5) * self.per_block).astype(jnp.int32)

    def blocks(self, tokens):
        """ceil(tokens / block_size)."""
        return self.full_blocks(tokens + self.block_size - 1)

    def phase_of(self, held, now):
        """Phase of the steps in which a decode takes a block that holds `held` tokens at phase `now`."""
        phase = now - held + self.full_blocks(held) * self.block_size
        return jnp.where(phase < 0, phase + self.block_size, phase)


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
    at = _Places(
        lane=index,
        slot=index * shape.slots,
        ring=index * shape.ring,
        phase=index * shape.phases,
        row=index * shape.rows,
        block_size=lanes.block_size,
        per_block=1.0 / _real(lanes.block_size),
    )
    look = _look(shape, lanes, workloads, at, state)
    removed = _remove(at, state, look)
    started = _start(lanes, state, look, removed)
    chunked = _chunk(lanes, at, look, removed, started)
    state = _store(shape, lanes, at, state, look, removed, started, chunked)
    return _execute(lengths_s, lanes, prices, terms, at, state, look, removed, started, chunked)


def _look(shape: Shape, lanes: Lanes, workloads: Workloads, at: _Places, s: State) -> _Look:
    ends_at = at.ring + ((s.step - 1) & (shape.ring - 1))
    ending = _take(s.ends, ends_at)
    demand = _take(s.phases, at.phase + s.phase)
    ends = ending >= 0
    has_part = s.part_done > 0
    preempts = ~ends & (s.tokens_left < 0) & (demand > s.free)
    subject = s.next - _int(has_part | preempts)
    row, place = at.row + subject, lanes.workload + subject
    arrival_ns, arrival2_ns = _take(workloads.arrival_ns, place), _take(workloads.arrival_ns, place + 1)
    if s.release_ns is not None:
        arrival_ns = jnp.maximum(arrival_ns, _take(s.release_ns, row))
        arrival2_ns = jnp.maximum(arrival2_ns, _take(s.release_ns, row + 1))
    lengths, lengths2 = _take(workloads.lengths, place), _take(workloads.lengths, place + 1)
    own, own2 = _take(s.lives, row), _take(s.lives, row + 1)
    life, emitted = _high(own), _low(own)
    last_step = jnp.where(life > 0, life - 1, s.step) + _low(lengths) - emitted - 1
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
            target=_high(lengths) + emitted,
            last_step=last_step,
            same_end=_take(s.ends, last_at),
            arrival_ns=arrival_ns,
            arrival2_ns=arrival2_ns,
            target2=_high(lengths2) + _low(own2),
            life2=_high(own2),
            ends_at=ends_at,
            last_at=last_at,
        )
    )


def _remove(at: _Places, s: State, look: _Look) -> _Removed:
    had_part = s.part_done > 0
    drops_part = look.preempts & had_part
    drops = look.preempts & ~had_part & (look.last_step >= s.step)
    removes = look.ends | drops
    # a victim was admitted after all others, so it is the first of those that end with it
    slot = jnp.where(look.ends, look.ending, jnp.where(drops, look.same_end, s.free_slot))
    held = _take(s.key, jnp.maximum(slot, 0), at.lane) + (s.step - s.base) - 1
    part_blocks = at.blocks(s.part_done)
    freed = jnp.where(removes, at.blocks(held), jnp.where(drops_part, part_blocks, 0))
    phase = at.phase_of(held, s.phase)
    context = _real(jnp.where(removes, held + 1, 0))
    return lax.optimization_barrier(
        _Removed(
            removes=removes,
            drops=drops,
            drops_part=drops_part,
            slot=slot,
            link=_take(s.link, at.slot + slot),
            key=_put_column(s.key, slot, at.lane, jnp.iinfo(s.key.dtype).min, removes, after=held),
            phase=phase,
            demand=look.demand - _int(removes & (phase == s.phase)),
            free=s.free + freed,
            lost=jnp.where(drops, held, jnp.where(drops_part, s.part_done, 0)),
            decodes=s.decodes - _int(removes),
            context=s.context - context,
            context_sq=s.context_sq - context * context,
            finished=s.finished + _int(look.ends),
            preempted=s.preempted + _int(drops | drops_part),
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


def _chunk(lanes: Lanes, at: _Places, look: _Look, removed: _Removed, started: _Started) -> _Chunked:
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
    joining = _real(jnp.where(completes, look.target, 0))
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
            preempted=removed.preempted + _int(gives_up),
            completed=started.completed + _int(completes),
            longest=jnp.maximum(started.longest, jnp.where(runs, chain, 0)),
            part_done=jnp.where(completes | gives_up, 0, jnp.where(runs, chain, done)),
            next=look.subject + _int(runs | skips | (look.has_part & ~gives_up)),
            decodes=removed.decodes + _int(completes),
            context=removed.context + joining,
            context_sq=removed.context_sq + joining * joining,
            joins=completes & (removed.slot >= 0),
        )
    )


def _store(
    shape: Shape,
    lanes: Lanes,
    at: _Places,
    s: State,
    look: _Look,
    removed: _Removed,
    started: _Started,
    chunked: _Chunked,
) -> State:
    """Write the large arrays. A decode that joins takes the slot of one that leaves, if one does."""
    removes, joins, slot, link = removed.removes, chunked.joins, removed.slot, removed.link
    ends = _put(s.ends, jnp.where(look.ends, look.ends_at, look.last_at), link, removes)
    phases = _add(s.phases, at.phase + removed.phase, -1, removes)
    born = jnp.where(chunked.completes, s.step + 1, 0).astype(jnp.int64)
    emitted = look.emitted + jnp.where(removed.drops, s.step + 1 - look.life, 0)
    key = (look.target - (s.step - s.base)).astype(s.key.dtype)
    release_ns = s.release_ns
    if release_ns is not None:
        released = removed.finished - 1 + lanes.concurrency
        release_ns = _put(
            release_ns, at.row + released, s.time_ns + lanes.delay_ns, look.ends & (released < lanes.requests)
        )
    return s._replace(
        key=_put_column(removed.key, slot, at.lane, key, joins, after=started.start_max),
        link=_put(s.link, at.slot + slot, jnp.where(joins, look.same_end, s.free_slot), removes | joins),
        ends=_put(ends, look.last_at, slot, joins),
        phases=_add(phases, at.phase + at.phase_of(look.target - 1, s.phase), 1, joins),
        lives=_put(s.lives, at.row + look.subject, (born << 32) + emitted.astype(jnp.int64), chunked.completes | removed.drops),
        release_ns=release_ns,
        free_slot=jnp.where(removes & ~joins, slot, jnp.where(joins & ~removes, link, s.free_slot)),
    )


def _execute(
    lengths_s: Callable,
    lanes: Lanes,
    prices: Prices,
    terms: Any,
    at: _Places,
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
    chunks = chunked.completed + _int(chunked.part_done > 0)
    # the chunks' sums follow from those of the contexts before and after them
    prefill_tokens = _real(tokens - rows)
    part_done = _real(chunked.part_done)
    kv_tokens = chunked.context - started.start_sum + part_done
    prior = kv_tokens - prefill_tokens
    area = 0.5 * (
        chunked.context_sq - started.start_sq + part_done * part_done - prior * prior + prefill_tokens
    )
    decode_max = jnp.where(rows > 0, started.start_max, 0)
    stays, tokens, executes, rows, chunks, prefill_tokens, kv_tokens, area, decode_max = lax.optimization_barrier(
        (stays, tokens, executes, rows, chunks, prefill_tokens, kv_tokens, area, decode_max)
    )
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
            _real(chunked.longest),
            _real(rows),
            started.start_sum,
            _real(decode_max),
            started.start_sq,
        )
    )
    duration_ns = jnp.floor(1e9 * seconds + 0.5)
    time_ns = lax.optimization_barrier(started.time_ns + duration_ns)
    phase = s.phase + _int(executes)
    overflow = chunked.completes & ~chunked.joins
    after = s._replace(
        time_ns=jnp.where(executes, time_ns, started.time_ns),
        step=s.step + _int(executes),
        phase=jnp.where(phase == lanes.block_size, 0, phase),
        next=chunked.next,
        finished=removed.finished,
        free=free,
        decodes=decodes,
        context=chunked.context + _real(jnp.where(executes, decodes, 0)),
        context_sq=chunked.context_sq + jnp.where(executes, 2.0 * chunked.context + _real(decodes), 0.0),
        part_done=chunked.part_done,
        tokens_left=jnp.where(started.ready & stays, tokens_left, -1),
        preempted=jnp.where(executes, 0, chunked.preempted),
        completed=chunked.completed,
        longest=chunked.longest,
        start_sum=started.start_sum,
        start_sq=started.start_sq,
        start_max=started.start_max,
        computed=s.computed + _real(jnp.where(executes, tokens, 0) - chunked.lost) + jnp.where(overflow, jnp.nan, 0.0),
    )
    event = (
        (look.subject << EVENT_BITS)
        + _int(chunked.runs) * RUNS
        + _int(chunked.completes) * COMPLETES
        + _int(removed.drops) * DROPS
        + _int(removed.drops_part | chunked.gives_up) * DROPS_PART
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
        running=decodes + _int(chunked.part_done > 0),
        finished=removed.finished,
        free_blocks=free,
        preempted=chunked.preempted,
    )
    return after, Log(time_ns=jnp.where(executes, time_ns, -1.0), event=event), steps


def _int(mask: Array) -> Int32[Array, "lane"]:
    return mask.astype(jnp.int32)


def _real(count: Array) -> Float64[Array, "lane"]:
    return count.astype(jnp.float64)


def _high(pair: Int64[Array, "lane"]) -> Int32[Array, "lane"]:
    return (pair >> 32).astype(jnp.int32)


def _low(pair: Int64[Array, "lane"]) -> Int32[Array, "lane"]:
    return pair.astype(jnp.int32)


def _take(array: Array, *index: Array) -> Array:
    """One element per lane; small integers as int32."""
    out = array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return out.astype(jnp.int32) if out.dtype == jnp.int16 else out


def _put(flat: Array, index: Array, value: Array, where: Array) -> Array:
    """Write one element per lane where asked."""
    index = jnp.where(where, index, flat.shape[0])
    return flat.at[index].set(value.astype(flat.dtype), mode="drop", wrap_negative_indices=False)


def _add(flat: Array, index: Array, value: int, where: Array) -> Array:
    """Add to one element per lane where asked."""
    index = jnp.where(where, index, flat.shape[0])
    return flat.at[index].add(jnp.asarray(value, flat.dtype), mode="drop", wrap_negative_indices=False)


def _put_column(key: Array, slot: Array, lane: Array, value, where: Array, after: Array) -> Array:
    """Write one slot per lane where asked, after the reads of `key` that gave `after`.

    The compiler copies all of `key` in each iteration if a read and the write are not ordered by their data, so
    the index is made to depend on `after`, by a comparison that never holds.
    """
    slot = jnp.where(where, slot, key.shape[0]) + _int(after == _NO_CONTEXT)
    return key.at[slot, lane].set(value, mode="drop", wrap_negative_indices=False)

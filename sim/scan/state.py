"""Layout of the wide engine: what a lane is, and what it carries from one iteration to the next.

Axes: `lane`, `slot` (the seat of a running decode), `row` (a request). Arrays that are read and written one element
per lane are flat, lane after lane; `key`, the only one that is reduced over slots, has the slot axis first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int, Int16, Int32, Int64


PAD_ROWS = 2
"""Rows behind a workload's last request, because an iteration looks at two: they never arrive."""


class Shape(NamedTuple):
    """Static sizes of one compilation.

    `ring` > longest output, a power of two; `phases` >= largest block size; `wide`: keys of 32 bits, for contexts
    near 2**15 and above; `delayed`: some closed loop has a delay between a request's end and the next one's arrival.
    """

    lanes: int
    rows: int
    slots: int
    ring: int
    phases: int
    wide: bool
    delayed: bool


class Workloads(NamedTuple):
    """Requests of all workloads, one workload after the other, read only. `lengths` = prompt * 2**32 + outputs."""

    arrival_ns: Float64[Array, "row"]
    lengths: Int64[Array, "row"]


class Prices(NamedTuple):
    """Price tables of all plans. `terms` are the constants of `lengths_s`, leaves `[plan]`.

    `token_s` holds, per table (a plan with a capture list), two columns by scheduled tokens: batches with a prefill,
    and pure decode batches; graph padding is already applied. `zero` is 0, see `sim.scan.rounded`.
    """

    token_s: Float64[Array, "table 2 tokens"]
    row_s: Float64[Array, "plan rows"]
    terms: Any
    zero: Float64[Array, "lane"]


class Lanes(NamedTuple):
    """What a lane runs; constant while it runs one job. A lane without a job has `requests` 0."""

    workload: Int32[Array, "lane"]
    requests: Int32[Array, "lane"]
    concurrency: Int32[Array, "lane"]
    delay_ns: Float64[Array, "lane"]
    seats: Int32[Array, "lane"]
    budget: Int32[Array, "lane"]
    block_size: Int32[Array, "lane"]
    reserve: Bool[Array, "lane"]
    plan: Int32[Array, "lane"]
    table: Int32[Array, "lane"]


class State(NamedTuple):
    """What a lane carries.

    Requests `[0, next)` have been admitted and run or ended; the others wait. Running requests are decodes, each in
    a slot, and at most one unfinished prefill, always request `next - 1`.

    **Fields:**

    - `key`: per slot, context at step s less s, steps counted from `base`; the type's minimum in a free slot.
    - `link`: per slot, the next slot of its chain: of free slots, from `free_slot`, or of decodes that end together.
    - `ends`: per step modulo the ring's length, the first slot of the chain of decodes whose last token that step
      emits: the one admitted last.
    - `phases`: number of decodes that take a block in the steps with `step % block_size` = index.
    - `lives`: per request, (1 + step in which it became a decode) * 2**32 + tokens emitted in lives before; the first
      is 0 for requests that wait or prefill, and stays for those that ended.
    - `release_ns`: per request of a delayed closed loop, when its predecessor's end lets it arrive; else None.
    - `step`: steps executed; `base`: those at the window's start; `phase`: `step % block_size`.
    - `decodes`, `context`, `context_sq`: running decodes, sum and sum of squares of their contexts at this step.
    - `part_done`: tokens computed of the unfinished prefill, 0 without one.
    - `tokens_left`: of the budget of the step under way, -1 if it has not started. `preempted`: its victims so far.
    - `completed`, `longest`: of the step's prefill chunks: how many complete, longest chain.
    - `start_sum`, `start_sq`, `start_max`: of the contexts when the step started.
    - `computed`: tokens computed and not lost to preemption; NaN, for ever, once there were more decodes than slots.
    """

    key: Int[Array, "slot lane"]
    link: Int16[Array, "lane*slot"]
    ends: Int16[Array, "lane*ring"]
    phases: Int16[Array, "lane*phase"]
    lives: Int64[Array, "lane*row"]
    release_ns: Float64[Array, "lane*row"] | None
    time_ns: Float64[Array, "lane"]
    step: Int32[Array, "lane"]
    base: Int32[Array, "lane"]
    phase: Int32[Array, "lane"]
    next: Int32[Array, "lane"]
    finished: Int32[Array, "lane"]
    free: Int32[Array, "lane"]
    free_slot: Int32[Array, "lane"]
    decodes: Int32[Array, "lane"]
    context: Float64[Array, "lane"]
    context_sq: Float64[Array, "lane"]
    part_done: Int32[Array, "lane"]
    tokens_left: Int32[Array, "lane"]
    preempted: Int32[Array, "lane"]
    completed: Int32[Array, "lane"]
    longest: Int32[Array, "lane"]
    start_sum: Float64[Array, "lane"]
    start_sq: Float64[Array, "lane"]
    start_max: Int32[Array, "lane"]
    computed: Float64[Array, "lane"]


def empty_lanes(shape: Shape) -> Lanes:
    """Lanes without a job."""
    ints, reals = _columns(shape)
    return Lanes(
        workload=ints(0),
        requests=ints(0),
        concurrency=ints(1),
        delay_ns=reals(),
        seats=ints(1),
        budget=ints(1),
        block_size=ints(1),
        reserve=jnp.array(np.zeros(shape.lanes, bool)),
        plan=ints(0),
        table=ints(0),
    )


def fresh_state(shape: Shape) -> State:
    """State at time 0, nothing admitted, no blocks. Every array has a buffer of its own, as donation wants it."""
    size = shape.lanes
    ints, reals = _columns(shape)
    key_type = np.int32 if shape.wide else np.int16
    return State(
        key=jnp.array(np.full((shape.slots, size), np.iinfo(key_type).min, key_type)),
        link=jnp.array(np.tile(free_chain(shape), size)),
        ends=jnp.array(np.full(size * shape.ring, -1, np.int16)),
        phases=jnp.array(np.zeros(size * shape.phases, np.int16)),
        lives=jnp.array(np.zeros(size * shape.rows, np.int64)),
        release_ns=jnp.array(np.zeros(size * shape.rows)) if shape.delayed else None,
        time_ns=reals(),
        step=ints(0),
        base=ints(0),
        phase=ints(0),
        next=ints(0),
        finished=ints(0),
        free=ints(0),
        free_slot=ints(0),
        decodes=ints(0),
        context=reals(),
        context_sq=reals(),
        part_done=ints(0),
        tokens_left=ints(-1),
        preempted=ints(0),
        completed=ints(0),
        longest=ints(0),
        start_sum=reals(),
        start_sq=reals(),
        start_max=ints(0),
        computed=reals(),
    )


def free_chain(shape: Shape) -> Int16[np.ndarray, "slot"]:
    """Every slot linked to the one behind it, the last to none (-1)."""
    return np.append(np.arange(1, shape.slots, dtype=np.int16), np.int16(-1))


def _columns(shape: Shape) -> tuple[Callable[[int], Array], Callable[[], Array]]:
    """Makers of new columns with axis `lane`: of an integer, and of real zeros. From numpy, which compiles nothing."""
    return (
        lambda value: jnp.array(np.full(shape.lanes, value, np.int32)),
        lambda: jnp.array(np.zeros(shape.lanes)),
    )

"""Layout of the wide engine: what a lane is, and what it carries from one iteration to the next.

Axes: `lane`, `slot` (a running decode's seat), `row` (a request, of a workload or of a lane's own table).
Large arrays that are read and written one element per lane are flat, `lane` major, so that a lane's own part is one
stretch of memory; `key`, the only array that is reduced over slots, has the slot axis first.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int, Int16, Int32


ARRIVAL_PAD_NS = float("inf")
"""Arrival of the rows behind a workload's last request."""

FIRST, SCHEDULED, LAST_START, EMITTED, SLOT, PREEMPTIONS = range(6)
"""Columns of a lane's request table: step (+ 1, 0 = never) of the first token, of the first schedule and of the start of
the present life as a decode (0 = not running and not ended); tokens emitted in former lives; slot; preemptions."""
COLUMNS = 6


class Workloads(NamedTuple):
    """Requests of all workloads, one after the other, read only. Two padding rows follow each workload."""

    arrival_ns: Float64[Array, "row"]
    lengths: Int32[Array, "row 2"]


class Prices(NamedTuple):
    """Price tables of all plans. `terms` are the constants of `lengths_s`, leaves `[plan, ...]`.

    `token_s` holds, per table (a plan with a capture list), two columns by scheduled tokens: batches with a prefill,
    and pure decode batches; graph padding is already applied.
    """

    token_s: Float64[Array, "table 2 tokens"]
    row_s: Float64[Array, "plan rows"]
    terms: Any


class Lanes(NamedTuple):
    """What a lane runs; constant while it runs one job. A lane without a job has `requests` 0."""

    workload: Int32[Array, "lane"]
    requests: Int32[Array, "lane"]
    concurrency: Int32[Array, "lane"]
    seats: Int32[Array, "lane"]
    budget: Int32[Array, "lane"]
    blocks: Int32[Array, "lane"]
    block_size: Int32[Array, "lane"]
    reserve: Bool[Array, "lane"]
    plan: Int32[Array, "lane"]
    table: Int32[Array, "lane"]


class State(NamedTuple):
    """What a lane carries.

    Requests `[0, next)` have been admitted and run or ended; the others wait. Running requests are decodes, each in
    a slot, and at most one unfinished prefill, always request `next - 1`.

    **Fields:**

    - `key`: per slot, context at step s less (s - `base`); the type's minimum in a free slot.
    - `link`: per slot, the next slot of its chain: free slots (from `free_slot`), or decodes that end with the same step.
    - `ends`: per step modulo the ring's length, the first slot of the chain of decodes whose last token that step emits.
    - `phases`: number of decodes that take a block in the steps with `step % block_size` = index.
    - `requests`: the lane's request table, columns above.
    - `decodes`, `context`, `context_sq`: running decodes, sum and sum of squares of their contexts at this step.
    - `part_left`, `part_done`: the unfinished prefill, tokens left (0: none) and computed.
    - `open`: this step has started (its blocks are taken), admissions may follow.
    - `tokens_left`: of the open step's budget. `preempted`: victims of this step so far.
    - `chunks`, `area`, `longest`, `completed`: of the open step's prefill chunks: number, query-key pairs, longest
      chain, and how many complete.
    - `start_sum`, `start_sq`, `start_max`: of the contexts when the step started.
    - `emitted`, `computed`: tokens emitted; computed and not lost to preemption.
    - `overflow`: more decodes than slots; the lane's results are void.
    """

    key: Int[Array, "slot lane"]
    link: Int16[Array, "lane*slot"]
    ends: Int16[Array, "lane*ring"]
    phases: Int16[Array, "lane*phase"]
    requests: Int32[Array, "lane*row 6"]
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
    part_left: Int32[Array, "lane"]
    part_done: Int32[Array, "lane"]
    open: Bool[Array, "lane"]
    tokens_left: Int32[Array, "lane"]
    preempted: Int32[Array, "lane"]
    chunks: Int32[Array, "lane"]
    area: Float64[Array, "lane"]
    longest: Int32[Array, "lane"]
    completed: Int32[Array, "lane"]
    start_sum: Float64[Array, "lane"]
    start_sq: Float64[Array, "lane"]
    start_max: Int32[Array, "lane"]
    emitted: Float64[Array, "lane"]
    computed: Float64[Array, "lane"]
    overflow: Bool[Array, "lane"]


class Shape(NamedTuple):
    """Static sizes of one compilation; `ring` > longest output, a power of two."""

    lanes: int
    rows: int
    slots: int
    ring: int
    phases: int
    wide: bool


def empty_lanes(shape: Shape) -> Lanes:
    """Lanes without a job."""
    zero = jnp.zeros(shape.lanes, jnp.int32)
    one = jnp.ones(shape.lanes, jnp.int32)
    return Lanes(zero, zero, one, one, one, one, one, jnp.zeros(shape.lanes, bool), zero, zero)


def fresh_state(shape: Shape) -> State:
    """State at time 0, nothing admitted."""
    size = shape.lanes
    key_type = jnp.int32 if shape.wide else jnp.int16
    zero = jnp.zeros(size, jnp.int32)
    real = jnp.zeros(size, jnp.float64)
    no = jnp.zeros(size, bool)
    return State(
        key=jnp.full((shape.slots, size), jnp.iinfo(key_type).min, key_type),
        link=jnp.tile(_chain(shape), size),
        ends=jnp.full(size * shape.ring, -1, jnp.int16),
        phases=jnp.zeros(size * shape.phases, jnp.int16),
        requests=jnp.zeros((size * shape.rows, COLUMNS), jnp.int32),
        time_ns=real,
        step=zero,
        base=zero,
        phase=zero,
        next=zero,
        finished=zero,
        free=zero,
        free_slot=zero,
        decodes=zero,
        context=real,
        context_sq=real,
        part_left=zero,
        part_done=zero,
        open=no,
        tokens_left=zero,
        preempted=zero,
        chunks=zero,
        area=real,
        longest=zero,
        completed=zero,
        start_sum=real,
        start_sq=real,
        start_max=zero,
        emitted=real,
        computed=real,
        overflow=no,
    )


def _chain(shape: Shape) -> Int16[Array, "slot"]:
    """Every slot linked to the one behind it."""
    index = jnp.arange(1, shape.slots + 1, dtype=jnp.int32)
    return jnp.where(index < shape.slots, index, -1).astype(jnp.int16)

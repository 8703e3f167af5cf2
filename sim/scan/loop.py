"""The compiled loop over windows of iterations, and the host's loop around it that refills lanes."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from sim.scan.jobs import MAX_CLOCK_NS, Status
from sim.scan.pack import Packed
from sim.scan.state import Lanes, Prices, Shape, State, Workloads, empty_lanes, free_chain, fresh_state
from sim.scan.step import Log, StepLog, iterate


REFILL = 32
"""Lanes that one call of `assign` fills; a fixed number, for one compilation."""


@partial(jax.jit, static_argnames=("shape", "lengths_s", "window", "log_steps"), donate_argnames="state")
def advance(
    shape: Shape,
    lengths_s: Callable,
    window: int,
    log_steps: bool,
    lanes: Lanes,
    workloads: Workloads,
    prices: Prices,
    state: State,
) -> tuple[State, tuple[Log, StepLog | None]]:
    """`window` iterations of all lanes; logs have axes `[iteration, lane]`. Keys are re-based first."""
    terms = jax.tree.map(lambda leaf: leaf[lanes.plan], prices.terms)
    empty = jnp.iinfo(state.key.dtype).min
    shift = (state.step - state.base).astype(state.key.dtype)
    key = jnp.where(state.key == empty, state.key, state.key + shift[None, :])
    state = state._replace(key=key, base=state.step)

    def body(carry: State, _) -> tuple[State, tuple[Log, StepLog | None]]:
        carry, log, steps = iterate(shape, lengths_s, lanes, workloads, prices, terms, carry)
        return carry, (log, steps if log_steps else None)

    return lax.scan(body, state, None, length=window)


@partial(jax.jit, static_argnames="shape", donate_argnames=("lanes", "state"))
def assign(
    shape: Shape, index: Int32[Array, "refill"], jobs: Lanes, blocks: Int32[Array, "refill"], lanes: Lanes, state: State
) -> tuple[Lanes, State]:
    """Give the lanes `index` new jobs and the state of a fresh start; an index past the last lane is dropped."""

    def put(array, value):
        return array.at[index].set(value, mode="drop")

    def put_rows(flat, value):
        return put(flat.reshape(shape.lanes, -1), value).reshape(-1)

    fresh = {
        "key": state.key.at[:, index].set(jnp.iinfo(state.key.dtype).min, mode="drop"),
        "link": put_rows(state.link, free_chain(shape)[None, :]),
        "ends": put_rows(state.ends, -1),
        "phases": put_rows(state.phases, 0),
        "lives": put_rows(state.lives, 0),
        "release_ns": None if state.release_ns is None else put_rows(state.release_ns, 0.0),
        "free": put(state.free, blocks),
        "tokens_left": put(state.tokens_left, -1),
    }
    for name in State._fields:
        if name not in fresh:
            fresh[name] = put(getattr(state, name), 0)
    return jax.tree.map(put, lanes, jobs), State(**fresh)


class Ended(NamedTuple):
    """A lane that ended: its unit, how, and its log (axis `iteration`). `steps` are the columns of `StepLog`, if kept."""

    unit: int
    status: Status
    time_ns: np.ndarray
    event: np.ndarray
    steps: dict[str, np.ndarray] | None
    free_blocks: int
    finished: int
    computed: float


def run_units(
    packed: Packed,
    lengths_s: Callable,
    on_end: Callable[[Ended], None],
    *,
    window: int,
    log_steps: bool,
    max_iterations: int,
) -> int:
    """Run all units, longest expected first, and hand each to `on_end` when it ends. Returns the iterations of the loop.

    Must be called with 64-bit types enabled.
    """
    shape = packed.shape
    waiting = sorted(range(len(packed.units)), key=lambda u: packed.units[u].expected)
    workloads, prices = jax.tree.map(jnp.asarray, (packed.workloads, packed.prices))
    lanes, state = empty_lanes(shape), fresh_state(shape)
    running = np.full(shape.lanes, -1)
    age = np.zeros(shape.lanes, np.int64)
    logs: list[list[tuple[np.ndarray, ...]]] = [[] for _ in running]
    free = list(range(shape.lanes))
    windows = 0
    while waiting or len(free) < shape.lanes:
        while waiting and free:
            index = np.full(REFILL, shape.lanes, np.int32)
            chosen = np.zeros(REFILL, np.int64)
            for i in range(min(REFILL, len(waiting), len(free))):
                index[i], chosen[i] = free.pop(), waiting.pop()
                running[index[i]], age[index[i]] = chosen[i], 0
            jobs = Lanes(**{name: packed.columns[name][chosen] for name in Lanes._fields})
            lanes, state = assign(shape, index, jobs, packed.columns["blocks"][chosen], lanes, state)
        state, log = advance(shape, lengths_s, window, log_steps, lanes, workloads, prices, state)
        windows += 1
        age += window
        columns = [np.ascontiguousarray(np.asarray(column).T) for column in jax.tree.leaves(log)]
        time_ns, computed, finished, blocks = (
            np.array(getattr(state, name)) for name in ("time_ns", "computed", "finished", "free")
        )
        for lane in np.flatnonzero(running >= 0):
            unit = int(running[lane])
            logs[lane].append(tuple(column[lane].copy() for column in columns))
            done = finished[lane] == packed.columns["requests"][unit]
            status = _status(float(time_ns[lane]), float(computed[lane]), bool(done), age[lane] >= max_iterations)
            if status is None:
                continue
            whole = [np.concatenate(parts) for parts in zip(*logs[lane], strict=True)]
            steps = dict(zip(StepLog._fields, whole[2:], strict=True)) if log_steps else None
            on_end(Ended(unit, status, whole[0], whole[1], steps, int(blocks[lane]), int(finished[lane]), computed[lane]))
            logs[lane] = []
            running[lane] = -1
            free.append(int(lane))
    return windows * window


def _status(time_ns: float, computed: float, done: bool, too_old: bool) -> Status | None:
    """How a lane has ended, or None if it goes on."""
    if np.isnan(computed):
        return Status.TOO_MANY_SLOTS
    if not np.isfinite(time_ns) or time_ns < 0:
        return Status.BAD_PRICE
    if time_ns >= MAX_CLOCK_NS:
        return Status.CLOCK_OVERFLOW
    if done:
        return Status.OK
    return Status.ITERATIONS_USED_UP if too_old else None

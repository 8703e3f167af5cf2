"""The compiled loop over windows of iterations, and the host's loop around it that refills lanes."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32

from sim.cost.grid import of_plans
from sim.scan.jobs import MAX_CLOCK_NS, Status
from sim.scan.pack import Packed
from sim.scan.state import Lanes, Prices, Shape, State, Workloads, empty_lanes, free_chain, fresh_state
from sim.scan.step import Log, StepLog, iterate


KEPT = 32
"""Windows whose logs are kept whole."""


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
    terms = of_plans(prices.terms, lanes.plan)
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
    shape: Shape, chosen: Bool[Array, "lane"], jobs: Lanes, blocks: Int32[Array, "lane"], lanes: Lanes, state: State
) -> tuple[Lanes, State]:
    """Give the `chosen` lanes new jobs and the state of a fresh start."""

    def put(array, value):
        return jnp.where(chosen, jnp.asarray(value, array.dtype), array)

    def put_rows(flat, value):
        rows = flat.reshape(shape.lanes, -1)
        return jnp.where(chosen[:, None], jnp.asarray(value, flat.dtype), rows).reshape(-1)

    fresh = {
        "key": put(state.key, jnp.iinfo(state.key.dtype).min),
        "link": put_rows(state.link, free_chain(shape)),
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
    """A lane that ended: its unit, how, and its log (axis `iteration`); `steps`: the columns of `StepLog`, if kept."""

    unit: int
    status: Status
    time_ns: np.ndarray
    event: np.ndarray
    steps: dict[str, np.ndarray] | None
    free_blocks: int
    finished: int
    computed: float


class _Logs:
    """The logs of lanes that run. Of the last `KEPT` windows all lanes' are kept, of earlier ones only those of lanes
    that still run, so that one long lane doesn't hold everything."""

    def __init__(self, lanes: int):
        self._first = 0
        self._windows: list[list[np.ndarray]] = []
        self._born = [0] * lanes
        self._early: list[list[list[np.ndarray]]] = [[] for _ in range(lanes)]

    def start(self, lane: int) -> None:
        """A lane has got a new job."""
        self._born[lane] = self._first + len(self._windows)
        self._early[lane] = []

    def add(self, columns: list[np.ndarray], running: np.ndarray) -> None:
        """Keep one window's columns, `[iteration, lane]` each."""
        self._windows.append([np.ascontiguousarray(column.T) for column in columns])
        if len(self._windows) > KEPT:
            oldest = self._windows.pop(0)
            for lane in running:
                if self._born[lane] <= self._first:
                    self._early[lane].append([column[lane].copy() for column in oldest])
            self._first += 1

    def whole(self, lane: int) -> list[np.ndarray]:
        """A lane's columns from its start to now."""
        late = self._windows[max(0, self._born[lane] - self._first) :]
        parts = self._early[lane] + [[column[lane] for column in window] for window in late]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def run_units(
    packed: Packed,
    lengths_s: Callable,
    on_end: Callable[[list[Ended]], None],
    *,
    window: int,
    log_steps: bool,
    max_iterations: int,
) -> tuple[int, float]:
    """Run all units, longest expected first, and hand those that end in one window to `on_end`.

    Returns the iterations of the loop and the CPU seconds they took. Must be called with 64-bit types enabled.
    """
    shape = packed.shape
    waiting = sorted(range(len(packed.units)), key=lambda u: packed.units[u].expected)
    workloads = Workloads(**jax.tree.map(jnp.asarray, packed.workloads))
    prices = Prices(**jax.tree.map(jnp.asarray, packed.prices))
    lanes, state = empty_lanes(shape), fresh_state(shape)
    unit = np.full(shape.lanes, -1)
    age = np.zeros(shape.lanes, np.int64)
    logs = _Logs(shape.lanes)
    free = list(range(shape.lanes))
    windows, loop_cpu_s = 0, 0.0
    while waiting or len(free) < shape.lanes:
        chosen = [(free.pop(), waiting.pop()) for _ in range(min(len(free), len(waiting)))]
        if chosen:
            new = np.zeros(shape.lanes, bool)
            for lane, one in chosen:
                new[lane], unit[lane], age[lane] = True, one, 0
                logs.start(lane)
            jobs = Lanes(**{name: packed.columns[name][unit] for name in Lanes._fields})
            lanes, state = assign(shape, new, jobs, packed.columns["blocks"][unit], lanes, state)
        started = time.process_time()
        state, log = advance(shape, lengths_s, window, log_steps, lanes, workloads, prices, state)
        columns = [np.asarray(column) for column in jax.tree.leaves(log)]
        loop_cpu_s += time.process_time() - started
        windows += 1
        age += window
        logs.add(columns, np.flatnonzero(unit >= 0))
        time_ns, computed, finished, blocks = (
            np.array(column) for column in (state.time_ns, state.computed, state.finished, state.free)
        )
        status = np.full(shape.lanes, -1)
        status[age >= max_iterations] = Status.ITERATIONS_USED_UP
        status[finished == packed.columns["requests"][unit]] = Status.OK
        status[time_ns >= MAX_CLOCK_NS] = Status.CLOCK_OVERFLOW
        status[~((time_ns >= 0) & (time_ns < np.inf))] = Status.BAD_PRICE
        status[np.isnan(computed)] = Status.TOO_MANY_SLOTS
        ended = []
        for lane in np.flatnonzero((status >= 0) & (unit >= 0)).tolist():
            whole = logs.whole(lane)
            ended.append(
                Ended(
                    unit=int(unit[lane]),
                    status=Status(int(status[lane])),
                    time_ns=whole[0],
                    event=whole[1],
                    steps=dict(zip(StepLog._fields, whole[2:], strict=True)) if log_steps else None,
                    free_blocks=int(blocks[lane]),
                    finished=int(finished[lane]),
                    computed=float(computed[lane]),
                )
            )
            unit[lane] = -1
            free.append(lane)
        if ended:
            on_end(ended)
    return windows * window, loop_cpu_s

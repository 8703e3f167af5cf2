"""From jobs to arrays: one unit per replica of a job, workloads and price tables without repetition."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from sim.cost.table import PriceTable, stack_terms
from sim.deployment.graphs import EAGER, runs_as
from sim.scan.jobs import LaneJob, expected_steps
from sim.scan.state import PAD_ROWS, Lanes, Shape


MAX_SLOTS = 2**15 - 1
"""Slot numbers are 16-bit integers."""
SMALLEST = {
    "lanes": 8,
    "rows": 64,
    "slots": 32,
    "ring": 64,
    "phases": 16,
    "tokens": 1024,
    "tables": 4,
    "table_rows": 256,
    "workload_rows": 4096,
}
"""Sizes are powers of two from here on (`tokens`: multiples), so that different sweeps share a compilation."""


@dataclass(frozen=True, eq=False)
class Unit:
    """One replica of one job: what one lane runs. Arrays have the axis of the requests it serves.

    `request`: their indices in the job; `arrival_ns`: in the engine's queue, apart from a closed loop's waiting;
    `tokens`: all that have to be computed.
    """

    job: int
    replica: int
    request: np.ndarray
    arrival_ns: np.ndarray
    prompt: np.ndarray
    outputs: np.ndarray
    tokens: int
    expected: float


@dataclass(frozen=True, eq=False)
class Graphs:
    """By scheduled tokens, `[2, tokens]` (with a prefill, and pure decode): padded tokens and graph mode."""

    padded: np.ndarray
    mode: np.ndarray


@dataclass(frozen=True, eq=False)
class Packed:
    """Everything the compiled loop needs.

    `columns`: the fields of `Lanes` and `blocks`, axis `unit`; `workloads`, `prices`: the fields of `Workloads` and
    `Prices`; `graphs`: one per table, which the column `table` indexes.
    """

    shape: Shape
    units: list[Unit]
    columns: dict[str, np.ndarray]
    workloads: dict[str, np.ndarray]
    prices: dict[str, Any]
    graphs: list[Graphs]


def power_of_two(least: int, floor: int) -> int:
    """The smallest power of two that is at least `least` and `floor`."""
    return max(floor, 1 << max(0, int(least) - 1).bit_length())


def pack(
    jobs: Sequence[LaneJob],
    servables: Sequence[tuple[np.ndarray, np.ndarray]],
    runnable: Sequence[int],
    tables: Sequence[PriceTable],
    *,
    lanes: int,
    slots: int | None,
    window: int,
) -> Packed:
    """Split `jobs[i]` for i in `runnable` into units and lay them out. `servables`: of each job, from `servable`."""
    units = [unit for i in runnable for unit in _units(i, jobs[i], *servables[i], tables[jobs[i].table])]
    workloads, places = _workloads(units)
    prices, graphs, chosen = _prices([jobs[unit.job] for unit in units], tables)
    columns: dict[str, list] = {name: [] for name in (*Lanes._fields, "blocks")}
    for unit, place, table in zip(units, places, chosen, strict=True):
        job = jobs[unit.job]
        count = len(unit.request)
        row = {
            "workload": place,
            "requests": count,
            "concurrency": min(job.concurrency or count, count),
            "delay_ns": float(job.pickup_ns),
            "seats": job.max_num_seqs,
            "budget": job.max_num_batched_tokens,
            "block_size": job.block_size,
            "reserve": job.reserve_full_input,
            "plan": job.table,
            "table": table,
            "blocks": job.usable_blocks,
        }
        for name, value in row.items():
            columns[name].append(value)
    kinds: dict[str, Any] = {"delay_ns": np.float64, "reserve": np.bool_}
    arrays = {name: np.array(values, kinds.get(name, np.int32)) for name, values in columns.items()}
    shape = _shape(jobs, units, lanes, slots, window)
    prices["zero"] = np.zeros(shape.lanes)
    return Packed(shape, units, arrays, workloads, prices, graphs)


def _units(index: int, job: LaneJob, served: np.ndarray, outputs: np.ndarray, table: PriceTable) -> list[Unit]:
    """The requests of each replica: in turn, of those that can be served."""
    request = np.flatnonzero(served)
    units = []
    for replica in range(job.replicas):
        mine = request[replica :: job.replicas]
        if len(mine):
            arrival = job.arrival_ns[mine].astype(np.int64) + job.pickup_ns
            prompt, out = job.prompt_tokens[mine].astype(np.int64), outputs[mine]
            expected = expected_steps(arrival, prompt, out, job, table.token_s[EAGER])
            units.append(Unit(index, replica, mine, arrival, prompt, out, int((prompt + out - 1).sum()), expected))
    return units


def _workloads(units: Sequence[Unit]) -> tuple[dict[str, np.ndarray], list[int]]:
    """All different workloads, and where each unit's begins."""
    starts: dict[bytes, int] = {}
    arrivals: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    places = []
    total = 0
    for unit in units:
        pair = (unit.prompt << 32) + unit.outputs
        digest = blake2b(unit.arrival_ns.tobytes() + pair.tobytes()).digest()
        if digest not in starts:
            starts[digest] = total
            arrivals += [unit.arrival_ns.astype(np.float64), np.full(PAD_ROWS, np.inf)]
            lengths += [pair, np.full(PAD_ROWS, (1 << 32) + 1)]
            total += len(pair) + PAD_ROWS
        places.append(starts[digest])
    rest = power_of_two(total, SMALLEST["workload_rows"]) - total
    return (
        {
            "arrival_ns": np.concatenate([*arrivals, np.full(rest, np.inf)]),
            "lengths": np.concatenate([*lengths, np.full(rest, (1 << 32) + 1)]),
        },
        places,
    )


def _prices(jobs: Sequence[LaneJob], tables: Sequence[PriceTable]) -> tuple[dict[str, Any], list[Graphs], list[int]]:
    """All different (price table, capture list) pairs, and which one each of `jobs` uses."""
    unit = SMALLEST["tokens"]
    tokens = -(-(max((job.max_num_batched_tokens for job in jobs), default=1) + 1) // unit) * unit
    rows = power_of_two(max((job.max_num_seqs for job in jobs), default=1) + 1, SMALLEST["table_rows"])
    keys = [(job.table, job.graph_mode, tuple(job.graph_sizes), job.full_graph_top) for job in jobs]
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    budgets, seats = [0] * len(index), [0] * len(index)
    for key, job in zip(keys, jobs, strict=True):
        i = index[key]
        budgets[i], seats[i] = max(budgets[i], job.max_num_batched_tokens), max(seats[i], job.max_num_seqs)
    graphs = [graph_table(*key[1:], budget) for key, budget in zip(index, budgets, strict=True)]
    by_tokens = [
        _padded_end(_price(tables, key[0], graph, most), tokens)
        for key, graph, most in zip(index, graphs, seats, strict=True)
    ]
    plans = power_of_two(len(tables), 1)
    by_rows = [_padded_end(table.row_s[None, :rows], rows)[0] for table in tables]
    terms = stack_terms([table.lengths for table in tables] + [tables[0].lengths] * (plans - len(tables)))
    empty = [np.zeros((2, tokens))] * (power_of_two(len(by_tokens), SMALLEST["tables"]) - len(by_tokens))
    prices = {
        "token_s": np.stack([*by_tokens, *empty]),
        "row_s": np.stack(by_rows + [by_rows[0]] * (plans - len(tables))),
        "terms": terms,
    }
    return prices, graphs, [index[key] for key in keys]


def graph_table(mode: str, sizes: Sequence[int], full_top: int, max_tokens: int) -> Graphs:
    """Padding and graph of a step of t = 0 .. `max_tokens` tokens, for batches with a prefill and pure decode ones."""
    largest = min(sizes[-1] if sizes else 0, max_tokens)
    padded = np.tile(np.arange(max_tokens + 1), (2, 1))
    modes = np.full_like(padded, EAGER)
    for pure in (0, 1):
        steps = [runs_as(mode, t, bool(pure), sizes, full_top) for t in range(largest + 1)]
        padded[pure, : largest + 1], modes[pure, : largest + 1] = zip(*steps, strict=True)
    return Graphs(padded, modes)


def _price(tables: Sequence[PriceTable], index: int, graph: Graphs, most_rows: int) -> np.ndarray:
    """Seconds by scheduled tokens, `[2, tokens]`, of a plan with a capture list."""
    table, widest = tables[index], int(graph.padded.max())
    if table.token_s.shape[1] <= widest or len(table.row_s) <= most_rows:
        raise ValueError(
            f"price table {index} must cover {widest} tokens and {most_rows} rows, it ends at "
            f"{table.token_s.shape[1] - 1} and {len(table.row_s) - 1}: make it for the largest "
            "max_num_batched_tokens and max_num_seqs"
        )
    return table.token_s[graph.mode, graph.padded]


def _padded_end(array: np.ndarray, width: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), mode="edge")


def _shape(jobs: Sequence[LaneJob], units: Sequence[Unit], lanes: int, slots: int | None, window: int) -> Shape:
    """Sizes for all units. Slots are as many as could be needed, unless given."""
    used = [(unit, jobs[unit.job]) for unit in units]
    seats = max(
        (min(job.max_num_seqs, job.concurrency or len(u.request), len(u.request)) for u, job in used), default=1
    )
    longest = max((int((u.prompt + u.outputs).max()) for u in units), default=1)
    return Shape(
        lanes=min(lanes, power_of_two(len(units), SMALLEST["lanes"])),
        rows=power_of_two(max((len(u.request) for u in units), default=1) + PAD_ROWS, SMALLEST["rows"]),
        slots=slots or min(power_of_two(seats, SMALLEST["slots"]), MAX_SLOTS),
        ring=power_of_two(max((int(u.outputs.max()) for u in units), default=1) + 1, SMALLEST["ring"]),
        phases=power_of_two(max((job.block_size for _, job in used), default=1), SMALLEST["phases"]),
        wide=longest + window >= 2**15 - 1,
        delayed=any(job.concurrency is not None and job.pickup_ns > 0 for _, job in used),
    )

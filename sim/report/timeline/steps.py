"""The ranks' tracks: what each step was, on each pipeline stage, and what was waiting, running and in the cache."""

from collections.abc import Mapping

import numpy as np

from sim.report.result import SimulationResult
from sim.report.tables import GRAPH_MODES
from sim.report.timeline.layers import open_step
from sim.report.timeline.marks import Event, counter, names, span


COLUMNS = (
    "replica",
    "start_ns",
    "prefill_tokens",
    "prefill_chunks",
    "decodes",
    "decode_sum",
    "padded_tokens",
    "graph_mode",
    "running",
    "waiting",
    "free_blocks",
    "preempted",
)


def owner(result: SimulationResult, rank: int) -> tuple[str, SimulationResult]:
    """The role and the result of the pool that a rank belongs to; the run itself where there is one kind."""
    for pool in reversed(result.pools):
        if rank >= pool.first:
            return pool.role, pool.result
    return "", result


def rank_names(result: SimulationResult, ranks: list[int]) -> list[Event]:
    """Each rank as a process, with its pool's role, devices and their kind behind its name."""
    events = []
    for rank in ranks:
        role, own = owner(result, rank)
        threads = {1: "steps"} if own.stages is None else {1 + i: f"stage {i}" for i in range(own.stages.stages)}
        each = own.gpus // max(own.replicas * own.data_parallel, 1)
        events += names(
            rank + 1, result.rank_name(rank), threads, f"{role + ', ' if role else ''}{each} x {own.device}"
        )
    return events


def step_events(result: SimulationResult, order: np.ndarray, opened: Mapping[int, int]) -> list[Event]:
    """Slices and counters of the steps (rows) `order`; those in `opened` layer by layer."""
    columns = [np.asarray(getattr(result.steps, name))[order].tolist() for name in COLUMNS]
    columns.append(spans(result, order))
    columns.append(np.maximum(result.step_blocks, 1)[order].tolist())
    last: dict[tuple[int, str], float] = {}
    events: list[Event] = []
    for number, (row, values) in enumerate(zip(order.tolist(), zip(*columns, strict=True), strict=True)):
        *some, times, blocks = values
        replica, start, tokens, chunks, decodes, context, padded, mode, running, waiting, free, preempted = some
        pid = int(replica) + 1
        kind = "mixed" if tokens and decodes else "prefill" if tokens else "decode"
        args = {
            "step": number,
            "prefill tokens": tokens,
            "prefill chunks": chunks,
            "decodes": decodes,
            "context tokens": context,
            "padded tokens": padded,
            "graph": GRAPH_MODES[int(mode)],
        }
        for stage, (begun, ended) in enumerate(times):
            events.append(span(pid, 1 + stage, kind, begun, ended, args))
            if row in opened:
                events += open_step(result, owner(result, int(replica))[1], row, pid, stage, begun, ended)
        if preempted:
            instant = {"ph": "i", "pid": pid, "tid": 1, "s": "t", "name": "preemption", "ts": start / 1000}
            events.append(instant | {"args": {"requests": preempted}})
        # A counter keeps its value until the next event, so only changes are written.
        counters = (("running", running), ("waiting", waiting), ("KV use (%)", round(100 * (1 - free / blocks), 2)))
        for name, value in counters:
            if last.get((pid, name)) != value:
                last[pid, name] = value
                events.append(counter(pid, name, start, value))
    return events


def spans(result: SimulationResult, order: np.ndarray) -> list[list[list[int]]]:
    """Start and end of each of the steps `order` on each pipeline stage."""
    found: dict[int, list[list[int]]] = {}
    first = 0
    for own in [pool.result for pool in result.pools] or [result]:
        count = len(own.steps)
        rows = order[(order >= first) & (order < first + count)]
        timed = own.steps if own.stages is None else own.stages
        shape = (count, 1 if own.stages is None else own.stages.stages)
        start, end = (np.asarray(column).reshape(shape)[rows - first] for column in (timed.start_ns, timed.end_ns))
        found |= dict(zip(rows.tolist(), np.stack([start, end], axis=2).tolist(), strict=True))
        first += count
    return [found[row] for row in order.tolist()]

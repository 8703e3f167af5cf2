"""A timeline for Perfetto or chrome://tracing: steps per replica, queues and KV use as counters, and each request."""

from typing import Any

import numpy as np

from sim.report.fleet import WORDS, part_times
from sim.report.result import FINISHED, SimulationResult, StageTable
from sim.report.tables import GRAPH_MODES


MAX_STEPS = 20_000
MAX_REQUESTS = 1_000

REQUESTS_PID = 1_000_000
LINKS_PID = 2_000_000


def timeline(result: SimulationResult, max_steps: int = MAX_STEPS, max_requests: int = MAX_REQUESTS) -> dict[str, Any]:
    """Trace events in Chrome's JSON format, times in microseconds.

    The first `max_steps` steps and the first `max_requests` finished requests are kept; `otherData` says how many
    were left out.
    """
    steps, requests = result.steps, result.requests
    order = np.argsort(np.asarray(steps.start_ns), kind="stable")[:max_steps]
    finished = np.flatnonzero(np.asarray(requests.status) == FINISHED)
    kept = finished[:max_requests]
    events: list[dict[str, Any]] = []
    for replica in np.unique(np.asarray(steps.replica)[order]).tolist():
        stages = stages_of(result, replica)
        threads = {1: "steps"} if stages is None else {1 + i: f"stage {i}" for i in range(stages.stages)}
        events += _names(replica + 1, result.rank_name(replica), threads)
    events += _step_events(result, order)
    label = "requests" if len(kept) == len(finished) else f"requests (first {len(kept)} of {len(finished)})"
    events += _names(REQUESTS_PID, label, {})
    events += _request_events(result, kept)
    events += _transfer_events(result, kept)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": result.model,
            "device": result.device,
            "engine": result.engine_label,
            "workload_digest": result.workload.digest,
            "steps_shown": len(order),
            "steps_left_out": len(steps) - len(order),
            "requests_shown": len(kept),
            "requests_left_out": len(requests) - len(kept),
        },
    }


def _names(pid: int, process: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}]
    events += [
        {"ph": "M", "pid": pid, "tid": t, "name": "thread_name", "args": {"name": name}} for t, name in threads.items()
    ]
    return events


def _step_events(result: SimulationResult, order: np.ndarray) -> list[dict[str, Any]]:
    steps = result.steps
    names = (
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
    columns = [np.asarray(getattr(steps, name))[order].tolist() for name in names]
    columns.append(_spans(result, order))
    columns.append(np.maximum(result.step_blocks, 1)[order].tolist())
    last: dict[tuple[int, str], float] = {}
    events: list[dict[str, Any]] = []
    for (
        *(replica, start, tokens, chunks, decodes, context, padded, mode, running, waiting, free, preempted, spans),
        blocks,
    ) in zip(*columns, strict=True):
        pid, ts = int(replica) + 1, start / 1000
        kind = "mixed" if tokens and decodes else "prefill" if tokens else "decode"
        args = {
            "prefill tokens": tokens,
            "prefill chunks": chunks,
            "decodes": decodes,
            "context tokens": context,
            "padded tokens": padded,
            "graph": GRAPH_MODES[int(mode)],
        }
        for stage, (begun, ended) in enumerate(spans):
            span = {"ph": "X", "pid": pid, "tid": 1 + stage, "name": kind, "ts": begun / 1000}
            events.append(span | {"dur": (ended - begun) / 1000, "args": args})
        if preempted:
            instant = {
                "ph": "i",
                "pid": pid,
                "tid": 1,
                "s": "t",
                "name": "preemption",
                "ts": ts,
                "args": {"requests": preempted},
            }
            events.append(instant)
        # A counter keeps its value until the next event, so only changes are written.
        counters = (("running", running), ("waiting", waiting), ("KV use (%)", round(100 * (1 - free / blocks), 2)))
        for name, value in counters:
            if last.get((pid, name)) != value:
                last[pid, name] = value
                events.append({"ph": "C", "pid": pid, "name": name, "ts": ts, "args": {"value": value}})
    return events


def stages_of(result: SimulationResult, replica: int) -> StageTable | None:
    """The pipeline stages of a replica's pool, None where it has one."""
    for pool in reversed(result.pools):
        if replica >= pool.first:
            return pool.result.stages
    return result.stages


def _spans(result: SimulationResult, order: np.ndarray) -> list[list[list[int]]]:
    """Start and end of each step on each pipeline stage."""
    spans: list[list[list[int]]] = []
    for own in [pool.result for pool in result.pools] or [result]:
        timed = own.steps if own.stages is None else own.stages
        shape = (len(own.steps), 1 if own.stages is None else own.stages.stages)
        start, end = (np.asarray(column).reshape(shape) for column in (timed.start_ns, timed.end_ns))
        spans += np.stack([start, end], axis=2).tolist()
    return [spans[row] for row in order.tolist()]


def _transfer_events(result: SimulationResult, kept: np.ndarray) -> list[dict[str, Any]]:
    """The KV of each request on its way, as spans that may overlap, by the two replicas."""
    moved = result.transfers
    if moved is None:
        return []
    events: list[dict[str, Any]] = _names(LINKS_PID, "KV transfers", {})
    columns = [np.asarray(column)[kept].tolist() for column in (moved.source, moved.target, moved.begun_ns)]
    columns += [np.asarray(column)[kept].tolist() for column in (moved.received_ns, moved.bytes)]
    for index, source, target, begun, received, size in zip(kept.tolist(), *columns, strict=True):
        if source < 0:
            continue
        way = f"{result.rank_name(source)} to {result.rank_name(target)}"
        common = {"pid": LINKS_PID, "tid": target + 1, "cat": "KV", "id": index, "name": way}
        events.append(common | {"ph": "b", "ts": begun / 1000, "args": {"request": index, "bytes": size}})
        events.append(common | {"ph": "e", "ts": received / 1000})
    return events


def _request_events(result: SimulationResult, kept: np.ndarray) -> list[dict[str, Any]]:
    requests = result.requests
    names = (
        "arrival_ns",
        "scheduled_ns",
        "first_token_ns",
        "finish_ns",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "preemptions",
        "replica",
    )
    columns = [np.asarray(getattr(requests, name))[kept].tolist() for name in names]
    ways = part_times(result)
    handed = np.zeros(len(requests), bool) if result.transfers is None else np.asarray(result.transfers.source) >= 0
    events: list[dict[str, Any]] = []
    for index, arrival, scheduled, first, finish, prompt, output, cached, preemptions, replica in zip(
        kept.tolist(), *columns, strict=True
    ):
        args = {
            "request": index,
            "replica": replica,
            "prompt tokens": prompt,
            "cached tokens": cached,
            "output tokens": output,
            "preemptions": preemptions,
        }
        parts = [("queue", arrival, scheduled), ("prefill", scheduled, first)]
        if handed[index]:
            parts = [(WORDS[name], int(start[index]), int(end[index])) for name, start, end in ways]
        for name, start, end in (*parts, ("decode", first, finish)):
            if end > start:
                span = {"ph": "X", "pid": REQUESTS_PID, "tid": index + 1, "name": name, "ts": start / 1000}
                events.append(span | {"dur": (end - start) / 1000, "args": args})
        events += [
            {
                "ph": "M",
                "pid": REQUESTS_PID,
                "tid": index + 1,
                "name": "thread_name",
                "args": {"name": f"request {index}"},
            }
        ]
    return events

"""A timeline for Perfetto or chrome://tracing: steps per replica, queues and KV use as counters, and each request."""

from typing import Any

import numpy as np

from sim.report.result import FINISHED, SimulationResult
from sim.report.tables import GRAPH_MODES


MAX_STEPS = 20_000
MAX_REQUESTS = 1_000

REQUESTS_PID = 1_000_000


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
    stages = result.stages
    threads = {1: "steps"} if stages is None else {1 + i: f"stage {i}" for i in range(stages.stages)}
    for replica in np.unique(np.asarray(steps.replica)[order]).tolist():
        events += _names(replica + 1, result.rank_name(replica), threads)
    events += _step_events(result, order)
    label = "requests" if len(kept) == len(finished) else f"requests (first {len(kept)} of {len(finished)})"
    events += _names(REQUESTS_PID, label, {})
    events += _request_events(result, kept)
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


def _spans(result: SimulationResult, order: np.ndarray) -> list[list[list[int]]]:
    """Start and end of each step on each pipeline stage."""
    timed = result.steps if result.stages is None else result.stages
    shape = (len(order), 1 if result.stages is None else result.stages.stages)
    start, end = (np.asarray(column)[order].reshape(shape) for column in (timed.start_ns, timed.end_ns))
    spans: list[list[list[int]]] = np.stack([start, end], axis=2).tolist()
    return spans


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
        for name, start, end in (
            ("queue", arrival, scheduled),
            ("prefill", scheduled, first),
            ("decode", first, finish),
        ):
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

"""A timeline for Perfetto or chrome://tracing: steps of every rank, links, and the life of each request."""

from typing import Any

import numpy as np

from sim.report.result import FINISHED, SimulationResult
from sim.report.timeline.layers import opened
from sim.report.timeline.links import link_events, transfer_events
from sim.report.timeline.marks import REQUESTS_PID, names
from sim.report.timeline.requests import moment_events, request_events
from sim.report.timeline.steps import rank_names, step_events


MAX_STEPS = 20_000
MAX_REQUESTS = 1_000


def timeline(result: SimulationResult, max_steps: int = MAX_STEPS, max_requests: int = MAX_REQUESTS) -> dict[str, Any]:
    """Trace events in Chrome's JSON format, times in microseconds.

    The first `max_steps` steps and the first `max_requests` finished requests are kept; `otherData` says how much was
    left out. Steps that the configuration names in `timeline_layers`, by their number in order of their start, are
    opened.
    """
    steps, requests = result.steps, result.requests
    order = np.argsort(np.asarray(steps.start_ns), kind="stable")[:max_steps]
    finished = np.flatnonzero(np.asarray(requests.status) == FINISHED)
    kept = finished[:max_requests]
    events = rank_names(result, np.unique(np.asarray(steps.replica)[order]).tolist())
    layers = opened(order, str(result.config.get("timeline_layers") or ""))
    events += step_events(result, order, layers)
    label = "requests" if len(kept) == len(finished) else f"requests (first {len(kept)} of {len(finished)})"
    events += names(REQUESTS_PID, label, {})
    events += request_events(result, kept)
    events += transfer_events(result, kept, order)
    events += link_events(result)
    events += moment_events(result)
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
            "steps_opened": len(layers),
            "requests_shown": len(kept),
            "requests_left_out": len(requests) - len(kept),
            "link_changes_left_out": 0 if result.links is None else result.links.changes_left_out,
        },
    }

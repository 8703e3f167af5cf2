"""Each request's track: the parts of its life, one after the other."""

import numpy as np

from sim.report.fleet import WORDS, part_times
from sim.report.result import SimulationResult
from sim.report.timeline.marks import REQUESTS_PID, Event, instant, span, thread_names


COLUMNS = (
    "arrival_ns",
    "scheduled_ns",
    "first_token_ns",
    "finish_ns",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "replica",
    "asked_ns",
)

MOST_MOMENTS = 10_000
"""The first so many are shown."""


def request_events(result: SimulationResult, kept: np.ndarray) -> list[Event]:
    """Slices from arrival to end; of a request that was handed over with the way of its KV."""
    requests = result.requests
    columns = [np.asarray(getattr(requests, name))[kept].tolist() for name in COLUMNS]
    ways = part_times(result)
    handed = np.zeros(len(requests), bool) if result.transfers is None else np.asarray(result.transfers.source) >= 0
    events: list[Event] = []
    sessions = result.workload.sessions
    for index, arrival, scheduled, first, finish, prompt, output, cached, preemptions, replica, asked in zip(
        kept.tolist(), *columns, strict=True
    ):
        args = {
            "request": index,
            "replica": result.rank_name(replica),
            "prompt tokens": prompt,
            "cached tokens": cached,
            "output tokens": output,
            "preemptions": preemptions,
        }
        name = f"request {index}"
        if sessions is not None:
            session = sessions.of(index)
            args |= {"session": session, "round": index - int(sessions.first[session])}
            name = f"session {session}, round {args['round']}"
        parts = [("queue", asked, scheduled), ("prefill", scheduled, first)]
        if handed[index]:
            parts = [(WORDS[name], int(start[index]), int(end[index])) for name, start, end in ways]
        for part, start, end in (("retrieval", arrival, asked), *parts, ("decode", first, finish)):
            if end > start:
                events.append(span(REQUESTS_PID, index + 1, part, start, end, args))
        events += thread_names(REQUESTS_PID, {index + 1: name})
    return events


def moment_events(result: SimulationResult) -> list[Event]:
    """What happened to replicas, on their tracks, and to requests that did not finish, on that of all requests."""
    events = []
    for moment in result.moments[:MOST_MOMENTS]:
        args: dict[str, object] = {"request": moment.request} if moment.request >= 0 else {}
        if moment.replica >= 0:
            args["replica"] = result.rank_name(moment.replica)
        pid = REQUESTS_PID if moment.request >= 0 else moment.replica + 1
        events.append(instant(pid, moment.what, moment.at_ns, args))
    return events

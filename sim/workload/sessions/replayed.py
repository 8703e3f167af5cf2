"""Sessions of a trace: what a reader found, as the columns that a workload has."""

from typing import Any

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.sessions.columns import Sessions, firsts
from sim.workload.sessions.conf import NONE
from sim.workload.sessions.drawn import drawn_latency_ns, dropped_tokens
from sim.workload.sessions.law import described
from sim.workload.source import Trace


def starts(trace: Trace) -> Trace:
    """The requests that begin something: all, or the first round of each session."""
    return trace if trace.session is None else trace.take(firsts(trace.session)[:-1])


def whole_sessions(trace: Trace, order: np.ndarray, note: str | None = None) -> Trace:
    """All rounds of the sessions `order`, in that order."""
    assert trace.session is not None
    first = firsts(trace.session)
    rows = [np.arange(first[s], first[s + 1]) for s in order.tolist()]
    return trace.take(np.concatenate(rows), note)


def replayed_sessions(conf: WorkloadConf, seed: int, trace: Trace) -> dict[str, Any]:
    """The fields of a workload that say who follows whom, and what prompts repeat where the trace has no content.

    Without content a prompt begins with all that was said before, as far as it goes.
    """
    assert trace.session is not None
    first = firsts(trace.session)
    begins = np.zeros(len(trace), bool)
    begins[first[:-1]] = True
    latency_ns = trace.latency_ns
    if latency_ns is None:
        latency_ns = drawn_latency_ns(conf, seed, len(trace))
    dropped = dropped_tokens(conf, trace.output_tokens)
    said = np.roll(trace.prompt_tokens + trace.output_tokens - dropped, 1)
    named = trace.token_ids is not None or trace.block_hashes is not None
    unnamed = np.zeros(len(trace), bool) if named else ~begins
    history = np.where(unnamed, np.minimum(said, trace.prompt_tokens), 0)
    sessions = Sessions(
        first=first,
        latency_ns=np.where(begins, 0, latency_ns),
        history_tokens=history,
        dropped_tokens=np.where(named, 0, dropped),
        system=np.zeros(len(first) - 1, np.int64),
    )
    shorter = int((unnamed & (said > trace.prompt_tokens)).sum())
    note = (
        f"{shorter:,} rounds have prompts shorter than what was said before: they are taken to repeat its beginning",
    )
    return {"sessions": sessions, "notes": note if shorter else (), "provenance": (_provenance(conf, trace),)}


def check_latencies(conf: WorkloadConf, trace: Trace) -> None:
    """Raise `ValueError` where nobody says how long after the one before a round is sent, or two do."""
    if trace.session is None:
        return
    drawn = conf.sessions.latency_s.law != NONE
    if trace.latency_ns is not None and drawn:
        raise ValueError(
            f"workload.sessions.latency_s.law={conf.sessions.latency_s.law} is set, but {conf.path} says for each "
            "round how long after the one before it is sent: leave out one of them"
        )
    if trace.latency_ns is None and not drawn and len(firsts(trace.session)) - 1 < len(trace):
        raise ValueError(
            f"{conf.path}: wanted how long after the one before a round is sent (tool_duration_ns of a sub_request, a "
            "column latency_s), got none; workload.sessions.latency_s.law=fixed or another would draw it"
        )
    if conf.sessions.reasoning_share and (trace.token_ids is not None or trace.block_hashes is not None):
        raise ValueError(
            f"workload.sessions.reasoning_share is of prompts whose content nobody knows, but {conf.path} has it: "
            "leave it out"
        )


def _provenance(conf: WorkloadConf, trace: Trace) -> str:
    law = conf.sessions.latency_s
    by = f"drawn, {described(law)} s" if law.law != NONE else "those of the trace"
    count = 0 if trace.session is None else len(firsts(trace.session)) - 1
    return f"sessions: {count:,} with {len(trace):,} rounds; latencies {by}"

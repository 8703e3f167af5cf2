"""BurstGPT: a csv with Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type."""

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, from_first, times_ns, tokens


def matches(head: Head) -> bool:
    """A csv with BurstGPT's token columns."""
    return not head.json and {"timestamp", "request tokens", "response tokens"} <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Seconds since the trace's first day, counted from the earliest request; rows without a response are failures."""
    cells, lines = csv_columns(source, ("timestamp", "request tokens", "response tokens"), conf.limit)
    output = tokens(source, lines, "Response tokens", cells["response tokens"], least=0)
    trace = Trace(
        tokens(source, lines, "Request tokens", cells["request tokens"]),
        output,
        lines,
        arrival_ns=from_first(times_ns(source, lines, "Timestamp", cells["timestamp"], 1e9)),
        provenance=(f"lengths: {len(lines)} requests of the BurstGPT trace {source.path}",),
    )
    failed = int((output == 0).sum())
    return (
        trace.take(np.flatnonzero(output), f"{failed} requests that failed in the trace (no response) dropped")
        if failed
        else trace
    )

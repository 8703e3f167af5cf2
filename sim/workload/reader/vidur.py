"""Vidur's request lists: [arrived_at (s),] num_prefill_tokens, num_decode_tokens."""

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, head_of, times_ns, tokens


def matches(head: Head) -> bool:
    """A csv with Vidur's token columns."""
    return not head.json and {"num_prefill_tokens", "num_decode_tokens"} <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Seconds from the start of the run where there are times."""
    timed = "arrived_at" in head_of(source).names
    keys = ("num_prefill_tokens", "num_decode_tokens", *(("arrived_at",) if timed else ()))
    cells, lines = csv_columns(source, keys, conf.limit)
    return Trace(
        tokens(source, lines, "num_prefill_tokens", cells["num_prefill_tokens"]),
        tokens(source, lines, "num_decode_tokens", cells["num_decode_tokens"]),
        lines,
        arrival_ns=times_ns(source, lines, "arrived_at", cells["arrived_at"], 1e9) if timed else None,
        provenance=(f"lengths: {len(lines)} requests of the Vidur list {source.path}",),
    )

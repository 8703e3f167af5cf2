"""The plain form: arrival_s, input_tokens, output_tokens."""

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, times_ns, tokens


def matches(head: Head) -> bool:
    """A csv with the three columns."""
    return not head.json and {"arrival_s", "input_tokens", "output_tokens"} <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Seconds from the start of the run, and token counts."""
    cells, lines = csv_columns(source, ("arrival_s", "input_tokens", "output_tokens"), conf.limit)
    return Trace(
        tokens(source, lines, "input_tokens", cells["input_tokens"]),
        tokens(source, lines, "output_tokens", cells["output_tokens"]),
        lines,
        arrival_ns=times_ns(source, lines, "arrival_s", cells["arrival_s"], 1e9),
        provenance=(f"lengths: {len(lines)} requests of {source.path}",),
    )

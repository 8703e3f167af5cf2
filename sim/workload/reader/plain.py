"""The plain form: arrival_s, input_tokens, output_tokens, and perhaps priority and abort_after_s."""

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, head_of, patience_ns, priorities, times_ns, tokens


KEYS = ("arrival_s", "input_tokens", "output_tokens")
PATIENCE = "abort_after_s"
OPTIONAL = ("priority", PATIENCE)


def matches(head: Head) -> bool:
    """A csv with the three columns."""
    return not head.json and set(KEYS) <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Seconds from the start of the run, token counts; where there are columns of them priorities, and patience."""
    keys = (*KEYS, *(key for key in OPTIONAL if key in head_of(source).names))
    cells, lines = csv_columns(source, keys, conf.limit)
    return Trace(
        tokens(source, lines, "input_tokens", cells["input_tokens"]),
        tokens(source, lines, "output_tokens", cells["output_tokens"]),
        lines,
        arrival_ns=times_ns(source, lines, "arrival_s", cells["arrival_s"], 1e9),
        provenance=(f"lengths: {len(lines)} requests of {source.path}",),
        priority=priorities(source, lines, cells.get("priority")),
        abort_after_ns=patience_ns(source, lines, "abort_after_s", cells[PATIENCE]) if PATIENCE in keys else None,
    )

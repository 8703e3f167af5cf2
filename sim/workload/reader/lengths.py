"""Length sets without times: a csv with input_length, output_length or input_tokens, output_tokens."""

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, head_of, tokens


PAIRS = (("input_length", "output_length"), ("input_tokens", "output_tokens"))


def matches(head: Head) -> bool:
    """A csv with one of the two pairs of columns and no times."""
    return not head.json and "arrival_s" not in head.names and any(set(pair) <= head.names for pair in PAIRS)


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Pairs of lengths in file order."""
    columns = head_of(source).names
    pair = next((pair for pair in PAIRS if set(pair) <= columns), PAIRS[0])
    cells, lines = csv_columns(source, pair, conf.limit)
    return Trace(
        tokens(source, lines, pair[0], cells[pair[0]]),
        tokens(source, lines, pair[1], cells[pair[1]]),
        lines,
        provenance=(f"lengths: {len(lines)} requests of {source.path}",),
    )

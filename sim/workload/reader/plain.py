"""The plain form: arrival_s, input_tokens, output_tokens, and perhaps priority and abort_after_s.

With a column `session`, rows that name one are its rounds: input_tokens are of whole prompts, `latency_s` is from the
end of the round before, and arrival_s counts in first rounds only. A column `round` numbers them.
"""

from sim.workload.conf import WorkloadConf
from sim.workload.sessions.grouped import grouped
from sim.workload.source import Head, Source, Trace, csv_columns, head_of, patience_ns, priorities, times_ns, tokens


KEYS = ("arrival_s", "input_tokens", "output_tokens")
PATIENCE = "abort_after_s"
OPTIONAL = ("priority", PATIENCE)
OF_SESSIONS = ("session", "round", "latency_s")


def matches(head: Head) -> bool:
    """A csv with the three columns."""
    return not head.json and set(KEYS) <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Seconds from the start of the run, token counts; where there are columns of them priorities, and patience."""
    there = head_of(source).names
    optional = OPTIONAL + (OF_SESSIONS if "session" in there else ())
    keys = (*KEYS, *(key for key in optional if key in there))
    cells, lines = csv_columns(source, keys, conf.limit)
    found = None
    if "session" in keys:
        found = grouped(source, lines, cells["session"], cells.get("round"))
        cells, lines = {key: [column[row] for row in found.row] for key, column in cells.items()}, lines[found.row]
        for key, blank in (("arrival_s", ~found.begins), ("latency_s", found.begins)):
            if key in keys:  # what counts in some rounds only may be anything in the others
                cells[key] = ["0" if without else cell for cell, without in zip(cells[key], blank, strict=True)]
    arrival_ns = times_ns(source, lines, "arrival_s", cells["arrival_s"], 1e9)
    latency = cells.get("latency_s")
    return Trace(
        tokens(source, lines, "input_tokens", cells["input_tokens"]),
        tokens(source, lines, "output_tokens", cells["output_tokens"]),
        lines,
        arrival_ns=arrival_ns if found is None else arrival_ns[found.start],
        provenance=(f"lengths: {len(lines)} requests of {source.path}",),
        priority=priorities(source, lines, cells.get("priority")),
        abort_after_ns=patience_ns(source, lines, "abort_after_s", cells[PATIENCE]) if PATIENCE in keys else None,
        session=None if found is None else found.session,
        latency_ns=None if latency is None else times_ns(source, lines, "latency_s", latency, 1e9),
    )

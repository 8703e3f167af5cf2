"""Azure's public traces of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens."""

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, from_first, tokens


def matches(head: Head) -> bool:
    """A csv with Azure's three columns."""
    return not head.json and {"timestamp", "contexttokens", "generatedtokens"} <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Times are calendar times in 100 ns ticks; they count from the earliest request."""
    cells, lines = csv_columns(source, ("timestamp", "contexttokens", "generatedtokens"), conf.limit)
    stamps = [cell.strip().removesuffix("+00:00").removesuffix("Z") for cell in cells["timestamp"]]
    try:
        moments = np.array(stamps, dtype="datetime64[ns]")
    except ValueError:
        moments = np.array([_moment(stamp) for stamp in stamps])
    wrong = np.isnat(moments)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise source.error(int(lines[row]), "TIMESTAMP as YYYY-MM-DD HH:MM:SS.fffffff", repr(stamps[row]))
    return Trace(
        tokens(source, lines, "ContextTokens", cells["contexttokens"]),
        tokens(source, lines, "GeneratedTokens", cells["generatedtokens"]),
        lines,
        arrival_ns=from_first(moments.astype(np.int64)),
        provenance=(f"lengths: {len(lines)} requests of the Azure trace {source.path}",),
    )


def _moment(stamp: str) -> np.datetime64:
    try:
        return np.datetime64(stamp, "ns")
    except ValueError:
        return np.datetime64("NaT", "ns")

"""Azure's public traces of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens."""

import re
from datetime import datetime

import numpy as np

from sim.units import NS_PER_S
from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, csv_columns, from_first, tokens


BROKEN = -(1 << 62)
STAMP = re.compile(
    r"(?P<day>(?P<year>\d{4})-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(\.(?P<fraction>\d{1,9}))?"
    r"(Z|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d))?"
)


def matches(head: Head) -> bool:
    """A csv with Azure's three columns."""
    return not head.json and {"timestamp", "contexttokens", "generatedtokens"} <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Times are calendar times in 100 ns ticks; they count from the earliest request."""
    cells, lines = csv_columns(source, ("timestamp", "contexttokens", "generatedtokens"), conf.limit)
    times = np.array([_nanoseconds(cell.strip()) for cell in cells["timestamp"]], dtype=np.int64)
    wrong = times == BROKEN
    if wrong.any():
        row = int(np.argmax(wrong))
        wanted = "TIMESTAMP as YYYY-MM-DD HH:MM:SS.fffffff of the years 1970 to 2200"
        raise source.error(int(lines[row]), wanted, repr(cells["timestamp"][row].strip()))
    return Trace(
        tokens(source, lines, "ContextTokens", cells["contexttokens"]),
        tokens(source, lines, "GeneratedTokens", cells["generatedtokens"]),
        lines,
        arrival_ns=from_first(times),
        provenance=(f"lengths: {len(lines)} requests of the Azure trace {source.path}",),
    )


def _nanoseconds(stamp: str) -> int:
    """Nanoseconds since 1970, `BROKEN` for what is no time of a day; the zone is UTC where none is given."""
    found = STAMP.fullmatch(stamp)
    if not found or not 1970 <= int(found["year"]) <= 2200:
        return BROKEN
    try:
        whole = datetime.fromisoformat(f"{found['day']}T{found['time']}+00:00")
    except ValueError:
        return BROKEN
    zone_s = 0
    if found["sign"]:
        zone_s = (int(found["hours"]) * 60 + int(found["minutes"])) * 60 * (-1 if found["sign"] == "-" else 1)
    seconds = int(whole.timestamp()) - zone_s
    return seconds * NS_PER_S + int((found["fraction"] or "").ljust(9, "0"))

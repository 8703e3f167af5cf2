"""LLMServingSim: input_toks, output_toks, arrival_time_ns; JSON lines with token ids, or (older) a table.

A `priority` of every request is read too.
"""

from typing import Any

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.source import (
    Head,
    Source,
    Trace,
    csv_columns,
    head_of,
    id_rows,
    json_columns,
    json_lines,
    priorities,
    times_ns,
    tokens,
)


KEYS = ("input_toks", "output_toks", "arrival_time_ns")


def matches(head: Head) -> bool:
    """JSON lines or a table with the three names; those of sessions have their own format."""
    return set(KEYS) <= head.names and not any("sub_requests" in row for row in head.rows)


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Nanoseconds from the start of the run; token ids where every request has them."""
    cells: dict[str, list[Any]] = {}
    if head_of(source).json:
        rows = json_lines(source, conf.limit)
        lines = np.array([number for number, _ in rows])
        columns = json_columns(source, rows, _keys(all("priority" in item for _, item in rows)))
        for key in ("input_tok_ids", "output_tok_ids"):
            if all(key in item for _, item in rows):
                cells[key] = [item[key] for _, item in rows]
    else:
        columns, lines = csv_columns(source, _keys("priority" in head_of(source).names), conf.limit)
    prompt = tokens(source, lines, "input_toks", columns["input_toks"])
    output = tokens(source, lines, "output_toks", columns["output_toks"])
    lengths = {"input_tok_ids": prompt, "output_tok_ids": output}
    ids = {key: id_rows(source, lines, key, found, lengths[key]) for key, found in cells.items()}
    content = ", with token ids" if "input_tok_ids" in ids else ", without token ids"
    return Trace(
        prompt,
        output,
        lines,
        arrival_ns=times_ns(source, lines, "arrival_time_ns", columns["arrival_time_ns"], 1.0),
        token_ids=ids.get("input_tok_ids"),
        output_token_ids=ids.get("output_tok_ids"),
        provenance=(f"lengths: {len(lines)} requests of the LLMServingSim workload {source.path}{content}",),
        priority=priorities(source, lines, columns.get("priority")),
    )


def _keys(priority: bool) -> tuple[str, ...]:
    return (*KEYS, "priority") if priority else KEYS

"""LLMServingSim: input_toks, output_toks, arrival_time_ns; JSON lines with token ids, or (older) a table.

A `priority` of every request is read too.
"""

import numpy as np
from jaxtyping import Int

from sim.workload.conf import WorkloadConf
from sim.workload.source import (
    Head,
    Source,
    Trace,
    csv_columns,
    head_of,
    integer_rows,
    json_columns,
    json_lines,
    priorities,
    times_ns,
    tokens,
)


KEYS = ("input_toks", "output_toks", "arrival_time_ns")


def matches(head: Head) -> bool:
    """JSON lines or a table with the three names."""
    return set(KEYS) <= head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Nanoseconds from the start of the run; token ids where every request has them."""
    ids: dict[str, list[np.ndarray]] = {}
    if head_of(source).json:
        rows = json_lines(source, conf.limit)
        lines = np.array([number for number, _ in rows])
        columns = json_columns(source, rows, _keys(all("priority" in item for _, item in rows)))
        for key in ("input_tok_ids", "output_tok_ids"):
            if all(key in item for _, item in rows):
                ids[key] = integer_rows(source, lines, key, [item[key] for _, item in rows])
    else:
        columns, lines = csv_columns(source, _keys("priority" in head_of(source).names), conf.limit)
    prompt = tokens(source, lines, "input_toks", columns["input_toks"])
    output = tokens(source, lines, "output_toks", columns["output_toks"])
    for key, lengths in (("input_tok_ids", prompt), ("output_tok_ids", output)):
        if key in ids:
            _check_ids(source, lines, key, ids[key], lengths)
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


def _check_ids(
    source: Source, lines: Int[np.ndarray, " row"], key: str, rows: list[np.ndarray], lengths: Int[np.ndarray, " row"]
) -> None:
    for number, row, length in zip(lines, rows, lengths, strict=True):
        if len(row) != length:
            raise source.error(int(number), f"{length} entries in {key}", str(len(row)))

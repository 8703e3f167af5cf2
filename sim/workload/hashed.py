"""JSON lines with block hashes: timestamp, input_length, output_length, hash_ids (Mooncake, vLLM's timed_trace)."""

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.source import (
    Head,
    Source,
    Trace,
    integer_rows,
    json_columns,
    json_lines,
    priorities,
    times_ns,
    tokens,
)


KEYS = ("timestamp", "input_length", "output_length")


def fits(head: Head, block_tokens: int, other_block_tokens: int, fractional: bool) -> bool:
    """Whether the requests have as many hashes as blocks of `block_tokens` tokens, or none to tell.

    The first request on which `block_tokens` and `other_block_tokens` differ decides. Where none does, the unit of
    the times may: seconds have fractions, milliseconds have not; `fractional` says which ones the format has.
    """
    if not (head.json and set(KEYS) <= head.names):
        return False
    whole = True
    for row in head.rows:
        ids, length = row.get("hash_ids"), row.get("input_length")
        if isinstance(ids, list) and isinstance(length, int) and 0 < length < 1 << 60:
            blocks, other = (-(-length // size) for size in (block_tokens, other_block_tokens))
            if len(ids) not in (blocks, other):
                return False
            if blocks != other:
                return len(ids) == blocks
        time = row.get("timestamp")
        whole &= not (isinstance(time, float) and not time.is_integer())
    return whole or fractional


def read_hashed(source: Source, conf: WorkloadConf, what: str, unit_ns: float, block_tokens: int) -> Trace:
    """Times in units of `unit_ns`; the hashes stand for `hash_block_tokens` or else `block_tokens` tokens each.

    Where every request has a `priority`, it is read too.
    """
    block = conf.hash_block_tokens or block_tokens
    rows = json_lines(source, conf.limit)
    lines = np.array([number for number, _ in rows])
    hashed = all("hash_ids" in item for _, item in rows)
    more = [key for key in ("hash_ids", "priority") if all(key in item for _, item in rows)]
    columns = json_columns(source, rows, (*KEYS, *more))
    prompt = tokens(source, lines, "input_length", columns["input_length"])
    hashes = integer_rows(source, lines, "hash_ids", columns["hash_ids"]) if hashed else None
    if hashes is not None:
        counts = np.array([len(row) for row in hashes])
        wrong = counts != -(-prompt // block)
        if wrong.any():
            row = int(np.argmax(wrong))
            need = -(-prompt[row] // block)
            raise source.error(
                int(lines[row]),
                f"{need} hash_ids for {prompt[row]} tokens in blocks of {block} (workload.hash_block_tokens)",
                str(counts[row]),
            )
    return Trace(
        prompt,
        tokens(source, lines, "output_length", columns["output_length"]),
        lines,
        arrival_ns=times_ns(source, lines, "timestamp", columns["timestamp"], unit_ns),
        block_hashes=hashes,
        hash_block_tokens=block if hashed else None,
        priority=priorities(source, lines, columns.get("priority")),
        provenance=(
            f"lengths: {len(rows)} requests of the {what} trace {source.path}"
            + (f", with hashes of {block}-token blocks" if hashed else ", without block hashes"),
        ),
    )

"""LLMServingSim's agentic sessions: lines with arrival_time_ns and sub_requests, tools running between these.

A line without sub_requests is a request that stands alone.
"""

from typing import Any

import numpy as np
from jaxtyping import Int

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, id_rows, json_columns, json_lines, times_ns, tokens


KEY = "sub_requests"
DURATION = "tool_duration_ns"


def matches(head: Head) -> bool:
    """JSON lines, some of which have sub_requests."""
    return head.json and any(KEY in row for row in head.rows)


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Whole prompts of each round, nanoseconds from the start of the run; token ids where every round has them.

    Where outputs have no ids and the next prompt begins with the prompt before, what follows it there are the outputs.
    """
    lines_of = json_lines(source, conf.limit)
    rounds: list[tuple[int, dict[str, Any]]] = []
    sizes = []
    for number, item in lines_of:
        found = item.get(KEY, [item])
        if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
            raise source.error(number, f"{KEY} as a list of one object or more", f"{found!r:.60}")
        sizes.append(len(found))
        rounds += [(number, one) for one in found]
    lines = np.array([number for number, _ in rounds])
    columns = json_columns(source, rounds, ("input_toks", "output_toks"))
    prompt = tokens(source, lines, "input_toks", columns["input_toks"])
    output = tokens(source, lines, "output_toks", columns["output_toks"])
    starts = json_columns(source, lines_of, ("arrival_time_ns",))["arrival_time_ns"]
    heads = np.array([number for number, _ in lines_of])
    first = np.cumsum([0, *sizes])
    ids, said = _ids(source, lines, rounds, prompt, output, first)
    return Trace(
        prompt,
        output,
        lines,
        arrival_ns=np.repeat(times_ns(source, heads, "arrival_time_ns", starts, 1.0), sizes),
        token_ids=ids,
        output_token_ids=said,
        provenance=(
            f"lengths: {len(rounds)} rounds of {len(sizes)} sessions of the LLMServingSim workload {source.path}, "
            f"with{'' if ids else 'out'} token ids",
        ),
        session=np.repeat(np.arange(len(sizes)), sizes),
        latency_ns=_latency_ns(source, lines, rounds, first),
    )


def _latency_ns(
    source: Source, lines: Int[np.ndarray, " row"], rounds: list[tuple[int, dict[str, Any]]], first: np.ndarray
) -> Int[np.ndarray, " row"] | None:
    """A round is sent when the one before has ended and its tool is done; None where no round has one after it says."""
    last = np.zeros(len(rounds), bool)
    last[first[1:] - 1] = True
    given = np.array([DURATION in one for _, one in rounds])
    if not (given & ~last).any():
        return None
    missing = ~given & ~last
    if missing.any():
        row = int(np.argmax(missing))
        wanted = f"{DURATION} in every sub-request but the last (or in none of the file)"
        raise source.error(int(lines[row]), wanted, f"none in sub-request {row - first[first <= row][-1] + 1}")
    cells = [one[DURATION] if ahead else 0 for (_, one), ahead in zip(rounds, ~last, strict=True)]
    return np.roll(times_ns(source, lines, DURATION, cells, 1.0), 1)


def _ids(
    source: Source,
    lines: Int[np.ndarray, " row"],
    rounds: list[tuple[int, dict[str, Any]]],
    prompt: Int[np.ndarray, " row"],
    output: Int[np.ndarray, " row"],
    first: np.ndarray,
) -> tuple[list[np.ndarray] | None, list[np.ndarray] | None]:
    """Token ids of prompts and of outputs, as far as they are known."""
    if not all("input_tok_ids" in one for _, one in rounds):
        return None, None
    ids = id_rows(source, lines, "input_tok_ids", [one["input_tok_ids"] for _, one in rounds], prompt)
    if all("output_tok_ids" in one for _, one in rounds):
        return ids, id_rows(source, lines, "output_tok_ids", [one["output_tok_ids"] for _, one in rounds], output)
    begins = set(first.tolist())
    said = []
    for row, (mine, length) in enumerate(zip(ids, output.tolist(), strict=True)):
        following = None if row + 1 in begins else ids[row + 1]
        continues = following is not None and np.array_equal(following[: len(mine)], mine)
        said.append(following[len(mine) : len(mine) + length] if continues and following is not None else mine[:0])
    return ids, said

"""ShareGPT conversations: a JSON array (or lines) of {"conversations": [{"from", "value"}, ...]}; no times."""

import math
from typing import Any

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, json_array, json_lines, tokens


CHARACTERS_PER_TOKEN = (
    4  # the usual rule of thumb for English text; exact counts can stand beside the text as num_tokens
)


def matches(head: Head) -> bool:
    """Records with conversations."""
    return head.json and "conversations" in head.names


def read(source: Source, conf: WorkloadConf) -> Trace:
    """The first turn is the prompt, the second the answer, as in vLLM's benchmark; shorter conversations are skipped.

    A turn's length is its `num_tokens` where it has one, else ceil(characters / 4), an estimate.
    """
    if next(line for line in source.lines if line.strip()).lstrip().startswith("["):
        records = list(enumerate(json_array(source), 1))
        source = Source(source.path, source.lines, "record")
    else:
        records = list(json_lines(source, None))
    numbers: list[int] = []
    pairs: list[list[Any]] = []
    skipped, estimated = 0, 0
    for number, record in records:
        if len(pairs) == conf.limit:
            break
        turns = record.get("conversations") if isinstance(record, dict) else None
        if not isinstance(turns, list):
            raise source.error(number, "an object with a list 'conversations'", f"{record!r:.60}")
        if len(turns) < 2 or any(_empty(turn) for turn in turns[:2]):
            skipped += 1
            continue
        counts = [_count(source, number, turn) for turn in turns[:2]]
        estimated += any("num_tokens" not in turn for turn in turns[:2])
        numbers.append(number)
        pairs.append(counts)
    if not pairs:
        raise ValueError(
            f"{source.path}: wanted at least one conversation of two turns, got none in {len(records)} records"
        )
    lines = np.array(numbers)
    how = (
        f"; {estimated} with lengths estimated as characters / {CHARACTERS_PER_TOKEN}"
        if estimated
        else ", counted tokens"
    )
    return Trace(
        tokens(source, lines, "num_tokens of the first turn", [pair[0] for pair in pairs]),
        tokens(source, lines, "num_tokens of the second turn", [pair[1] for pair in pairs]),
        lines,
        provenance=(f"lengths: {len(pairs)} conversations of {source.path}{how}",),
        notes=(f"{skipped} conversations without a prompt and an answer skipped",) if skipped else (),
    )


def _empty(turn: Any) -> bool:
    return isinstance(turn, dict) and "num_tokens" not in turn and turn.get("value") == ""


def _count(source: Source, number: int, turn: Any) -> Any:
    if isinstance(turn, dict) and "num_tokens" in turn:
        return turn["num_tokens"]
    if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
        raise source.error(number, "turns with a text 'value'", f"{turn!r:.60}")
    return math.ceil(len(turn["value"]) / CHARACTERS_PER_TOKEN)

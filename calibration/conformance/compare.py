"""Compares a recorded run with a played one, step by step, as they are made: the first step and field that differ."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any


BLOCK_FIELDS = ("nb", "ncb")
"""Identities of blocks: the second, stricter level. All other fields are decisions."""

ORDER = (
    *("step", "inst", "added", "abort", "issued", "mode", "sched", "ext", "dec", "dctx", "tok", "pre", "retract"),
    *("preempt", "chunked", "run", "wait", "remote", "full", "ntr", "free", "avail", "evict", "nb", "ncb", "xs"),
    *("dropped", "abort_mid", "completed", "out", "nout", "spec", "fin", "drop", "recv", "inv", "fail", "err", "sent"),
    *("held", "free_end", "avail_end", "evict_end", "ntr_end"),
)
"""The fields in the order in which a step decides them."""

MOST_STEPS_AFTER = 50_000
"""Steps that a run is followed after the other has ended or gone another way, to see whether it is stuck."""

ABSENT = "absent"
END = "the end of the run"


@dataclass(frozen=True)
class Difference:
    """Where two runs part; `step` is None in the summary. `rows`: the requests of the step's rows, in order."""

    step: int | None
    field: str
    recorded: Any
    simulated: Any
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The first difference in a decision and in block ids, None where there is none.

    `steps` were equal in their decisions. `stuck`: the simulated run ended as a livelock, a request that never gets
    its blocks, or as `dead`, if nothing is scheduled any more (so did the recorded one, if no decision differs).
    """

    steps: int
    decision: Difference | None = None
    blocks: Difference | None = None
    stuck: bool = False
    dead: bool = False


def compare(recorded: Iterator[dict[str, Any]], simulated: Iterator[dict[str, Any]]) -> Comparison:
    """Walk both runs to the first decision that differs; each yields its steps and last `{"summary": ...}`.

    A run that ends as stuck equals any longer one that does too: where a livelock is cut off is nobody's decision.
    """
    steps, at = 0, -1
    blocks: Difference | None = None
    while True:
        ours, theirs = next(simulated), next(recorded)
        if "summary" in ours or "summary" in theirs:
            break
        if ours != theirs:
            step = theirs["step"]
            for field in fields(theirs, ours):
                left, right = theirs.get(field), ours.get(field)
                if left == right or (not left and not right and list in (type(left), type(right))):
                    continue
                found = Difference(step, field, theirs.get(field, ABSENT), ours.get(field, ABSENT), rows_of(ours))
                if field not in BLOCK_FIELDS:
                    return Comparison(steps, found, blocks or found, ends_stuck(ours, simulated))
                blocks = blocks or found
        steps += 1
        at = theirs["step"]
    last_theirs, last_ours = summary(theirs, recorded), summary(ours, simulated)
    stuck = bool(last_theirs.get("stuck")), bool(last_ours.get("stuck"))
    if all(stuck):
        return Comparison(steps, None, blocks, stuck=True, dead=bool(last_ours.get("dead")))
    different: Difference | None = None
    if any(stuck):
        different = Difference(at, "stuck", *stuck)
    elif "summary" not in ours or "summary" not in theirs:
        different = Difference(
            theirs.get("step", ours.get("step")), "step", theirs.get("step", END), ours.get("step", END)
        )
    else:
        for key in last_theirs:
            if key in last_ours and last_theirs[key] != last_ours[key]:
                different = Difference(None, f"summary.{key}", last_theirs[key], last_ours[key])
                break
    return Comparison(steps, different, blocks or different, stuck[1])


def rows_of(step: dict[str, Any]) -> tuple[str, ...]:
    """The requests that a played step schedules, in order of its rows."""
    return tuple(row[0] for row in step.get("sched", ()))


def ends_stuck(line: dict[str, Any], rest: Iterator[dict[str, Any]]) -> bool:
    """Whether a run that already differs also livelocks; if it breaks down on its way, nobody knows."""
    with suppress(Exception):
        return bool(summary(line, rest).get("stuck"))
    return False


def summary(line: dict[str, Any], rest: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The summary that a run ends with, its rest read through; empty if that is too long."""
    for after in chain([line], islice(rest, MOST_STEPS_AFTER)):
        if "summary" in after:
            found: dict[str, Any] = after["summary"]
            return found
    return {}


def fields(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The fields of two steps in the order of deciding; unknown ones last."""
    both = first.keys() | second.keys()
    return [name for name in ORDER if name in both] + sorted(both.difference(ORDER))

"""What a person and a program read of a comparison: per trace, per set, and the counts."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from calibration.conformance.compare import ABSENT, END, Difference
from calibration.conformance.replay import Outcome
from calibration.conformance.sets import RecordedSet
from calibration.conformance.words import meaning, request_of


STUCK = "the simulated run is stuck, a request never gets its blocks"
DEAD = "whoever waits holds the blocks that it, or another, would need, so nothing is scheduled any more"
SHOWN = 100
"""Characters of a value that are shown to a person; JSON holds all."""
MOST_LINES = 5
"""Traces of a set that are unsupported for one reason and still have a line each."""


def trace_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """One line per trace; one for all of a set that are unsupported for the same reason, if they are many."""
    many = Counter((outcome.set_name, outcome.reason) for outcome in outcomes if outcome.status == "unsupported")
    lines: dict[str, None] = {}  # in order, each once
    for outcome in outcomes:
        number = many[outcome.set_name, outcome.reason] if outcome.status == "unsupported" else 0
        if number > MOST_LINES:
            lines[f"{outcome.set_name}: {number} traces unsupported: {outcome.reason}"] = None
        else:
            lines[line_of(outcome)] = None
    return list(lines)


def line_of(outcome: Outcome) -> str:
    """One trace in one line."""
    return f"{outcome.set_name}/{outcome.trace}: {verdict(outcome)}"


def verdict(outcome: Outcome) -> str:
    """Identical, or the first step and field that differ, with both values."""
    found = outcome.comparison
    if found is None:
        return f"{outcome.status}: {outcome.reason}"
    if found.decision is not None:
        stuck = f"; {STUCK}" if found.stuck and found.decision.field != "stuck" else ""
        return f"different, {sentence(found.decision)}{stuck}"
    if found.blocks is not None:
        return f"decisions identical, block ids different, {sentence(found.blocks)}"
    if found.dead:
        return f"identical, and dead in both: {DEAD}"
    if found.stuck:
        return "identical, and stuck in both: a request never gets its blocks"
    return "identical"


def sentence(difference: Difference) -> str:
    """Where, and what is on both sides; of two lists only the first entries that differ."""
    field, recorded, simulated = difference.field, difference.recorded, difference.simulated
    if field == "stuck":
        who, other = ("recorded", "simulated") if recorded else ("simulated", "recorded")
        return f"step {difference.step}, stuck: the {who} run is, a request never gets its blocks; the {other} is not"
    if field == "step":
        step, where = missing(difference)
        return f"step {step} is missing in the {where}"
    path, recorded, simulated = first_entry(difference)
    at = "" if difference.step is None else f"step {difference.step}, "
    words = meaning(difference, path)
    left, right = shown(recorded), shown(simulated)
    if left == right:
        left, right = json.dumps(recorded), json.dumps(simulated)  # a text that looks like a number
    about = f" ({words})" if words else ""
    return f"{at}{path_text(field, path)}{about}: recorded {left}, simulated {right}"


def missing(difference: Difference) -> tuple[int, str]:
    """The step that only one of two runs has, and which of them lacks it."""
    recorded, simulated = difference.recorded, difference.simulated
    if recorded == END or (simulated != END and simulated < recorded):
        return simulated, "recording"
    return recorded, "simulation"


def first_entry(difference: Difference) -> tuple[list[Any], Any, Any]:
    """The indices and keys of the first entry that differs, and what both sides hold there."""
    path: list[Any] = []
    recorded, simulated = difference.recorded, difference.simulated
    while isinstance(recorded, list) and isinstance(simulated, list):
        same = next((i for i, (a, b) in enumerate(zip(recorded, simulated, strict=False)) if a != b), None)
        if same is None:
            same = min(len(recorded), len(simulated))
        path.append(same)
        recorded = recorded[same] if same < len(recorded) else ABSENT
        simulated = simulated[same] if same < len(simulated) else ABSENT
    while isinstance(recorded, dict) and isinstance(simulated, dict):
        key = next(k for k in [*recorded, *simulated] if recorded.get(k, ABSENT) != simulated.get(k, ABSENT))
        path.append(key)
        recorded, simulated = recorded.get(key, ABSENT), simulated.get(key, ABSENT)
    return path, recorded, simulated


def path_text(field: str, path: Sequence[Any]) -> str:
    """A field and the way into it, `sched[2][1]`."""
    return field + "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in path)


def shown(value: Any) -> str:
    """A value, cut where it is long."""
    if value is ABSENT:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many traces, and how many of them are identical."""
    return {
        "traces": len(outcomes),
        "decisions_identical": sum(outcome.decisions_identical for outcome in outcomes),
        "block_ids_identical": sum(outcome.blocks_identical for outcome in outcomes),
    }


def last_line(outcomes: Sequence[Outcome]) -> str:
    """The sum."""
    found = counts(outcomes)
    return (
        f"decisions {found['decisions_identical']}/{found['traces']} identical, "
        f"block ids {found['block_ids_identical']}/{found['traces']} identical"
    )


def unsupported_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Per reason, how many of the traces cannot be replayed: they count as different in the sum."""
    reasons = Counter(outcome.reason for outcome in outcomes if outcome.status == "unsupported")
    return [f"{number} of {len(outcomes)} unsupported: {reason}" for reason, number in reasons.items()]


def set_lines(sets: Sequence[RecordedSet], outcomes: Sequence[Outcome]) -> list[str]:
    """Per set: who made it, the counts, what was left over."""
    lines = []
    for recorded in sets:
        own = [outcome for outcome in outcomes if outcome.set_name == recorded.name]
        if own:
            unsupported = sum(outcome.status == "unsupported" for outcome in own)
            more = f", {unsupported} unsupported" if unsupported else ""
            lines.append(f"{recorded.name}: {last_line(own)}{more}")
        lines += [f"{recorded.name}: {path.name} is {reason}" for path, reason in recorded.left_over]
    return lines


def fields(sets: Sequence[RecordedSet], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The object of `--json`."""
    by_set: dict[str, dict[str, Any]] = {}
    for recorded in sets:
        own = [outcome for outcome in outcomes if outcome.set_name == recorded.name]
        engines = sorted({f"{outcome.engine} {outcome.version}" for outcome in own if outcome.engine})
        by_set[recorded.name] = {
            "engine": ", ".join(engines),
            **counts(own),
            "unsupported": sum(outcome.status == "unsupported" for outcome in own),
            "stuck": sum(outcome.comparison is not None and outcome.comparison.stuck for outcome in own),
            "dead": sum(outcome.comparison is not None and outcome.comparison.dead for outcome in own),
            "left_over": [{"file": path.name, "reason": reason} for path, reason in recorded.left_over],
        }
    return {
        "status": "ok" if all(outcome.decisions_identical for outcome in outcomes) else "different",
        **counts(outcomes),
        "sets": by_set,
        "differences": [difference_of(outcome) for outcome in outcomes if not outcome.blocks_identical],
        "unsupported": [
            {"set": outcome.set_name, "trace": outcome.trace, "reason": outcome.reason}
            for outcome in outcomes
            if outcome.status == "unsupported"
        ],
    }


def difference_of(outcome: Outcome) -> dict[str, Any]:
    """One trace that is not identical: its first difference in a decision, else in block ids, else the reason."""
    about = {"set": outcome.set_name, "trace": outcome.trace}
    found = outcome.comparison
    difference = None if found is None else found.decision or found.blocks
    if found is None or difference is None:
        return about | {"kind": outcome.status, "reason": outcome.reason}
    path, *_ = ([], None, None) if difference.field == "step" else first_entry(difference)
    return about | {
        "kind": "decision" if found.decision else "block ids",
        "step": difference.step,
        "field": difference.field,
        "recorded": difference.recorded,
        "simulated": difference.simulated,
        "stuck": found.stuck,
        "path": path_text(difference.field, path),
        "request": request_of(difference, path),
        "sentence": sentence(difference),
    }

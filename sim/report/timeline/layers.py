"""A step opened: its layers, and the parts of each, as the cost model's components say.

A step's seconds by component are shared out over its layers: matrix products by the size of a layer's matrices,
experts evenly over the layers that have them, the rest evenly over all (attention too, whatever a layer's window). So
layers of one kind are equal. The embedding is in the layers' share; launches and host stand before the first layer, the
head and what a rank waits for others behind the last.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from sim.report.result import LayerKind, SimulationResult
from sim.report.timeline.marks import Event, span


MAX_OPENED = 1_000
"""Steps that are opened at most."""
BEFORE, BEHIND = ("launch_s", "host_s"), ("head_s", "wait_s", "draft_s")
INSIDE = ("gemm_s", "attention_s", "collective_s", "moe_s", "elementwise_s")
WORDS = {
    "gemm_s": "matrix products",
    "attention_s": "attention",
    "collective_s": "collectives",
    "moe_s": "experts",
    "elementwise_s": "elementwise",
    "launch_s": "launches",
    "host_s": "host",
    "head_s": "head and sampler",
    "wait_s": "wait for other ranks",
    "draft_s": "drafting",
}
NOTE = "an equal share: layers of one kind are priced alike"


def steps_wanted(text: str) -> list[tuple[int, int]]:
    """First and last of each range of `3`, `3-7`, or several with commas. **Raises:** `ValueError` for other texts."""
    found = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"timeline_layers wants numbers of steps, as 3, 3-7 or 0,5-9, got {text}.")
        found.append((int(match[1]), int(match[2] or match[1])))
    if sum(last - first + 1 for first, last in found) > MAX_OPENED:
        raise ValueError(f"timeline_layers opens at most {MAX_OPENED:,} steps, got {text}.")
    return found


def opened(order: np.ndarray, text: str) -> dict[int, int]:
    """Number of each opened step by its row; `order`: rows by number."""
    ranges = steps_wanted(text)
    numbers = {n for first, last in ranges for n in range(first, min(last, len(order) - 1) + 1)}
    return {int(order[number]): number for number in sorted(numbers)}


def beyond(result: SimulationResult) -> list[str]:
    """A sentence where `timeline_layers` names steps that the run did not have; none otherwise."""
    text, steps = str(result.config.get("timeline_layers") or ""), len(result.steps)
    if all(last < steps for _, last in steps_wanted(text)):
        return []
    there = f"the run has {steps:,} steps, 0 to {steps - 1}" if steps else "the run has no steps"
    return [f"timeline_layers={text} names steps that are not there: {there}"]


def open_step(
    result: SimulationResult, own: SimulationResult, row: int, pid: int, stage: int, begun: int, ended: int
) -> Iterator[Event]:
    """Slices inside a step's slice on one stage, which they fill: layers, and their parts inside them."""
    stages = 1 if own.stages is None else own.stages.stages
    seconds = {name: float(values[row]) for name, values in result.components_s.items()}
    parts = list(parts_of(own.layers, seconds, stage, stages))
    whole_s = sum(second for _, _, inside in parts for _, second in inside)
    if not whole_s:
        return
    at, scale = float(begun), (ended - begun) / whole_s
    for name, args, inside in parts:
        length = scale * sum(second for _, second in inside)
        if length:
            yield span(pid, 1 + stage, name, at, min(at + length, ended), args)
            start = at
            for component, second in inside if args else ():
                yield span(pid, 1 + stage, WORDS[component], start, min(start + scale * second, ended), {})
                start += scale * second
        at += length


Part = tuple[str, dict[str, str], list[tuple[str, float]]]
"""Name, what is said of it, and its components with their seconds; without a word it has no parts of its own."""


def parts_of(kinds: tuple[LayerKind, ...], seconds: Mapping[str, float], stage: int, stages: int) -> Iterator[Part]:
    """What one stage runs, in order."""
    for name in BEFORE:
        if seconds.get(name, 0.0) > 0:
            yield WORDS[name], {}, [(name, seconds[name] / stages)]
    shares = {name: _shares(kinds, name) for name in INSIDE}
    mine = ((number, kind) for kind in kinds for number in kind.numbers if kind.stage_of[number] == stage)
    for number, kind in sorted(mine, key=lambda pair: pair[0]):
        inside = [(name, seconds.get(name, 0.0) * shares[name].get(kind.name, 0.0)) for name in INSIDE]
        yield f"layer {number}", {"kind": kind.name, "note": NOTE}, [pair for pair in inside if pair[1] > 0]
    for name in BEHIND if stage == stages - 1 else ():
        if seconds.get(name, 0.0) > 0:
            yield WORDS[name], {}, [(name, seconds[name])]


def _shares(kinds: tuple[LayerKind, ...], component: str) -> dict[str, float]:
    """What one layer of each kind, by its name, takes of a component."""
    weights = {kind.name: _weight(kind, component) for kind in kinds}
    whole = sum(weights[kind.name] * len(kind.numbers) for kind in kinds)
    if not whole:
        weights, whole = dict.fromkeys(weights, 1.0), float(sum(len(kind.numbers) for kind in kinds))
    return {name: weight / whole for name, weight in weights.items()} if whole else {}


def _weight(kind: LayerKind, component: str) -> float:
    if component == "gemm_s":
        return kind.matrix_elements
    if component == "moe_s":
        return float(kind.experts)
    return 1.0

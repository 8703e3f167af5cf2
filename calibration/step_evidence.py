"""What the times of a measured run say of its engine's steps, beside what a simulation of it says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.step_links import DEPTHS, link_steps, replicas_of
from calibration.step_times import Intervals, by_running, intervals
from sim.deployment.graphs import full_graph_top, runs_as
from sim.report.result import RequestTable, SimulationResult


LOCKSTEP_NS = 2_000_000
"""Ranks in lockstep report one step's tokens within 0.1 ms of each other; no step with experts is this short."""


@dataclass(frozen=True)
class DepthCount:
    """How well `depth` batches in flight explain a run: `differences` of step numbers, and how many cannot be."""

    depth: int
    differences: int
    contradictions: int
    order_violations: int
    linked_instants: int
    steps: int

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return self.differences > 0 and not self.contradictions and not self.order_violations


@dataclass(frozen=True)
class StepEvidence:
    """Measured and simulated run by the same reading of their times.

    `simulated_depth`: batches in flight of the simulated engine; `intervals`: None where they cannot be priced.
    """

    simulated_depth: int
    measured: list[DepthCount]
    predicted: list[DepthCount]
    intervals: Intervals | None


def depth_counts(
    requests: RequestTable, depths: list[int], budget_tokens: int, lockstep: bool = False
) -> list[DepthCount]:
    """The evidence for each depth; replicas are independent, or one engine in `lockstep`."""
    tables = [requests] if lockstep else list(replicas_of(requests))
    counts = []
    for depth in depths:
        found = [link_steps(one, depth, budget_tokens, LOCKSTEP_NS if lockstep else 0) for one in tables]
        numbers = [
            (links.differences, links.contradictions, links.order_violations, links.linked, links.steps)
            for links in found
        ]
        counts.append(
            DepthCount(depth, *(sum(column) for column in zip(*numbers, strict=True)) if numbers else [0] * 5)
        )
    return counts


def step_evidence(
    recorded: RequestTable,
    predicted: SimulationResult,
    price: Callable[[dict[str, np.ndarray]], np.ndarray],
    lockstep: bool = False,
) -> StepEvidence:
    """Depth of the batch queue and step times of a recorded run, against the simulation of the same requests.

    `price`: seconds of steps given as columns named as the fields of `BatchStats`. Prefix hits are the
    simulation's. `lockstep`: the ranks run every step together; a recording does not tell whose requests are whose, so
    intervals are priced for one replica of one rank.
    """
    settings = predicted.settings
    depth, budget = int(settings["batches_in_flight"]), int(settings["max_num_batched_tokens"])
    depths = sorted({*DEPTHS, depth})
    priced = None
    if predicted.ranks == 1 and len(recorded) == len(predicted.requests):
        priced = intervals(
            recorded,
            link_steps(recorded, depth, budget),
            np.maximum(predicted.requests.cached_tokens, 0),
            price,
            _runs(settings),
        )
    return StepEvidence(
        depth,
        depth_counts(recorded, depths, budget, lockstep=lockstep),
        depth_counts(predicted.requests, depths, budget),
        priced,
    )


def _runs(settings: Mapping[str, Any]) -> Callable[[int, bool], tuple[int, int]]:
    """Padded tokens and graph mode of so many tokens, which all decode or not."""
    mode, sizes = settings["graph_mode"], tuple(settings["graph_sizes"])
    top = full_graph_top(mode, sizes, int(settings["max_num_seqs"]))
    return lambda tokens, only_decodes: runs_as(mode, tokens, only_decodes, sizes, top)


def evidence_text(found: StepEvidence) -> str:
    """For a terminal: contradictions by depth on both sides, then measured and priced step times."""
    best = next(one for one in found.measured if one.depth == found.simulated_depth)
    if not best.differences:
        return "batches in flight: no two steps of the measured run can be linked"
    head = f"{'batches in flight':<24}{'measured':>20}{'predicted':>20}"
    lines = [head]
    for measured, predicted in zip(found.measured, found.predicted, strict=True):
        mark = "  (simulated)" if measured.depth == found.simulated_depth else ""
        lines.append(f"  {measured.depth:<22}{_count(measured):>20}{_count(predicted):>20}{mark}")
    lines += [
        "",
        f"contradictions + order violations among the step numbers: {best.differences:,} differences measured, "
        f"{best.linked_instants:,} instants linked over {best.steps:,} steps. {_verdict(found)}",
    ]
    if found.intervals is None or not len(found.intervals):
        return "\n".join(lines)
    lines += [
        "",
        f"{'step time of known batches':<28}{'steps':>8}{'measured':>12}{'priced':>12}  {'unit':<6}{'error':>9}",
    ]
    for row in by_running(found.intervals):
        name = f"  {row['kind']}, {row['running']} running"
        lines.append(
            f"{name:<28}{row['steps']:>8,}{row['measured_ms']:>12.2f}{row['priced_ms']:>12.2f}  {'ms':<6}"
            f"{100 * float(row['error']):>+7.1f} %"
        )
    error = found.intervals.error
    lines += [
        "",
        f"{len(error)} intervals between linked instants, {found.intervals.steps.sum():,} steps: mean absolute error "
        f"{100 * abs(error).mean():.1f} %, bias {100 * error.mean():+.1f} %. Rows with prefill include the decode "
        "steps before it.",
    ]
    return "\n".join(lines)


def evidence_json(found: StepEvidence) -> dict[str, Any]:
    """As plain data: `depths` by side, `step_times` by class, `intervals` one by one."""
    priced = found.intervals
    listed = []
    if priced is not None:
        names = ("start_s", "steps", "measured_ms", "priced_ms", "decodes", "prefill_tokens")
        columns = (
            priced.start_ns * 1e-9,
            priced.steps,
            priced.measured_ns * 1e-6,
            priced.priced_s * 1e3,
            priced.decodes,
            priced.prefill_tokens,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        listed = [dict(zip(names, row, strict=True)) for row in rows]
    return {
        "simulated_depth": found.simulated_depth,
        "depths": {
            side: [vars(one) for one in counts]
            for side, counts in (("measured", found.measured), ("predicted", found.predicted))
        },
        "step_times": by_running(priced) if priced is not None else [],
        "intervals": listed,
    }


def _count(one: DepthCount) -> str:
    return f"{one.contradictions} + {one.order_violations}" if one.differences else "n/a"


def _verdict(found: StepEvidence) -> str:
    holding = [one.depth for one in found.measured if one.holds]
    if not holding:
        return "No depth explains the measured times: preemptions, drafts or another loop."
    if found.simulated_depth not in holding:
        return f"The measured engine has {holding[0]} in flight, not {found.simulated_depth}."
    if len(holding) > 1:
        return "The times do not tell the depth."
    return f"The measured engine has {found.simulated_depth} in flight, as simulated."

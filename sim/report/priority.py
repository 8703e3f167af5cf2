"""Who waits: TTFT by priority class."""

from dataclasses import dataclass

import numpy as np

from sim.report.metrics import latencies
from sim.report.percentile import Distribution, distribution
from sim.report.result import SimulationResult


@dataclass(frozen=True)
class PriorityClass:
    """The finished requests of one `priority` (lower is more urgent)."""

    priority: int
    completed: int
    ttft: Distribution


def by_priority(result: SimulationResult) -> list[PriorityClass]:
    """TTFT of each priority that occurs, the most urgent first; empty where the workload has no priorities."""
    priority = result.workload.priority
    if priority is None:
        return []
    found = latencies(result.requests)
    mine = priority[found.request]
    return [
        PriorityClass(int(level), int((mine == level).sum()), distribution(found.ttft_s[mine == level]))
        for level in np.unique(priority)
    ]

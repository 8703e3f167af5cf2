"""Little's law as a check of a run: queue lengths from one table against times from another."""

from dataclasses import dataclass

import numpy as np

from sim.report.result import FINISHED, SimulationResult
from sim.report.series import holds_until_ns
from sim.units import NS_PER_S


@dataclass(frozen=True)
class LittlesLaw:
    """Little's law, `L = lambda W`, from two tables written apart.

    `mean_in_engine` is the time average of running + waiting over the steps; `rate_per_s` the arrival rate;
    `mean_time_s` the mean time from being taken up to finishing. `relative_gap` = L / (lambda W) - 1.
    """

    mean_in_engine: float
    rate_per_s: float
    mean_time_s: float

    @property
    def relative_gap(self) -> float:
        """0 when the law holds."""
        return self.mean_in_engine / (self.rate_per_s * self.mean_time_s) - 1


def littles_law(result: SimulationResult) -> LittlesLaw | None:
    """Check of a run that started and ended empty: the steps' queue lengths against the requests' times.

    A request counts in the steps from the first step that begins after it was taken up until the step that finishes
    it ends, so the two agree up to a step per request. None if nothing ran or a request did not finish.
    """
    requests, steps = result.requests, result.steps
    if not len(steps) or not len(requests) or (np.asarray(requests.status) != FINISHED).any():
        return None
    present = np.asarray(steps.running, float) + np.asarray(steps.waiting, float)
    area_s = integral_ns(steps.replica, steps.start_ns, steps.end_ns, present) / NS_PER_S
    times_s = (np.asarray(requests.finish_ns) - np.asarray(requests.queued_ns)) / NS_PER_S
    span_s = (int(np.max(requests.finish_ns)) - requests.first_arrival_ns) / NS_PER_S
    return LittlesLaw(area_s / span_s, len(requests) / span_s, float(times_s.mean()))


def integral_ns(replica: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, value: np.ndarray) -> float:
    """Time integral (value x ns) of a per-step value that holds as `holds_until_ns` says."""
    until = holds_until_ns(replica, start_ns, end_ns)
    return float((np.asarray(value, float) * (until - np.asarray(start_ns, np.int64))).sum())

"""A recorded run (`requests.jsonl`, see `sim.report.measured`) as observed latencies of its requests."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from jaxtyping import Float

from calibration.from_run.observed import Observed, statistic_of
from sim.report.measured import Recorded
from sim.workload.trace import Workload


def observed_run(folder: Path, recorded: Recorded, workload: Workload) -> Observed:
    """TTFT and end-to-end latency from each request's arrival, and their statistics.

    The quickest pick-up counts as none, because the clocks of a recording do not tell it: see `picked_up`.
    """
    requests = recorded.requests
    ttft_s = 1e-9 * (requests.first_token_ns - requests.arrival_ns)
    e2el_s = 1e-9 * (requests.finish_ns - requests.arrival_ns)
    return _observed(folder.name, workload, ttft_s, e2el_s)


def picked_up(observed: Observed, pickup_s: float) -> Observed:
    """A recorded run whose quickest pick-up took `pickup_s`, as in the simulation that is to meet it."""
    assert observed.workload is not None and observed.ttft_s is not None and observed.e2el_s is not None
    ttft_s, e2el_s = observed.ttft_s + pickup_s, observed.e2el_s + pickup_s
    return replace(_observed(observed.name, observed.workload, ttft_s, e2el_s), sha256=observed.sha256)


def _observed(
    name: str, workload: Workload, ttft_s: Float[np.ndarray, " request"], e2el_s: Float[np.ndarray, " request"]
) -> Observed:
    """With the statistics of these latencies."""
    gaps = workload.output_tokens - 1
    several = gaps > 0
    tpot_s = ((e2el_s - ttft_s) / np.maximum(gaps, 1))[several]
    samples = {"ttft": ttft_s, "e2el": e2el_s, "tpot": tpot_s}
    statistics = {
        (metric, statistic): statistic_of(values, statistic)
        for metric, values in samples.items()
        for statistic in ("mean", "median", "p90", "p99")
        if len(values)
    }
    digest = sha256(np.stack([ttft_s, e2el_s]).astype("<f8").tobytes()).hexdigest()
    return Observed(name, digest, statistics, ttft_s, e2el_s, workload)

"""A recorded run (`requests.jsonl`, see `sim.report.measured`) as observed latencies of its requests."""

from hashlib import sha256
from pathlib import Path

import numpy as np

from calibration.from_run.observed import Observed, statistic_of
from sim.report.measured import Recorded
from sim.workload.trace import Workload


def observed_run(folder: Path, recorded: Recorded, workload: Workload) -> Observed:
    """TTFT and end-to-end latency from each request's arrival, and their statistics."""
    requests = recorded.requests
    ttft_s = 1e-9 * (requests.first_token_ns - requests.arrival_ns)
    e2el_s = 1e-9 * (requests.finish_ns - requests.arrival_ns)
    several = requests.output_tokens > 1
    tpot_s = ((e2el_s - ttft_s) / np.maximum(requests.output_tokens - 1, 1))[several]
    samples = {"ttft": ttft_s, "e2el": e2el_s, "tpot": tpot_s}
    statistics = {
        (metric, statistic): statistic_of(values, statistic)
        for metric, values in samples.items()
        for statistic in ("mean", "median", "p90", "p99")
        if len(values)
    }
    digest = sha256(np.stack([ttft_s, e2el_s]).astype("<f8").tobytes()).hexdigest()
    return Observed(folder.name, digest, statistics, ttft_s, e2el_s, workload)

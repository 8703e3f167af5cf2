"""What a run of a real server tells: latencies of its requests, or only their statistics."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from sim.workload.trace import Workload


METRICS = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "p90", "p95", "p99")


@dataclass(frozen=True, eq=False)
class Observed:
    """Measured latencies of one run.

    - `name`: of the data, for people; `sha256`: of the file.
    - `statistics`: seconds by (metric, statistic).
    - `ttft_s`, `e2el_s` [request], in the order they were sent, where the file has them, else None.
    - `workload`: what was sent, where the file tells; `keys`: what it tells of the workload otherwise, as KEY=VALUE.
    - `model_id`: of the model, as the server names it; empty where the file does not tell.
    """

    name: str
    sha256: str
    statistics: dict[tuple[str, str], float]
    ttft_s: Float[np.ndarray, " request"] | None = None
    e2el_s: Float[np.ndarray, " request"] | None = None
    workload: Workload | None = None
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    model_id: str = ""


def statistic_of(values: Float[np.ndarray, " request"], name: str) -> float:
    """A statistic of latencies by its name."""
    if name == "mean":
        return float(values.mean())
    return float(np.percentile(values, 50.0 if name == "median" else float(name[1:])))

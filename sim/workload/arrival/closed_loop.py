"""Closed loop: `concurrency` clients, each sends its next request when the last one is answered."""

import numpy as np
from jaxtyping import Float

from sim.workload.conf import WorkloadConf


READS = ()


def times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """All requests are ready at 0; the engine holds each back until fewer than `concurrency` are outstanding."""
    return np.zeros(count)

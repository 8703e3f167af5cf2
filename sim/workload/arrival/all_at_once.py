"""A burst: every request at time 0 (an infinite rate)."""

import numpy as np
from jaxtyping import Float

from sim.workload.conf import WorkloadConf


READS = ()


def times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """Zeros."""
    return np.zeros(count)

"""Evenly spaced arrivals."""

import numpy as np
from jaxtyping import Float

from sim.workload.conf import WorkloadConf


READS = ("rate",)


def times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """Request i at i / rate, the first one at 0."""
    return np.arange(count) / conf.rate

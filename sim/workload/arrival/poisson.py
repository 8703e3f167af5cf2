"""Poisson arrivals: independent exponential gaps of mean 1 / rate."""

import numpy as np
from jaxtyping import Float

from sim.workload import draws
from sim.workload.conf import WorkloadConf


READS = ("rate",)


def times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """Sums of exponential gaps; the first request comes after the first gap."""
    return np.cumsum(draws.exponentials(rng, count)) / conf.rate

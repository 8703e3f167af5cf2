"""Exponential: memoryless, as the time to an event that may come at any moment."""

import numpy as np
from jaxtyping import Float

from sim.workload import draws
from sim.workload.sessions.conf import LawConf


READS = ("mean", "least", "most")


def sample(conf: LawConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """`-mean ln(1 - u)`."""
    return conf.mean * draws.exponentials(rng, count)

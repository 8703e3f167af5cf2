"""Always the mean."""

import numpy as np
from jaxtyping import Float

from sim.workload.sessions.conf import LawConf


READS = ("mean",)


def sample(conf: LawConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """The same number."""
    return np.full(count, float(conf.mean))

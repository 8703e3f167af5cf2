"""Log-normal by mean and coefficient of variation: the longer tail the larger `cv`."""

import math

import numpy as np
from jaxtyping import Bool, Float

from sim.workload import draws
from sim.workload.sessions.conf import LawConf


READS = ("mean", "cv", "least", "most")


def sample(conf: LawConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """exp(mu + sigma z), sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2."""
    variance = math.log(1 + conf.cv * conf.cv)
    mu, sigma = math.log(conf.mean) - variance / 2, math.sqrt(variance)

    def propose(u: Float[np.ndarray, "row 2"]) -> tuple[Float[np.ndarray, "row 1"], Bool[np.ndarray, " row"]]:
        z, inside = draws.polar_normal(u[:, 0], u[:, 1])
        return draws.exp(mu + sigma * z)[:, None], inside

    return draws.accepted(rng, count, 2, propose, "a log-normal law wants numbers")[:, 0]

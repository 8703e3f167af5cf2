"""Geometric: after each one the chance that another follows is the same."""

import numpy as np
from jaxtyping import Float

from sim.workload import draws
from sim.workload.sessions.conf import LawConf


READS = ("mean", "least", "most")


def sample(conf: LawConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """P(n) = p (1 - p)^(n - 1) for n = 1, 2 ..., p = 1 / mean: 1 + floor(ln(1 - u) / ln(1 - p))."""
    if conf.mean <= 1:
        return np.ones(count)
    over = float(draws.log(np.array([1 - 1 / conf.mean]))[0])
    return 1 + np.floor(-draws.exponentials(rng, count) / over)

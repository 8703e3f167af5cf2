"""Renewal arrivals with gamma gaps: shape `burstiness`, mean 1 / rate."""

import math

import numpy as np
from jaxtyping import Bool, Float

from sim.workload import draws
from sim.workload.conf import WorkloadConf


READS = ("rate",)


def times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """Sums of gamma gaps, squared coefficient of variation 1 / burstiness; even gaps at infinite burstiness."""
    return np.cumsum(unit_gaps(conf.burstiness, count, rng)) / conf.rate


def unit_gaps(shape: float, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """Gamma gaps of mean 1; exponential ones, with the Poisson process's own draws, at shape 1."""
    if math.isinf(shape):
        return np.ones(count)
    if shape == 1.0:
        return draws.exponentials(rng, count)
    # Marsaglia and Tsang (2000): d v is gamma(a) for a >= 1; for a < 1, gamma(a + 1) times U^(1/a).
    # The normal deviate comes from the polar method in the same row of uniforms.
    boosted = shape if shape >= 1 else shape + 1
    d = boosted - 1 / 3
    c = 1 / math.sqrt(9 * d)

    def propose(u: Float[np.ndarray, "row column"]) -> tuple[Float[np.ndarray, "row 1"], Bool[np.ndarray, " row"]]:
        x, inside = draws.polar_normal(u[:, 0], u[:, 1])
        v = (1 + c * x) * (1 + c * x) * (1 + c * x)
        positive = v > 0
        safe = np.where(positive, v, 1.0)
        ok = inside & positive & (draws.log(1 - u[:, 2]) < 0.5 * x * x + d - d * safe + d * draws.log(safe))
        gap = d * safe
        if shape < 1:
            gap = gap * draws.exp(draws.log(1 - u[:, 3]) / shape)
        return (gap / shape)[:, None], ok

    return draws.accepted(rng, count, 4, propose, "no gamma variate was accepted")[:, 0]

"""A bounded power law: popularity has the density x^-s on [1, bound], drawn for each expert and layer.

Its quantile function is `q(u) = (1 + u (bound^p - 1))^(1/p)` with p = 1 - s; exponents 1.01 and 1.2 are those of
aiconfigurator's operator tables.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sim.workload import draws


READS: dict[str, Any] = {"exponent": 1.2, "bound": 100.0}
NEAR_ONE = 1e-6


def popularity(
    options: Mapping[str, Any], layers: int, experts: int, rng: np.random.Generator
) -> Float[np.ndarray, "1 layer expert"]:
    """Independent draws."""
    power, bound = 1.0 - options["exponent"], np.asarray(options["bound"], np.float64)
    uniform = rng.random((1, layers, experts))
    if abs(power) < NEAR_ONE:
        return draws.exp(uniform * draws.log(bound))
    return draws.exp(draws.log(1.0 + uniform * (draws.exp(power * draws.log(bound)) - 1.0)) / power)

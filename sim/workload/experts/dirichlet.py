"""Shares drawn from a symmetric Dirichlet law, for each layer: gamma variates of shape `concentration`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sim.workload.arrival.gamma import unit_gaps


READS: dict[str, Any] = {"concentration": 1.0}
LEAST = 1e-300


def popularity(
    options: Mapping[str, Any], layers: int, experts: int, rng: np.random.Generator
) -> Float[np.ndarray, "1 layer expert"]:
    """Squared coefficient of variation of an expert's share: about 1 / concentration."""
    drawn = unit_gaps(options["concentration"], layers * experts, rng)
    return np.maximum(drawn, LEAST).reshape(1, layers, experts)

"""Texts of several domains: each has a Zipf law over an order of its own, so experts are popular with some."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sim.workload.experts.zipf import ranked


READS: dict[str, Any] = {"domains": 8, "exponent": 1.0, "run_tokens": 1}


def popularity(
    options: Mapping[str, Any], layers: int, experts: int, rng: np.random.Generator
) -> Float[np.ndarray, "domain layer expert"]:
    """One law per domain."""
    return ranked(options["exponent"], (options["domains"], layers, experts), rng)

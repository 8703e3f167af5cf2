"""Every expert is as popular as another; tokens choose at random."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float


READS: dict[str, Any] = {}


def popularity(
    options: Mapping[str, Any], layers: int, experts: int, rng: np.random.Generator
) -> Float[np.ndarray, "1 layer expert"]:
    """Ones."""
    return np.ones((1, layers, experts))

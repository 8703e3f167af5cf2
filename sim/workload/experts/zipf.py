"""Zipf popularity: the i-th most popular expert of a layer has weight i^-s. Who that is, is drawn for each layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sim.workload import draws


READS: dict[str, Any] = {"exponent": 1.0}


def popularity(
    options: Mapping[str, Any], layers: int, experts: int, rng: np.random.Generator
) -> Float[np.ndarray, "1 layer expert"]:
    """One law for all domains."""
    return ranked(options["exponent"], (1, layers, experts), rng)


def ranked(exponent: float, shape: tuple[int, ...], rng: np.random.Generator) -> Float[np.ndarray, "..."]:
    """`i^-exponent` over the last axis, in an order of its own for each of the others."""
    rank = np.argsort(np.argsort(rng.random(shape), axis=-1), axis=-1)
    weights: np.ndarray = draws.exp(-exponent * draws.log(np.arange(1.0, shape[-1] + 1)))[rank]
    return weights

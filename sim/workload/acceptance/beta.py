"""Requests differ: each has a rate of its own, drawn once from a Beta law around the mean `rate`."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from sim.workload import draws
from sim.workload.acceptance import KEY, NEEDED, Law, by_chances, chance, powers
from sim.workload.arrival.gamma import unit_gaps


READS: dict[str, Any] = {"rate": NEEDED, "concentration": 10.0}


def make(options: Mapping[str, Any], most: int, seed: int) -> Law:
    """See `sim.workload.acceptance`. A Beta variate is a / (a + b) of two gamma variates."""
    mean, concentration = chance(options["rate"], "rate"), options["concentration"]
    if not 1e-3 <= concentration <= 1e9:
        raise ValueError(f"{KEY}.concentration wants a number from 0.001 to 1e9, got {concentration:g}.")
    right, wrong = concentration * mean, concentration * (1.0 - mean)

    @cache
    def chances(request: int) -> list[float]:
        if not (right and wrong):
            return powers(mean, most)
        sequence = np.random.SeedSequence(seed, spawn_key=(draws.ACCEPTANCE, request))
        rng = np.random.Generator(np.random.PCG64(sequence))
        a, b = right * unit_gaps(right, 1, rng)[0], wrong * unit_gaps(wrong, 1, rng)[0]
        return powers(float(a / (a + b)) if a + b else mean, most)

    return by_chances(chances, seed)

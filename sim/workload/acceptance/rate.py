"""One rate for all: each draft is accepted with the same chance, if those before it are: m_i = rate^i."""

from collections.abc import Mapping
from typing import Any

from sim.workload.acceptance import NEEDED, Law, by_chances, chance, powers


READS: dict[str, Any] = {"rate": NEEDED}


def make(options: Mapping[str, Any], most: int, seed: int) -> Law:
    """See `sim.workload.acceptance`."""
    chances = powers(chance(options["rate"], "rate"), most)
    return by_chances(lambda request: chances, seed)

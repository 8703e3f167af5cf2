"""A fixed pattern: accepted drafts of a request's verifications in turn, over and over."""

from collections.abc import Mapping
from typing import Any

from sim.workload.acceptance import KEY, NEEDED, Law


READS: dict[str, Any] = {"pattern": NEEDED}


def make(options: Mapping[str, Any], most: int, seed: int) -> Law:
    """See `sim.workload.acceptance`."""
    del seed
    pattern = list(options["pattern"])
    wrong = [value for value in pattern if not 0 <= value <= most]
    if not pattern or wrong:
        got = wrong[0] if wrong else "none"
        raise ValueError(f"{KEY}.pattern wants numbers of accepted drafts from 0 to {most}, at least one, got {got}.")
    return lambda request, number: pattern[number % len(pattern)]

"""Requests are of kinds (code, chat, ...), each kind with a rate; which one a request is, is drawn by `shares`."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from sim.workload import draws
from sim.workload.acceptance import KEY, NEEDED, Law, by_chances, chance, powers


READS: dict[str, Any] = {"rates": NEEDED, "shares": None}
KIND = -1
"""The number of the event that decides a request's kind: its verifications count from 0."""


def make(options: Mapping[str, Any], most: int, seed: int) -> Law:
    """See `sim.workload.acceptance`."""
    kinds = [powers(chance(rate, "rates"), most) for rate in options["rates"]]
    shares = [1.0] * len(kinds) if options["shares"] is None else options["shares"]
    if not kinds or len(shares) != len(kinds) or min(shares) < 0.0 or not sum(shares) > 0.0:
        raise ValueError(
            f"{KEY}.shares wants a number from 0, and some above, for each of {len(kinds)} {KEY}.rates (at least one), "
            f"got {list(shares)}."
        )
    ends = list(accumulate(shares))

    def chances(request: int) -> list[float]:
        drawn = draws.counted(seed, request, KIND) * ends[-1]
        return next((kind for kind, end in zip(kinds, ends, strict=True) if drawn < end), kinds[-1])

    return by_chances(chances, seed)

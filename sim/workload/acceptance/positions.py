"""A chance for each position, as engines print them: that this draft and all before it are accepted.

With `conditional`: that it is, where those before it are; the chances in the other sense are their products.
"""

from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from typing import Any

from sim.workload.acceptance import KEY, NEEDED, Law, by_chances, chance


READS: dict[str, Any] = {"positions": NEEDED, "conditional": False}


def make(options: Mapping[str, Any], most: int, seed: int) -> Law:
    """See `sim.workload.acceptance`."""
    given = [chance(value, "positions") for value in options["positions"]]
    if len(given) < most:
        raise ValueError(
            f"{KEY}.positions wants a chance for each of {most} drafts, got {len(given)}: add some, or lower "
            "engine.speculation.num_speculative_tokens."
        )
    chances = list(accumulate(given[:most], mul)) if options["conditional"] else given[:most]
    rising = next((place for place in range(1, most) if chances[place] > chances[place - 1]), None)
    if rising is not None:
        raise ValueError(
            f"{KEY}.positions are chances that a draft and all before it are accepted, which cannot rise from "
            f"{chances[rising - 1]:g} to {chances[rising]:g}; set {KEY}.conditional=true for those of each draft alone."
        )
    return by_chances(lambda request: chances, seed)

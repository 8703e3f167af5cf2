"""Of two replicas drawn at random, the one with fewer requests outstanding (Mitzenmacher, 2001)."""

from collections.abc import Sequence

import numpy as np

from sim.event.routing.base import Arrival, Router, Target, least


def make(options: object, seed: int) -> Router:
    """Draws depend only on the seed and the request's number."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        if len(targets) == 1:
            return 0
        first, second = np.random.SeedSequence((seed, arrival.index)).generate_state(2, np.uint64)
        one = int(first) % len(targets)
        other = (one + 1 + int(second) % (len(targets) - 1)) % len(targets)
        return least(targets, sorted((one, other)))

    return pick

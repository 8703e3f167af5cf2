"""Independent draws that depend only on the seed and the request's number."""

from collections.abc import Sequence

import numpy as np

from sim.event.routing.base import Arrival, Router, Target


def make(options: object, seed: int) -> Router:
    """Equal for equal seeds, whatever the order."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        draw = np.random.SeedSequence((seed, arrival.index)).generate_state(1, np.uint64)[0]
        return int(draw) % len(targets)

    return pick

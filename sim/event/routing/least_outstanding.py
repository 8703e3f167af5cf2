"""The replica with the fewest requests sent and not ended, running ones included; the first of equals."""

from collections.abc import Sequence

from sim.event.routing.base import Arrival, Router, Target, least


def make(options: object, seed: int) -> Router:
    """It has no state of its own."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        return least(targets)

    return pick

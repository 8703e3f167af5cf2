"""In turn, by order of arrival."""

from collections.abc import Sequence

from sim.event.routing.base import Arrival, Router, Target


def make(options: object, seed: int) -> Router:
    """Its state is whose turn it is."""
    turn = [-1]

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        turn[0] = (turn[0] + 1) % len(targets)
        return turn[0]

    return pick

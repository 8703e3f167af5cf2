"""The replica with the fewest prompt tokens still to be prefilled; of equals the fewest requests."""

from collections.abc import Sequence

from sim.event.routing.base import Arrival, Router, Target


def make(options: object, seed: int) -> Router:
    """It has no state of its own."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        return min(range(len(targets)), key=lambda place: (targets[place].prompt_tokens, targets[place].outstanding))

    return pick

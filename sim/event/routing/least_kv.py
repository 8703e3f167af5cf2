"""The replica whose KV cache is least used; of equals the one with the fewest requests outstanding."""

from collections.abc import Sequence

from sim.event.routing.base import Arrival, Router, Target


def make(options: object, seed: int) -> Router:
    """It has no state of its own."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        return min(range(len(targets)), key=lambda place: (targets[place].kv_usage, targets[place].outstanding))

    return pick

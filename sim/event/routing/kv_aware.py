"""For the second choice: where KV is free and the way to it is, as seen from where the prompt is computed.

The replica with the least `used + congestion (1 - rate / fastest)`: its share of KV blocks in use, and what one more
transfer would get on the way there now, against the best way to any of them. Of equals the one with the fewest requests
outstanding. Where no KV moves all ways are equal, and it is `least_kv`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.event.routing.base import Arrival, Router, Target


@dataclass(frozen=True)
class Options:
    """`congestion`: how many shares of a KV cache a way counts on which nothing would move."""

    congestion: float = 0.5

    def __post_init__(self) -> None:
        if not self.congestion >= 0:
            raise ValueError(f"congestion must not be negative, got {self.congestion:g}.")


def make(options: Options, seed: int) -> Router:
    """It has no state of its own."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        places = range(len(targets))
        rates = [1.0] * len(targets) if arrival.rate_to is None else [arrival.rate_to(place) for place in places]
        fastest = max(rates)

        def cost(place: int) -> tuple[float, int]:
            slowed = options.congestion * (1 - rates[place] / fastest)
            return targets[place].kv_usage + slowed, targets[place].outstanding

        return min(places, key=cost)

    return pick

"""Requests that belong together go to the same replica: one session; without sessions those that begin alike.

The replica is found by rendezvous hashing of the session's number, or of the first tokens, so that few requests move
when replicas come or go. A request without either goes where its number says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from sim.event.routing.base import Arrival, Router, Target


@dataclass(frozen=True)
class Options:
    """`tokens`: how many of the first tokens tell two conversations apart."""

    tokens: int = 256

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, got {self.tokens}.")


def make(options: Options, seed: int) -> Router:
    """It has no state of its own."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        key = _key(arrival, options.tokens)
        weights = [blake2b(key, digest_size=8, salt=place.to_bytes(8, "big")).digest() for place in range(len(targets))]
        return max(range(len(targets)), key=lambda place: weights[place])

    return pick


def _key(arrival: Arrival, tokens: int) -> bytes:
    """What requests have alike that go to one replica."""
    if arrival.session is not None:
        return f"session {arrival.session}".encode()
    return str(arrival.index).encode() if arrival.content is None else arrival.content[:tokens].tobytes()

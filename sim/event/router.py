"""Which replica gets a request. A router is a function `(request index, replicas) -> position`.

A replica is seen through its `Door`: how busy it is, and which of its ranks takes the next request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Target(Protocol):
    """What a router sees of a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent to it and not ended."""


Router = Callable[[int, Sequence[Target]], int]


@dataclass(frozen=True)
class Door:
    """One replica as a router sees it; `pick` gives the number of the rank that takes the next request."""

    target: Target
    pick: Callable[[], int]


def chooser(router: Router, doors: Sequence[Door]) -> Callable[[int], int]:
    """The rank for request i: first a replica, where there are several, then one of its ranks."""
    if len(doors) == 1:
        return lambda index: doors[0].pick()
    targets = [door.target for door in doors]
    return lambda index: doors[router(index, targets)].pick()


def round_robin(seed: int) -> Router:
    """In turn, by order of arrival."""
    del seed
    state = [-1]

    def pick(index: int, replicas: Sequence[Target]) -> int:
        del index
        state[0] = (state[0] + 1) % len(replicas)
        return state[0]

    return pick


def least_outstanding(seed: int) -> Router:
    """The replica with the fewest requests sent and not ended; the first of equals."""
    del seed

    def pick(index: int, replicas: Sequence[Target]) -> int:
        del index
        return min(range(len(replicas)), key=lambda i: replicas[i].outstanding)

    return pick


def uniform_random(seed: int) -> Router:
    """Independent draws that depend only on the seed and the request's number."""

    def pick(index: int, replicas: Sequence[Target]) -> int:
        draw = np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0]
        return int(draw) % len(replicas)

    return pick


ROUTERS: dict[str, Callable[[int], Router]] = {
    "round_robin": round_robin,
    "least_outstanding": least_outstanding,
    "random": uniform_random,
}


def make_router(name: str, seed: int) -> Router:
    """The router called `name`. Raises `ValueError` for an unknown one."""
    if name not in ROUTERS:
        raise ValueError(f"deployment.router: wanted one of {', '.join(ROUTERS)}, got '{name}'")
    return ROUTERS[name](seed)

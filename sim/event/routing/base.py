"""What a router sees and says.

A router is a function `(arrival, targets) -> position | None`: which of the targets gets the request, or None, to turn
it away. A module of this package, or a user's own file, has `make(options, seed)`, which returns one; perhaps
`Options`, a dataclass that `deployment.router_options` fill, and `SHEDS = True` if it may turn requests away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Arrival:
    """A request as a router sees it: it does not know how many tokens will come out.

    `now_ns`: when it gets to the router. `session`: whose round it is, None where requests stand alone. `content`: its
    prompt's token ids, where the workload has them. `rate_to`: of the target at a place, the bytes per second that its
    KV would have on the way there; None where none moves.
    """

    index: int
    prompt_tokens: int
    priority: int
    now_ns: int
    content: np.ndarray | None = None
    rate_to: Callable[[int], float] | None = None
    session: int | None = None


class Target(Protocol):
    """What a router sees of a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent to it and not ended."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of those that have no token yet."""

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks in use, 0 to 1."""


Router = Callable[[Arrival, Sequence[Target]], int | None]


@dataclass(frozen=True)
class Door:
    """One replica as a router sees it; `pick` gives the number of the rank that takes the next request."""

    target: Target
    pick: Callable[[], int]


def chooser(router: Router, doors: Sequence[Door]) -> Callable[[Arrival], int | None]:
    """The rank for a request: first a replica, then one of its ranks; None if the router turns it away."""
    targets = [door.target for door in doors]

    def choose(arrival: Arrival) -> int | None:
        place = router(arrival, targets)
        return None if place is None else doors[place].pick()

    return choose


def least(targets: Sequence[Target], places: Sequence[int] | None = None) -> int:
    """The place of the target with the fewest requests sent and not ended; the first of equals."""
    if places is None:
        waiting = [target.outstanding for target in targets]
        return waiting.index(min(waiting))
    return min(places, key=lambda place: targets[place].outstanding)

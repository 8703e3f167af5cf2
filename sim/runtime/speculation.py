"""Speculative decoding as a scheduler meets it: how many drafts a row gets, and how many of them are right.

Draws depend on the seed, the request and the number of its verification alone, so that any schedule sees the same.
"""

from typing import Protocol

from sim.deployment.speculation import Speculation
from sim.workload import draws
from sim.workload.acceptance import Law, law_of


FOUND = -2
"""Look-ups of n-grams are events from here down: verifications count from 0, and -1 is a law's own."""


class Numbered(Protocol):
    """A request, as far as it matters here."""

    @property
    def index(self) -> int:
        """Its number in the workload."""


class DrawnDrafts:
    """The `Progress` of rows under a law of acceptance; requests run to their length."""

    foreseen = True

    def __init__(self, speculation: Speculation, seed: int):
        self._most = speculation.tokens
        self._law: Law = law_of(speculation.acceptance, speculation.tokens, seed)
        self._looks_up = speculation.method == "ngram"
        self._match_rate = speculation.match_rate
        self._seed = seed
        self._verified: dict[int, int] = {}
        self._looked_up: dict[int, int] = {}

    def drafts(self, request: Numbered, known_tokens: int, emitted: int) -> int:
        """All that a model can draft; of n-grams only behind a token, and where they match."""
        if not self._looks_up:
            return self._most
        if not emitted:
            return 0
        number = self._looked_up.get(request.index, 0)
        self._looked_up[request.index] = number + 1
        matches = draws.counted(self._seed, request.index, FOUND - number) < self._match_rate
        return self._most if matches else 0

    def accepted(self, request: Numbered, drafts: int) -> int:
        """By the law; drafts that were cut off are not accepted."""
        number = self._verified.get(request.index, 0)
        self._verified[request.index] = number + 1
        return min(self._law(request.index, number), drafts)

    def stops(self, request: Numbered, emitted: int) -> bool:
        """Requests run to their length."""
        return False


class NothingRight(DrawnDrafts):
    """All drafts, none of them right: the slowest way to the end of a request, which meets every length on the way."""

    def __init__(self, speculation: Speculation):
        super().__init__(speculation, 0)

    def drafts(self, request: Numbered, known_tokens: int, emitted: int) -> int:
        """As many as there may be."""
        return self._most

    def accepted(self, request: Numbered, drafts: int) -> int:
        """None."""
        return 0

"""Where the engine around a scheduler enters it, in three places: what a request has, what a batch is, how far it gets.

Each is a small protocol with a plain default. A configuration that needs no more runs on the fast path; adapters
(speculation, cache tiers, transfers, graph padding) declare only what they change.
"""

from dataclasses import dataclass
from typing import Protocol

from sim.scheduler.base import Batch, Request


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding as the scheduler knows it: at most `tokens` drafts a row.

    `lookahead`: the drafter reads the target's hidden states and writes KV of its own (EAGLE, MTP): slots for the
    drafts are reserved, and the last cached block of a prefix is computed again. Otherwise (n-gram) neither.
    """

    tokens: int
    lookahead: bool = True


class VisibleState(Protocol):
    """What a waiting request is seen to have beyond the prefix cache of its own replica."""

    def external_tokens(self, request: Request, local_tokens: int) -> int:
        """Tokens after the first `local_tokens` whose KV can be had without computing it."""


class BatchShape(Protocol):
    """What the device runs for a batch."""

    def __call__(self, batch: Batch) -> tuple[int, int]:
        """Padded tokens and graph mode (`sim.deployment.graphs`: EAGER, PIECEWISE or FULL)."""


class Progress(Protocol):
    """How far a row gets: drafts proposed and accepted, and ends that the scheduler cannot foresee."""

    def drafts(self, request: Request, known_tokens: int, emitted: int) -> int:
        """Draft tokens proposed after a row that `emitted` tokens (0: unfinished prefill), `known_tokens` with them."""

    def accepted(self, request: Request, drafts: int) -> int:
        """How many of `drafts` are accepted when they are verified; asked once per emitting row with drafts."""

    def stops(self, request: Request, emitted: int) -> bool:
        """Whether output number `emitted` (from 1) ends the request before its length does."""


class NothingExternal:
    """Only the replica's own cache."""

    def external_tokens(self, request: Request, local_tokens: int) -> int:
        """None."""
        return 0


class KnownLengths:
    """One token per row, and every request runs to its length."""

    def drafts(self, request: Request, known_tokens: int, emitted: int) -> int:
        """None."""
        return 0

    def accepted(self, request: Request, drafts: int) -> int:
        """None."""
        return 0

    def stops(self, request: Request, emitted: int) -> bool:
        """Never before the length."""
        return False

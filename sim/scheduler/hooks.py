"""Where the engine around a scheduler enters it, in three places: what a request has, what a batch is, how far it gets.

Each is a small protocol with a plain default. A configuration that needs no more runs on the fast path; adapters
(speculation, cache tiers, transfers, graph padding) declare only what they change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch, Request
from sim.workload.trace import Workload


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding as the scheduler knows it: at most `tokens` drafts a row.

    `lookahead`: the drafter reads the target's hidden states and writes KV of its own (EAGLE, MTP): slots for the
    drafts are reserved, and the last cached block of a prefix is computed again. Otherwise (n-gram) neither.
    """

    tokens: int
    lookahead: bool = True


@dataclass(frozen=True)
class External:
    """KV of a waiting request that lies elsewhere: the `tokens` after those of its own replica's cache.

    `loads`: it comes beside the steps and is reported (`received`); otherwise it is there within the step.
    """

    tokens: int = 0
    loads: bool = False


NOTHING = External()


class Connector[R: Request](Protocol):
    """Who can bring KV that was computed elsewhere, and who may want to read what was computed here.

    It is told what the scheduler does; what became of the transfers is told to `Connected.report`.
    """

    fails: bool
    """Whether loads may fail."""

    recomputes: bool
    """Whether a request whose KV could not be loaded computes it; otherwise it ends with an error."""

    def look_up(self, request: R, local_tokens: int) -> External | None:
        """What can be had for a request that waits and has `local_tokens` here; None: not known yet, ask again."""

    def allocated(self, request: R, external: External, blocks: Sequence[int]) -> None:
        """The request has its blocks, among them so many of each group for tokens from elsewhere."""

    def keeps(self, request: R, finished: bool) -> bool:
        """The request has ended: are its blocks kept, for somebody who will read them? Only what `finished` can be."""

    def queued(self, request: R) -> None:
        """A new request waits."""

    def preempted(self, request: R) -> None:
        """The request is about to lose its blocks and what it has `computed`, and waits."""


class Sender[R: Request](Connector[R], Protocol):
    """The connector of an instance that sends what it computes as it goes."""

    def computed(self, request: R, tokens: int) -> None:
        """So many tokens of a prefill are computed: whoever reads them may have them."""


class TierConnector[R: Request](Connector[R], Protocol):
    """The connector of an instance with more tiers behind its cache; full blocks are named by the hash of content."""

    find: Callable[[int], int | None]
    """The block of its own cache with this hash; set by the scheduler."""

    def registered(self, request: R, first: int, stop: int) -> None:
        """Blocks [first, stop) of the request have their content, or will when the step is over."""

    def lost(self, key: int) -> None:
        """A block with this hash is taken for something else, and no other has its content."""


class Connected(Protocol):
    """A scheduler with a connector, as whoever moves the KV sees it.

    `polls`: its loop looks for news of transfers before each call, and does not run steps for their sake; otherwise
    they are heard with the output of a step.
    """

    polls: bool

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""

    @property
    def watches(self) -> bool:
        """Whether its loop goes on although nothing is unfinished, to hear that held blocks have been read."""

    def report(self, received: Sequence[Any], sent: Sequence[Any]) -> object:
        """At the end of a step: the KV of the `received` requests has arrived, the blocks of the `sent` were read."""


MakeConnected = Callable[[EngineSettings, CacheShape, Sender[Any]], Connected]
"""Makes the scheduler of a prefill or a decode instance."""


@dataclass(frozen=True)
class Roles:
    """How an engine divides prefill and decode between instances: a scheduler module's `ROLES`.

    `prefill`, `decode`: make the scheduler of such an instance; it is asked for requests of one token, or of all.
    `decode_first`: the decode instance takes blocks for a prompt when the request comes, and only then does its prefill
    begin, which sends what it computes as it goes; otherwise blocks are taken, and the KV asked for, when the prompt is
    computed. `keeps_token`: the token that the prefill samples is the client's first, and the decode instance gives it
    out (`Batch.opened`); otherwise that computes the last token of the prompt again and samples it there.
    `not_modelled`: sentences for the report.
    """

    prefill: MakeConnected
    decode: MakeConnected
    decode_first: bool = False
    keeps_token: bool = False
    not_modelled: tuple[str, ...] = ()


class Informed(Protocol):
    """A scheduler that looks at what its requests belong to (their session, what was said before)."""

    def know(self, workload: Workload) -> None:
        """The workload that its requests are numbered in; told once, before any comes."""


class BatchShape(Protocol):
    """What the device runs for a batch."""

    def __call__(self, batch: Batch) -> tuple[int, int]:
        """Padded tokens and graph mode (`sim.deployment.graphs`: EAGER, PIECEWISE or FULL)."""


class Progress(Protocol):
    """How far a row gets: drafts proposed and accepted, and ends that the scheduler cannot foresee.

    `foreseen`: there are no such ends, and nobody asks `stops`.
    """

    foreseen: bool

    def drafts(self, request: Request, known_tokens: int, emitted: int) -> int:
        """Draft tokens proposed after a row that `emitted` tokens (0: unfinished prefill), `known_tokens` with them."""

    def accepted(self, request: Request, drafts: int) -> int:
        """How many of `drafts` are accepted when they are verified; asked once per emitting row with drafts."""

    def stops(self, request: Request, emitted: int) -> bool:
        """Whether output number `emitted` (from 1) ends the request before its length does."""


class Alone:
    """A replica with nobody to give it KV or to read its own."""

    fails = False
    recomputes = False

    def look_up(self, request: Request, local_tokens: int) -> External:
        """Only the replica's own cache."""
        return NOTHING

    def allocated(self, request: Request, external: External, blocks: Sequence[int]) -> None:
        """Nothing to do."""

    def keeps(self, request: Request, finished: bool) -> bool:
        """Nobody reads them."""
        return False

    def queued(self, request: Request) -> None:
        """Nothing to prepare."""

    def preempted(self, request: Request) -> None:
        """Nobody wants them."""


class KnownLengths:
    """One token per row, and every request runs to its length."""

    foreseen = True

    def drafts(self, request: Request, known_tokens: int, emitted: int) -> int:
        """None."""
        return 0

    def accepted(self, request: Request, drafts: int) -> int:
        """None."""
        return 0

    def stops(self, request: Request, emitted: int) -> bool:
        """Never before the length."""
        return False

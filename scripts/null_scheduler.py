"""A scheduler that decides next to nothing, for `headway bench event-core`: what then takes time is the events.

Every prompt is computed in the step after it has come, and every request has one token in each step from then on. All
of a request's KV lies in one block. A step takes as long whatever is in it (`STEP_NS`).
"""

from collections.abc import Sequence
from typing import Any

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch, Request
from sim.scheduler.hooks import NOTHING, Connector, Roles


STEP_NS = 20_000_000


def price(batch: Batch) -> tuple[int, int, int]:
    """Duration in ns, padded tokens and graph mode of any batch."""
    return STEP_NS, batch.tokens, 0


class Null:
    """A replica that computes prompts, and decodes. Work per call: what has changed."""

    request_type = Request

    def __init__(self, cache: CacheShape):
        self.usable_blocks = self.free_blocks = cache.usable_blocks
        self.unfinished = 0
        self._decoding = 0
        self._call = 0
        self._come: list[Request] = []
        self._ends: dict[int, list[Request]] = {}
        self._open: list[list[Request]] = []

    def add(self, request: Request) -> None:
        """It is computed in the next step."""
        self.unfinished += 1
        self._come.append(request)

    def abort(self, request: Request) -> None:
        """Take it out: it has not come yet, decodes, or is in its last step."""
        self.unfinished -= 1
        if request in self._come:
            self._come.remove(request)
            return
        decoding = next((requests for requests in self._ends.values() if request in requests), None)
        self._decoding -= decoding is not None
        last = decoding if decoding is not None else next(ending for ending in self._open if request in ending)
        last.remove(request)
        self._free([request])

    def repeat(self, batch: Batch) -> bool:
        """Every step is an event."""
        return False

    def schedule(self) -> Batch:
        """Everyone has a token; those that have come have their first."""
        self._call += 1
        batch: Batch[Request] = Batch()
        batch.decodes = batch.decode_sum = batch.decode_max = batch.decode_sumsq = self._decoding
        self._admit(batch)
        batch.emitting = batch.decodes + len(batch.emitted) - batch.begun
        ending = self._ends.pop(self._call, [])
        self._decoding -= len(ending)
        batch.finishing = ending
        batch.running, batch.free_blocks = self.unfinished, self.free_blocks
        self._open.append(ending)
        return batch

    def complete(self, batch: Batch) -> Sequence[Request]:
        """The blocks of those that have ended are free."""
        ended = self._open.pop(0)
        self.unfinished -= len(ended)
        self._free(ended)
        return ended

    def _admit(self, batch: Batch) -> None:
        come, self._come = self._come, []
        self.free_blocks -= len(come)
        for request in come:
            batch.add_chunk(0, request.prompt)
            request.computed = request.prompt
        self._begin(come)
        batch.admitted = batch.emitted = come

    def _begin(self, requests: Sequence[Request]) -> None:
        """They have their first token from this call."""
        self._decoding += len(requests)
        for request in requests:
            self._ends.setdefault(self._call + request.outputs - 1, []).append(request)

    def _free(self, ended: Sequence[Request]) -> None:
        self.free_blocks += len(ended)


class Apart(Null):
    """One of two sides."""

    polls = True
    watches = False

    def __init__(self, cache: CacheShape, connector: Connector[Any]):
        super().__init__(cache)
        self._connector = connector


class Prefills(Apart):
    """Computes prompts for others, which read the block before it is free."""

    def _free(self, ended: Sequence[Request]) -> None:
        super()._free([request for request in ended if not self._connector.keeps(request, True)])

    def report(self, received: Sequence[Request], sent: Sequence[Request]) -> None:
        """The blocks of the `sent` were read."""
        self.free_blocks += len(sent)


class Decodes(Apart):
    """Asks for the KV of each request as it comes, and has its first token in the step after that is there."""

    def __init__(self, cache: CacheShape, connector: Connector[Any]):
        super().__init__(cache, connector)
        self._wanting: list[Request] = []

    def add(self, request: Request) -> None:
        """Its prompt was computed elsewhere."""
        self.unfinished += 1
        self._wanting.append(request)

    def report(self, received: Sequence[Request], sent: Sequence[Request]) -> None:
        """The KV of the `received` is there."""
        self._come.extend(received)

    def _admit(self, batch: Batch) -> None:
        wanting, self._wanting = self._wanting, []
        self.free_blocks -= len(wanting)
        for request in wanting:
            self._connector.allocated(request, self._connector.look_up(request, 0) or NOTHING, (0,))
        come, self._come = self._come, []
        self._begin(come)
        batch.admitted = batch.emitted = come
        batch.begun = len(come)
        for request in come:
            batch.add_decode(request.prompt)


def make(settings: EngineSettings, cache: CacheShape) -> Null:
    """One that does both."""
    return Null(cache)


def _prefills(settings: EngineSettings, cache: CacheShape, connector: Any) -> Prefills:
    return Prefills(cache, connector)


def _decodes(settings: EngineSettings, cache: CacheShape, connector: Any) -> Decodes:
    return Decodes(cache, connector)


ROLES = Roles(_prefills, _decodes)

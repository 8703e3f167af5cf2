"""SGLang's prefill instance: prefills only, and KV that stays in the tree until it has been sent.

What has been computed of a prompt can be sent when the result of its chunk is processed. A request whose token has come
out keeps its KV and its row until all of it is there; nobody ever decodes.

Source: SGLang's documentation of disaggregation, and its pull requests 6980, 20410 and 23515 (sgl-project/sglang).
"""

from collections.abc import Sequence
from typing import Any

from sim.scheduler.hooks import Sender
from sim.scheduler.sglang.request import SglangBatch, SglangRequest
from sim.scheduler.sglang.scheduler import SglangScheduler


class PrefillInstance(SglangScheduler):
    """One prefill instance's scheduler. `held`: computed, and still to be read by another instance."""

    polls = True

    def __init__(self, *given: Any, connector: Sender[SglangRequest], **named: Any):
        super().__init__(*given, **named)
        self.connector = connector
        self.held: dict[int, SglangRequest] = {}
        self._rows = self.max_running

    @property
    def watches(self) -> bool:
        """Whether the loop goes on although nothing is unfinished: it always does, here to free what was read."""
        return bool(self.held)

    def add(self, request: SglangRequest) -> None:
        """A prompt, and one token."""
        self.enter(request, 1, True)

    def schedule(self) -> SglangBatch:
        """One turn; what is still to be read holds rows."""
        self.max_running = self._rows - len(self.held)
        return super().schedule()

    def complete(self, batch: SglangBatch) -> Sequence[SglangRequest]:
        """Process a result: its chunks can be sent."""
        for row in batch.rows:
            if row.life == row.request.life:
                self.connector.computed(row.request, row.computed + row.tokens)
        return super().complete(batch)

    def report(self, received: Sequence[SglangRequest], sent: Sequence[SglangRequest]) -> None:
        """The KV of the `sent` requests is there: theirs is free here, and can be found and evicted."""
        for request in sent:
            del self.held[request.index]
            self.pool.finish(request, request.computed, min(request.computed, request.known))

    def _merge(self, last: SglangBatch) -> None:
        """Nobody starts to decode."""
        self.full = False

    def _end(self, request: SglangRequest, batch: SglangBatch) -> None:
        """Its token has come out: it stays in the tree, locked, for whoever reads it."""
        request.out = request.outputs
        self._unfinished -= 1
        if self.connector.keeps(request, True):
            self.pool.store(request, request.computed)
            self.held[request.index] = request
        else:
            self.pool.finish(request, request.computed, request.computed)

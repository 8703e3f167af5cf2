"""SGLang's decode instance: it takes KV slots for whole prompts ahead, and starts to decode once they are filled.

A request waits until there is a row and room for its prompt and some tokens more; of what is free, room for the next
tokens of everybody here is kept, and enough that each can run to its end if all others are retracted. It then waits for
its KV, and for a seat. In a turn in which requests take seats nothing is computed: they have their first token, which
came with the KV, and decode from the next turn on. Who is retracted gives its KV to the host's memory and comes back
the same way, before anybody new.

Source: SGLang's documentation of disaggregation, its pull requests 6980, 8866, 20410 and 25035 and issue 6860
(sgl-project/sglang), read; no recording confirms it.
"""

from collections.abc import Sequence
from typing import Any

from sim.scheduler.hooks import NOTHING, Connector
from sim.scheduler.sglang.ratio import CLIP_MAX_NEW
from sim.scheduler.sglang.request import SglangBatch, SglangRequest
from sim.scheduler.sglang.retraction import fits
from sim.scheduler.sglang.scheduler import SglangScheduler


MANY_ROWS = 32
"""Up to so many running requests have rows for as many again beside them, and again; above there are no others."""


class DecodeInstance(SglangScheduler):
    """One decode instance's scheduler. `waiting` have their KV and want a seat.

    `wanting` have nothing; `loading` have slots; the `retracted` have their KV on the host.
    """

    polls = True
    watches = False

    def __init__(self, *given: Any, connector: Connector[SglangRequest], **named: Any):
        super().__init__(*given, **named)
        self.connector = connector
        self.wanting: list[SglangRequest] = []
        self.loading: dict[int, SglangRequest] = {}
        self.retracted: list[SglangRequest] = []
        self._aborted: set[int] = set()
        self.rows = self.max_running * (3 if self.max_running <= MANY_ROWS else 1)

    def schedule(self) -> SglangBatch:
        """One turn."""
        batch = super().schedule()
        batch.waiting += len(self.wanting) + len(self.loading) + len(self.retracted)
        return batch

    def complete(self, batch: SglangBatch) -> Sequence[SglangRequest]:
        """Process a result; of those that took seats in a turn, some may have wanted no more than their first token."""
        if batch.mode != "seats":
            return super().complete(batch)
        for request in batch.finishing:
            self._end(request, batch)
        return batch.finishing

    def report(self, received: Sequence[SglangRequest], sent: Sequence[SglangRequest]) -> None:
        """The KV of the `received` requests is there."""
        for request in received:
            del self.loading[request.index]
            if request.index in self._aborted:
                self._aborted.discard(request.index)
                self.pool.drop(request, request.computed)
            else:
                self.waiting.append(request)

    def abort(self, request: SglangRequest) -> None:
        """Take an unfinished request out; slots that are still written to are kept until that is over."""
        for queue in (self.wanting, self.retracted):
            if request in queue:
                queue.remove(request)
                self._unfinished -= 1
                return
        if request.index in self.loading:
            self._aborted.add(request.index)
            self._unfinished -= 1
            return
        if request in self.waiting:
            self.pool.drop(request, request.computed)
        super().abort(request)

    def _enqueue(self, request: SglangRequest) -> None:
        super()._enqueue(request)
        (self.retracted if request.preemptions else self.wanting).append(self.waiting.pop())

    def _prefill(self, batch: SglangBatch) -> bool:
        """Give out slots and seats; True if anybody took a seat, so that nobody decodes in this turn."""
        while self.retracted and self._takes(self.retracted[0], self.retracted[0].known - 1):
            self.waiting.append(self.retracted.pop(0))
        while self.wanting and not self.retracted and self._takes(self.wanting[0], self.wanting[0].prompt):
            request = self.wanting.pop(0)
            self.loading[request.index] = request
            external = self.connector.look_up(request, 0) or NOTHING
            self.connector.allocated(request, external, (self.pool.ceil(request.prompt) // self.pool.page_size,))
        return self._seat(batch)

    def _takes(self, request: SglangRequest, tokens: int) -> bool:
        """Take slots for so many tokens of a request, if there is a row and room."""
        pool, running = self.pool, self.running
        held = [*self.loading.values(), *self.waiting]
        here, needed = len(running.rows) + len(held), pool.ceil(tokens)
        if here >= self.rows:
            return False
        if here:
            reserved = self.options.num_reserved_decode_tokens * (here + 1)
            ends = [self._whole(other) for other in running.rows.values()]
            ends += [self._whole(other) - pool.ceil(other.computed) for other in held]
            ends.append(self._whole(request) - needed)
            left = pool.available - needed
            if left < reserved or left + running.tokens < max(ends):
                return False
        pool.extend(0, tokens)
        request.computed = tokens
        return True

    def _whole(self, request: SglangRequest) -> int:
        """Tokens of a request at its end."""
        return self.pool.ceil(request.prompt + min(request.max_new, CLIP_MAX_NEW))

    def _seat(self, batch: SglangBatch) -> bool:
        """Requests whose KV is there start to decode, as far as there are seats."""
        seats = max(self.max_running - len(self.running.rows), 0)
        joining, self.waiting = self.waiting[:seats], self.waiting[seats:]
        self.full = bool(self.waiting)
        if not joining:
            return False
        batch.mode, batch.admitted, batch.opened_as = "seats", joining, self._calls
        self._calls += 1
        batch.opened = opened = [request for request in joining if not request.preemptions]
        for request in opened:
            request.out, request.last_batch = 1, batch.opened_as
        for request in joining:
            if request.outputs > 1:
                self.running.join(request, request.computed)
            else:
                batch.finishing.append(request)
        return True

    def _retract(self, batch: SglangBatch) -> None:
        super()._retract(batch)
        if not fits(self.pool, self.running.need):
            raise ValueError(
                f"a decode step of one request finds the KV pool of {self.pool.tokens:,} tokens exhausted by others "
                "that wait for seats or for their KV, at which SGLang stops with an error: raise "
                "engine.num_gpu_blocks_override, or engine.scheduler_options.num_reserved_decode_tokens"
            )

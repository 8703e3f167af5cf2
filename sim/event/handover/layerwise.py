"""The KV of each layer leaves while later layers, and later chunks, are still computed.

**When what is there.** Of a step of the prefill instance from `start` to `start + d` that computes c tokens of a
prompt, a model of L layers has layer i's KV of them at `start + d (i + 1) / L` (`i` from 0, rounded up to a
nanosecond); of a pipeline, from the start of its first stage to the end of its last. What was found in the prefix cache
there is there at the start of the request's first step. Each part is `c / prompt` of the prompt's blocks over L. The
parts of a request leave in this order, one after another, the first not before the end of the set-up, which begins with
the request's first step:

    end(k) = max(end(k - 1), there(k), first step + set-up) + bytes(k) / rate

where the rate is the max-min fair one of the links, as for every transfer. So the last layer's part of the last chunk
leaves when the last step ends, and what a client sees of the transfer is what is left then.

**Where it goes.** To memory of the decode instance beside its KV blocks: that takes its blocks as without overlap, when
the request comes there, and has the KV at once if all has come, otherwise with the last part. The whole prompt is sent,
also what the decode instance has in its own prefix cache; what is computed again after a preemption is not sent again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.handover.base import HandOverCosts
from sim.event.handover.passage import Passage
from sim.event.handover.pull import Pull
from sim.scheduler.base import Batch, Request


class Sending:
    """One prompt's KV on its way: `parts` computed or about to be, each with when it is there and its bytes.

    `left`: tokens of the prompt that no step has computed yet. `first_ns`: when the first part may leave. `awaited`:
    whether the decode instance has blocks for it.
    """

    def __init__(self, prompt: int, size: float, first_ns: int):
        self.left = prompt
        self.size, self.bytes_per_token = size, size / prompt
        self.first_ns = first_ns
        self.parts: deque[tuple[int, float]] = deque()
        self.moving = False
        self.awaited = False

    @property
    def over(self) -> bool:
        """Whether all of it has come."""
        return not (self.left or self.parts or self.moving)


class Layerwise(Pull):
    """Prefill and transfer side by side, then hand-over and blocks at the decode instance."""

    binds: ClassVar[bool] = True

    def __init__(self, agenda: Agenda, client: Client, topology: Topology, costs: HandOverCosts, **more: Any):
        super().__init__(agenda, client, topology, costs, **more)
        self._sending: dict[int, Sending] = {}

    def expects(self, request: Request) -> bool:
        """Whether a prefill instance's request is still on its way."""
        passage = self.passages.get(request.index)
        return passage is not None and passage.prefill is request

    def executed(self, request: Request, start_ns: int, end_ns: int) -> None:
        """A step of a prefill instance, from then to then, that has computed `request.computed` tokens by its end."""
        i = request.index
        passage, sending = self.passages[i], self._sending.get(i)
        if sending is None:
            sending = self._sending[i] = self._first(passage, request, start_ns)
        begin, upto = request.prompt - sending.left, min(request.computed, request.prompt)
        if upto <= begin:
            return  # computed again
        if not begin and request.cached:
            begin = min(request.cached, upto)
            sending.parts.append((start_ns, begin * sending.bytes_per_token))
        layers, duration_ns = self._costs.layers, end_ns - start_ns
        size = (upto - begin) * sending.bytes_per_token / layers
        for layer in range(1, layers + 1):
            sending.parts.append((start_ns - (-duration_ns * layer // layers), size))
        sending.left = request.prompt - upto
        self._next(passage, sending, self._agenda.now_ns)

    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """Blocks are there: of the set-up and of the transfer what is left."""
        i, now_ns = request.index, self._agenda.now_ns
        passage, sending = self.passages[i], self._sending.get(i)
        if sending is None:
            super().begin(target, request, blocks)  # it has failed
            return
        self._asked(target, request, blocks)
        sending.awaited = True
        self.times.set(i, bytes=round(sending.size), begun_ns=max(now_ns, sending.first_ns))
        if sending.over:
            self.later(passage, now_ns, lambda at: self._end(passage, at))

    def failed_at_source(self, passage: Passage, now_ns: int) -> None:
        """What has come of it is of no use."""
        self._sending.pop(passage.i, None)
        super().failed_at_source(passage, now_ns)

    def close(self, passage: Passage) -> None:
        """A passage is over."""
        super().close(passage)
        self._sending.pop(passage.i, None)

    def _first(self, passage: Passage, request: Request, start_ns: int) -> Sending:
        """The whole prompt's blocks, which are of one group."""
        blocks = -(-request.prompt // self._block_tokens[passage.target])
        size = blocks * self._block_bytes[passage.target][0]
        return Sending(request.prompt, size, start_ns + self._wait_ns(blocks))

    def _next(self, passage: Passage, sending: Sending, now_ns: int) -> None:
        """The next part leaves when it is there; those that are there by then go together."""
        if sending.moving or not sending.parts:
            return
        sending.moving = True
        at_ns = max(now_ns, sending.first_ns, sending.parts[0][0])

        def leave(then_ns: int) -> None:
            if self._sending.get(passage.i) is not sending:
                return  # its source has failed
            size = 0.0
            while sending.parts and sending.parts[0][0] <= then_ns:
                size += sending.parts.popleft()[1]
            self._move(passage, size, lambda at: self._arrive(passage, sending, at))

        if at_ns > now_ns:
            self.later(passage, at_ns, leave)
        else:
            leave(now_ns)

    def _arrive(self, passage: Passage, sending: Sending, now_ns: int) -> None:
        sending.moving = False
        self._next(passage, sending, now_ns)
        if sending.over and sending.awaited:
            self._end(passage, now_ns)

    def _end(self, passage: Passage, now_ns: int) -> None:
        """All of it is in the decode instance's blocks."""
        if self._sending.pop(passage.i, None) is not None:
            self._landed(passage, now_ns)


class Progress:
    """Which requests a prefill instance's steps compute: those that were admitted and are not computed yet."""

    def __init__(self, hand_over: Layerwise):
        self._hand_over = hand_over
        self._open: dict[int, Request] = {}

    def __call__(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        """A step was put on the device."""
        expects = self._hand_over.expects
        for request in batch.admitted:
            self._open[request.index] = request
        still = {i: request for i, request in self._open.items() if expects(request)}
        for request in still.values():
            self._hand_over.executed(request, start_ns, end_ns)
        self._open = {i: request for i, request in still.items() if request.computed < request.prompt}

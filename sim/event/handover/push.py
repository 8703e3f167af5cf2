"""The prefill instance sends the KV of a prompt, as it computes it, to blocks that the decode instance has ready."""

from collections.abc import Sequence
from typing import Any, ClassVar

from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.handover.base import HandOver, HandOverCosts
from sim.scheduler.base import Request
from sim.units import to_ns


class Sending:
    """One prompt's KV on its way: its pieces leave one after another."""

    def __init__(self, source: int, target: int, request: Request, blocks: int, bytes_per_block: float):
        self.source, self.target, self.request = source, target, request
        self.blocks, self.bytes_per_block = blocks, bytes_per_block
        self.sent_blocks = 0
        self.pieces: list[tuple[int, int, bool]] = []
        """Of each: when it was computed, its blocks, whether it is the last."""
        self.moving = False


class Push(HandOver):
    """Hand-over, blocks at the decode instance, prefill and transfer side by side; what is left after it shows."""

    decode_first: ClassVar[bool] = True

    def __init__(self, agenda: Agenda, client: Client, topology: Topology, costs: HandOverCosts, **more: Any):
        super().__init__(agenda, client, topology, costs, **more)
        self._sending: dict[int, Sending] = {}

    def arrived(self, i: int, source: int, outputs: int) -> Request | None:
        """The request goes to both sides; the prefill instance's waits until the other has blocks."""
        self._outputs[i] = outputs
        target, now_ns = self._pair(i, source), self._agenda.now_ns
        self._set(i, source=source, target=target)
        prompt = int(self.client.workload.prompt_tokens[i])
        here = self._replicas[source]
        here.outstanding += 1
        here.prompt_tokens += prompt
        self._agenda.at(now_ns + to_ns(self._costs.hand_over_s), lambda at: self._reach(i, at))
        return None

    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """Blocks are there: the prefill may begin."""
        now_ns, i = self._agenda.now_ns, request.index
        source, (size, _) = self._get(i, "source"), self._asked(target, request, blocks)
        self._sending[i] = Sending(source, target, request, sum(blocks), size / max(sum(blocks), 1))
        self._agenda.at(now_ns + to_ns(self._costs.latency_s), lambda at: self._prefill(source, i, at))

    def _prefill(self, source: int, i: int, now_ns: int) -> None:
        request = self._make(source, i, 1)
        here = self._replicas[source]
        here.outstanding -= 1  # counted when it arrived
        here.prompt_tokens -= request.prompt
        self._send(source, request, now_ns)

    def computed(self, source: int, request: Request, tokens: int) -> None:
        """What is new of it, its share of the blocks, may leave; with the prompt's last token all that is left."""
        sending = self._sending[request.index]
        last = tokens >= request.prompt
        upto = sending.blocks if last else tokens * sending.blocks // request.prompt
        blocks = upto - sending.sent_blocks
        if blocks <= 0 and not last:
            return
        sending.sent_blocks = upto
        sending.pieces.append((self._agenda.now_ns, blocks, last))
        self._next(sending)

    def _next(self, sending: Sending) -> None:
        """The next piece, behind the one before."""
        if sending.moving or not sending.pieces:
            return
        computed_ns, blocks, last = sending.pieces.pop(0)
        sending.moving = True
        first = self._get(sending.request.index, "begun_ns") < 0
        at_ns = max(self._agenda.now_ns, computed_ns + self._wait_ns(blocks, first))
        self._agenda.at(at_ns, lambda at: self._leave(sending, blocks, last, at))

    def _leave(self, sending: Sending, blocks: int, last: bool, now_ns: int) -> None:
        """A piece's first byte leaves."""
        i = sending.request.index
        if self._get(i, "begun_ns") < 0:
            self._set(i, begun_ns=now_ns)
        size = blocks * sending.bytes_per_block
        self._move(sending.source, sending.target, size, lambda at: self._arrive(sending, last, at))

    def _arrive(self, sending: Sending, last: bool, now_ns: int) -> None:
        sending.moving = False
        if last:
            del self._sending[sending.request.index]
            self._received(sending.source, sending.target, sending.request, now_ns)
        else:
            self._next(sending)

    def prefilled(self, source: int, request: Request, now_ns: int) -> None:
        """The last piece has been told of; its blocks stay until they are sent."""
        self.count += 1
        self._prefilled[request.index] = request
        self._set(request.index, prefilled_ns=now_ns)

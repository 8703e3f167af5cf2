"""The prefill instance sends the KV of a prompt, as it computes it, to blocks that the decode instance has ready."""

from collections.abc import Sequence
from typing import Any, ClassVar

from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.handover.base import HandOver, HandOverCosts
from sim.event.handover.passage import Passage
from sim.scheduler.base import Request
from sim.units import to_ns


class Sending:
    """One prompt's KV on its way: its pieces leave one after another."""

    def __init__(self, blocks: int, bytes_per_block: float):
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
        passage = self._open(i, source, outputs)
        self._pair(passage)
        self.times.set(i, source=source)
        here = self.replicas[source]
        here.outstanding += 1
        here.prompt_tokens += self._prompt(passage)
        at_ns = self._agenda.now_ns + self._hand_over_ns(passage)
        self.later(passage, at_ns, lambda at: self._reach(passage, at))
        return None

    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """Blocks are there: the prefill may begin."""
        now_ns, i = self._agenda.now_ns, request.index
        size, _ = self._asked(target, request, blocks)
        passage = self.passages[i]
        self._sending[i] = Sending(sum(blocks), size / max(sum(blocks), 1))
        self.later(passage, now_ns + to_ns(self._costs.latency_s), lambda at: self._prefill(passage, at))

    def failed_at_source(self, passage: Passage, now_ns: int) -> None:
        """No such engine knows what to do with a load that fails: whoever asks ends the passage instead."""
        raise AssertionError("a passage whose decode instance comes first ends with its prefill instance")

    def close(self, passage: Passage) -> None:
        """A passage is over; what the prefill instance expected it does not any more."""
        if passage.prefill is None and not passage.over:
            self._unexpect(passage)
        super().close(passage)
        self._sending.pop(passage.i, None)

    def moves(self, passage: Passage) -> bool:
        """Whether a piece is on its way, or about to leave."""
        sending = self._sending.get(passage.i)
        return sending is not None and sending.moving

    def _prompt(self, passage: Passage) -> int:
        return int(self.client.workload.prompt_tokens[passage.i])

    def _hand_over_ns(self, passage: Passage) -> int:
        return to_ns(self._costs.hand_over_s)

    def _unexpect(self, passage: Passage) -> None:
        here = self.replicas[passage.source]
        here.outstanding -= 1  # counted when it arrived
        here.prompt_tokens -= self._prompt(passage)

    def _prefill(self, passage: Passage, now_ns: int) -> None:
        self._unexpect(passage)
        passage.prefill = self._make(passage.source, passage.i, 1)
        self._send(passage.source, passage.prefill, now_ns)

    def computed(self, source: int, request: Request, tokens: int) -> None:
        """What is new of it, its share of the blocks, may leave; with the prompt's last token all that is left."""
        passage = self.passages.get(request.index)
        if passage is None or passage.prefill is not request or passage.given_up:
            return
        sending = self._sending[request.index]
        last = tokens >= request.prompt
        upto = sending.blocks if last else tokens * sending.blocks // request.prompt
        blocks = upto - sending.sent_blocks
        if blocks <= 0 and not last:
            return
        sending.sent_blocks = upto
        sending.pieces.append((self._agenda.now_ns, blocks, last))
        self._next(passage, sending)

    def _next(self, passage: Passage, sending: Sending) -> None:
        """The next piece, behind the one before."""
        if sending.moving or not sending.pieces:
            return
        computed_ns, blocks, last = sending.pieces.pop(0)
        sending.moving = True
        first = self.times.get(passage.i, "begun_ns") < 0
        at_ns = max(self._agenda.now_ns, computed_ns + self._wait_ns(blocks, first))
        self.later(passage, at_ns, lambda at: self._leave(passage, sending, blocks, last, at))

    def _leave(self, passage: Passage, sending: Sending, blocks: int, last: bool, now_ns: int) -> None:
        """A piece's first byte leaves."""
        if self.times.get(passage.i, "begun_ns") < 0:
            self.times.set(passage.i, begun_ns=now_ns)
        size = blocks * sending.bytes_per_block
        self._move(passage, size, lambda at: self._arrive(passage, sending, last, at))

    def _arrive(self, passage: Passage, sending: Sending, last: bool, now_ns: int) -> None:
        sending.moving = False
        if last or passage.given_up:
            if not last:
                self.stop(passage, now_ns)  # what would have followed does not
                self.times.set(passage.i, bytes=0)
            self._received(passage, now_ns)
        else:
            self._next(passage, sending)

    def prefilled(self, source: int, request: Request, now_ns: int) -> None:
        """The last piece has been told of; its blocks stay until they are sent."""
        self.count += 1
        self.times.set(request.index, prefilled_ns=now_ns)

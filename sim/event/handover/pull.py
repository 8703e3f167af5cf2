"""The decode instance asks for the KV of a prompt that was computed elsewhere."""

from collections.abc import Sequence
from typing import ClassVar

from sim.event.handover.base import HandOver
from sim.event.handover.passage import Passage
from sim.scheduler.base import Request
from sim.units import to_ns


class Pull(HandOver):
    """Prefill, hand-over, blocks at the decode instance, transfer."""

    decode_first: ClassVar[bool] = False

    def arrived(self, i: int, source: int, outputs: int) -> Request | None:
        """The prefill may begin at once; the decode instance is chosen now or when it has ended."""
        passage = self._open(i, source, outputs)
        if self._at_arrival:
            self._pair(passage)
        passage.prefill = self._make(source, i, 1)
        return passage.prefill

    def prefilled(self, source: int, request: Request, now_ns: int) -> None:
        """The answer is on its way to the decode side."""
        i = request.index
        passage = self.passages[i]
        self.count += 1
        paired = passage.target >= 0 or self._pair(passage)
        self.times.set(i, source=source, prefilled_ns=now_ns)
        if self.failures is not None and self.failures.expires:
            self.later(passage, now_ns + to_ns(self.failures.lease_s), lambda at: self._expire(passage, at))
        if paired:
            self.later(passage, now_ns + self._hand_over_ns(passage), lambda at: self._reach(passage, at))
        else:
            self._strand(passage, now_ns)

    def computed(self, source: int, request: Request, tokens: int) -> None:
        """Nothing yet: the decode side asks when all of a prompt is there."""

    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """Blocks are there: the KV is asked for."""
        passage, now_ns = self.passages[request.index], self._agenda.now_ns
        size, whole = self._asked(target, request, blocks)
        if self._gone(passage):
            self.times.set(request.index, begun_ns=now_ns, bytes=0)
            self.later(passage, now_ns, lambda at: self._fail(passage, at))
            return
        self.later(passage, now_ns + self._wait_ns(whole), lambda at: self._leave(passage, size, at))

    def failed_at_source(self, passage: Passage, now_ns: int) -> None:
        """The pull fails, now if it is asked for, otherwise when it will be."""
        self.times.set(passage.i, failed=1)
        self.stop(passage, now_ns)
        if self.asked(passage):
            begun_ns = self.times.get(passage.i, "begun_ns")
            self.times.set(passage.i, begun_ns=now_ns if begun_ns < 0 else begun_ns, bytes=0)
            self._fail(passage, now_ns)

    def _hand_over_ns(self, passage: Passage) -> int:
        return to_ns(self._costs.hand_over_s) + self._pickup_ns[passage.target]

    def _gone(self, passage: Passage) -> bool:
        """Whether there is nothing to be had for it."""
        return self.times.get(passage.i, "failed") > 0

    def _leave(self, passage: Passage, size: float, now_ns: int) -> None:
        """The first byte leaves, if that has not failed before."""
        if self._gone(passage):
            return
        self.times.set(passage.i, begun_ns=now_ns)
        self._move(passage, size, lambda at: self._landed(passage, at))

    def _landed(self, passage: Passage, now_ns: int) -> None:
        """The last byte is there, or would be had the load not failed."""
        failures, i = self.failures, passage.i
        if failures is None or not failures.fails(i):
            self._received(passage, now_ns)
            return
        # nobody tells the prefill instance, whatever becomes of the request
        self.read_at(passage, now_ns + to_ns(failures.lease_s))
        self._fail(passage, now_ns)

    def _fail(self, passage: Passage, now_ns: int) -> None:
        """The decode instance learns that nothing of it can be used."""
        self.times.set(passage.i, received_ns=now_ns, failed=1)
        self.came(passage, now_ns, failed=not passage.given_up)
        if passage.given_up:
            self.close(passage)

    def _expire(self, passage: Passage, now_ns: int) -> None:
        """The lease is over: if nobody has begun to read the blocks, they are free, and a later pull fails."""
        if self.times.get(passage.i, "allocated_ns") < 0:
            self.times.set(passage.i, failed=1)
            self.read(passage, now_ns)

"""The decode instance asks for the KV of a prompt that was computed elsewhere."""

from collections.abc import Sequence
from typing import ClassVar

from sim.event.handover.base import HandOver
from sim.scheduler.base import Request
from sim.units import to_ns


class Pull(HandOver):
    """Prefill, hand-over, blocks at the decode instance, transfer."""

    decode_first: ClassVar[bool] = False

    def arrived(self, i: int, source: int, outputs: int) -> Request | None:
        """The prefill may begin at once; the decode instance is chosen now or when it has ended."""
        self._outputs[i] = outputs
        if self._at_arrival:
            self._pair(i, source)
        return self._make(source, i, 1)

    def prefilled(self, source: int, request: Request, now_ns: int) -> None:
        """The answer is on its way to the decode side."""
        i = request.index
        self.count += 1
        self._prefilled[i] = request
        target = self._paired[i] if i in self._paired else self._pair(i, source)
        self._set(i, source=source, target=target, prefilled_ns=now_ns)
        if self.failures is not None and self.failures.expires:
            self._agenda.at(now_ns + to_ns(self.failures.lease_s), lambda at: self._expire(source, request, at))
        at_ns = now_ns + to_ns(self._costs.hand_over_s) + self._pickup_ns[target]
        self._agenda.at(at_ns, lambda at: self._reach(i, at))

    def computed(self, source: int, request: Request, tokens: int) -> None:
        """Nothing yet: the decode side asks when all of a prompt is there."""

    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """Blocks are there: the KV is asked for."""
        size, whole = self._asked(target, request, blocks)
        if self._get(request.index, "failed") > 0:
            self._set(request.index, begun_ns=self._agenda.now_ns, bytes=0)
            self._agenda.at(self._agenda.now_ns, lambda at: self._fail(target, request, at))
            return
        at_ns = self._agenda.now_ns + self._wait_ns(whole)
        self._agenda.at(at_ns, lambda at: self._leave(target, request, size, at))

    def _leave(self, target: int, request: Request, size: float, now_ns: int) -> None:
        """The first byte leaves."""
        self._set(request.index, begun_ns=now_ns)
        source = self._get(request.index, "source")
        self._move(source, target, size, lambda at: self._landed(source, target, request, at))

    def _landed(self, source: int, target: int, request: Request, now_ns: int) -> None:
        """The last byte is there, or would be had the load not failed."""
        failures, i = self.failures, request.index
        if failures is None or not failures.fails(i):
            self._received(source, target, request, now_ns)
            return
        prefill = self._prefilled[i]
        self._agenda.at(now_ns + to_ns(failures.lease_s), lambda at: self._read(source, prefill, at))
        self._fail(target, request, now_ns)

    def _fail(self, target: int, request: Request, now_ns: int) -> None:
        """The decode instance learns that nothing of it can be used."""
        self._set(request.index, received_ns=now_ns, failed=1)
        self._came(target, request, now_ns, failed=True)

    def _expire(self, source: int, request: Request, now_ns: int) -> None:
        """The lease is over: if nobody has begun to read the blocks, they are free, and a later pull fails."""
        if self._get(request.index, "allocated_ns") < 0:
            self._set(request.index, failed=1)
            self._read(source, request, now_ns)

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
        at_ns = now_ns + to_ns(self._costs.hand_over_s) + self._pickup_ns[target]
        self._agenda.at(at_ns, lambda at: self._reach(i, at))

    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """Blocks are there: the KV is asked for."""
        size, whole = self._asked(target, request, blocks)
        at_ns = self._agenda.now_ns + self._wait_ns(whole)
        self._agenda.at(at_ns, lambda at: self._leave(target, request, size, at))

    def _leave(self, target: int, request: Request, size: float, now_ns: int) -> None:
        """The first byte leaves."""
        self._set(request.index, begun_ns=now_ns)
        source = self._get(request.index, "source")
        self._move(source, target, size, lambda at: self._received(source, target, request, at))

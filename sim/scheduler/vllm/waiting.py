"""The waiting queues: first come first served, by priority, and either with a queue of its own for those set aside."""

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sim.scheduler.vllm.request import RowRequest


class WaitingQueue(Protocol):
    """Requests without a seat, in the order in which they are looked at."""

    def __len__(self) -> int:
        """How many wait."""

    def add(self, request: RowRequest) -> None:
        """A new request."""

    def put_back(self, request: RowRequest) -> None:
        """A preempted request."""

    def head(self) -> RowRequest:
        """The next one; it stays."""

    def pop(self) -> RowRequest:
        """The next one; it leaves."""

    def remove(self, request: RowRequest) -> None:
        """Take one out, wherever it is."""

    def restore(self, passed_over: Sequence[RowRequest], reverse: bool) -> None:
        """Put back what a call popped and passed over, in order of popping; `reverse`: the last one first."""


class ArrivalOrder:
    """First come first served; the preempted go to the front."""

    def __init__(self) -> None:
        self._queue: deque[RowRequest] = deque()
        self.add = self._queue.append
        self.put_back = self._queue.appendleft
        self.pop = self._queue.popleft
        self.remove = self._queue.remove

    def __len__(self) -> int:
        return len(self._queue)

    def head(self) -> RowRequest:
        """The request that came first."""
        return self._queue[0]

    def restore(self, passed_over: Sequence[RowRequest], reverse: bool) -> None:
        """Back to the front."""
        self._queue.extendleft(passed_over if reverse else reversed(passed_over))


class RankOrder:
    """Smallest `rank` first, wherever a request comes from; it must not change while a request waits."""

    def __init__(self, rank: Callable[[RowRequest], tuple[float, ...]]):
        self._queue: list[RowRequest] = []  # the first one last
        self._key = lambda request: tuple(-part for part in rank(request))
        self.pop = self._queue.pop
        self.remove = self._queue.remove

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: RowRequest) -> None:
        """To its place."""
        insort(self._queue, request, key=self._key)

    put_back = add

    def head(self) -> RowRequest:
        """The request of smallest rank."""
        return self._queue[-1]

    def first(self, count: int) -> list[RowRequest]:
        """The first `count` of them, in order."""
        return self._queue[: -1 - count : -1] if count > 0 else []

    def last(self) -> RowRequest | None:
        """The one of greatest rank, if there is any."""
        return self._queue[0] if self._queue else None

    def restore(self, passed_over: Sequence[RowRequest], reverse: bool) -> None:
        """Each to its place."""
        for request in passed_over:
            self.add(request)


class PriorityOrder(RankOrder):
    """Smallest priority first, then by arrival."""

    def __init__(self) -> None:
        super().__init__(urgency)


class SetAside:
    """Two queues: what a call passed over waits in one of its own, which goes first.

    `loads_only`: only loads do (vLLM 0.33); otherwise, by priority, the more urgent of both heads goes first (0.19).
    """

    def __init__(self, make: type[ArrivalOrder] | type[PriorityOrder], loads_only: bool):
        self._aside: WaitingQueue = make()
        self._others: WaitingQueue = make()
        self._loads_only = loads_only
        self._by_urgency = make is PriorityOrder and not loads_only
        self.add = self._others.add
        self.put_back = self._others.put_back

    def __len__(self) -> int:
        return len(self._aside) + len(self._others)

    def head(self) -> RowRequest:
        """The first one of the queue that goes first."""
        return self._first().head()

    def pop(self) -> RowRequest:
        """The same; it leaves."""
        return self._first().pop()

    def remove(self, request: RowRequest) -> None:
        """From the queue it is in."""
        try:
            self._aside.remove(request)
        except ValueError:
            self._others.remove(request)

    def restore(self, passed_over: Sequence[RowRequest], reverse: bool) -> None:
        """Aside, or only the loads of them."""
        aside = [request for request in passed_over if request.loads or not self._loads_only]
        others = [request for request in passed_over if not request.loads and self._loads_only]
        self._aside.restore(aside, reverse)
        self._others.restore(others, reverse)

    def _first(self) -> WaitingQueue:
        if not self._aside:
            return self._others
        if self._by_urgency and self._others and urgency(self._others.head()) < urgency(self._aside.head()):
            return self._others
        return self._aside


def urgency(request: RowRequest) -> tuple[int, int]:
    """Greater is less urgent: the greatest of running is the victim."""
    return request.priority, request.arrival

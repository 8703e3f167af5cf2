"""The two waiting queues: first come first served, and by priority."""

from bisect import insort
from collections import deque
from collections.abc import Sequence
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


class PriorityOrder:
    """Smallest priority first, then by arrival, wherever a request comes from."""

    def __init__(self) -> None:
        self._queue: list[RowRequest] = []  # the first one last
        self.pop = self._queue.pop
        self.remove = self._queue.remove

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: RowRequest) -> None:
        """To its place."""
        insort(self._queue, request, key=_last_first)

    put_back = add

    def head(self) -> RowRequest:
        """The most urgent request."""
        return self._queue[-1]

    def restore(self, passed_over: Sequence[RowRequest], reverse: bool) -> None:
        """Each to its place."""
        for request in passed_over:
            self.add(request)


def urgency(request: RowRequest) -> tuple[int, int]:
    """Greater is less urgent: the greatest of running is the victim."""
    return request.priority, request.arrival


def _last_first(request: RowRequest) -> tuple[int, int]:
    return -request.priority, -request.arrival

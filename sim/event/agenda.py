"""What is to happen when: one heap of events over a whole fleet, in integer nanoseconds.

An event is `(time, index, counter, action)`. With an `action` it is something that happens between replicas (a transfer
ends, a request arrives at its decode instance), with index `BETWEEN`; without one the loop of replica `index` acts. At
equal times what lies between replicas comes first, so that what ends at t is seen by the step that is decided at t.
"""

from collections.abc import Callable
from heapq import heappop, heappush


NEVER = 1 << 63
"""Later than any time on the clock, which is below 2**63 ns."""

BETWEEN = -1

Action = Callable[[int], None]


class Agenda:
    """The heap. `now_ns` is the time of the event under way; `events` counts them."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self._heap: list[tuple[int, int, int, Action | None]] = []
        self._counter = 0

    @property
    def next_ns(self) -> int:
        """The time of the next event, `NEVER` if there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def at(self, time_ns: int, action: Action) -> None:
        """`action(time_ns)` then."""
        self._counter += 1
        heappush(self._heap, (time_ns, BETWEEN, self._counter, action))

    def wake(self, index: int, time_ns: int) -> None:
        """The loop of replica `index` acts then."""
        self._counter += 1
        heappush(self._heap, (time_ns, index, self._counter, None))

    def pop(self) -> tuple[int, Action | None]:
        """The next event: whose loop acts, or what is done; time moves on to it."""
        self.now_ns, index, _, action = heappop(self._heap)
        self.events += 1
        return index, action

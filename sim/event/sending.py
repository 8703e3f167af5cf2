"""Who is sent next, and when: requests in turn, or the rounds of sessions one after the other; after a retrieval."""

from collections.abc import Sequence
from heapq import heappop, heappush

from sim.event.agenda import NEVER
from sim.workload.sessions.columns import Sessions


class InTurn:
    """Request i is sent at its planned arrival, in a closed loop of K at `max(arrival, (i - K + 1)-th end of any)`.

    `next_ns` is when the next is to be sent, `NEVER` while all are or as many as may be are outstanding.
    """

    def __init__(self, planned_ns: Sequence[int], limit: int | None = None):
        self._planned_ns = planned_ns
        self._limit = limit or len(planned_ns)
        self._ends_ns: list[int] = []
        self._next = 0
        self.next_ns = NEVER
        self._find_next()

    def _find_next(self) -> None:
        i = self._next
        waited_for = i - self._limit
        if i == len(self._planned_ns) or waited_for >= len(self._ends_ns):
            self.next_ns = NEVER
        elif waited_for < 0:
            self.next_ns = self._planned_ns[i]
        else:
            self.next_ns = max(self._planned_ns[i], self._ends_ns[waited_for])

    def take(self) -> int:
        """The next is sent: which it is."""
        self._next += 1
        self._find_next()
        return self._next - 1

    def ended(self, i: int, now_ns: int, finished: bool) -> Sequence[int]:
        """Request i has ended. Returns those that will never be sent: none."""
        self._ends_ns.append(now_ns)
        if self.next_ns == NEVER:
            self._find_next()
        return ()


class RoundByRound:
    """Sessions begin in turn, at most `limit` under way; a further round is sent its latency after the end of the last.

    Where one does not finish the session is over: its further rounds are never sent. At equal times a round goes before
    a session that begins, and before another round of a later session.
    """

    def __init__(self, sessions: Sessions, planned_ns: Sequence[int], limit: int | None = None):
        first = sessions.first.tolist()
        self._begun = InTurn([planned_ns[i] for i in first[:-1]], limit)
        self._first = first
        self._latency_ns = sessions.latency_ns
        self._ends_session = bytearray(len(planned_ns))
        for last in sessions.last.tolist():
            self._ends_session[last] = 1
        self._ready: list[tuple[int, int]] = []
        self.next_ns = self._begun.next_ns

    def _find_next(self) -> None:
        self.next_ns = min(self._begun.next_ns, self._ready[0][0] if self._ready else NEVER)

    def take(self) -> int:
        """The next is sent: which it is."""
        if self._ready and self._ready[0][0] <= self._begun.next_ns:
            i = heappop(self._ready)[1]
        else:
            i = self._first[self._begun.take()]
        self._find_next()
        return i

    def ended(self, i: int, now_ns: int, finished: bool) -> Sequence[int]:
        """Round i has ended. Returns those of its session that will never be sent."""
        if finished and not self._ends_session[i]:
            heappush(self._ready, (now_ns + int(self._latency_ns[i + 1]), i + 1))
            self.next_ns = min(self.next_ns, self._ready[0][0])
            return ()
        last = self._ends_session.index(1, i)
        self._begun.ended(i, now_ns, finished)
        self._find_next()
        return range(i + 1, last + 1)


class AfterRetrieval:
    """Prompts go to the engine their retrieval latency after their request was sent, the first ready first.

    `turns` says when requests are sent; nobody's sending depends on when another's prompt is ready, so that all sent up
    to the next one that is ready are taken up.
    """

    def __init__(self, turns: InTurn | RoundByRound, latency_ns: Sequence[int]):
        self._turns = turns
        self._latency_ns = latency_ns
        self._ready: list[tuple[int, int]] = []
        self.next_ns = NEVER
        self._find_next()

    def _find_next(self) -> None:
        ready, turns = self._ready, self._turns
        while turns.next_ns != NEVER and (not ready or turns.next_ns <= ready[0][0]):
            sent_ns = turns.next_ns
            i = turns.take()
            heappush(ready, (sent_ns + self._latency_ns[i], i))
        self.next_ns = ready[0][0] if ready else NEVER

    def take(self) -> int:
        """The next prompt goes to the engine: whose it is."""
        i = heappop(self._ready)[1]
        self._find_next()
        return i

    def ended(self, i: int, now_ns: int, finished: bool) -> Sequence[int]:
        """Request i has ended. Returns those that will never be sent."""
        never = self._turns.ended(i, now_ns, finished)
        self._find_next()
        return never

"""The client's side: when requests are sent, and what becomes of each of them."""

from collections.abc import Iterable, Sequence
from heapq import heapreplace

import numpy as np

from sim.event.agenda import NEVER as NEVER
from sim.event.holds import Holds
from sim.event.sending import AfterRetrieval, InTurn, RoundByRound
from sim.report.moment import Moment
from sim.report.result import ABORTED, FAILED, FINISHED, LOST, OPEN, REJECTED, UNSENT, RequestTable
from sim.scheduler.base import Batch, Request
from sim.workload.trace import Workload


class Client:
    """Sends a workload in turn, or session by session (`sim.event.sending`), and keeps each request's times.

    `doors` API servers take requests one at a time, each for `door_ns`; then `pickup_ns` pass to the engine's input
    queue. `next_ns` is when the next request gets there, `NEVER` while none is to be sent. `ends`: how often a request
    ended, refused ones and those that will never be sent included. `cut_tokens`: at most so many were emitted of
    requests that did not end, or began again. `moments`: when clients gave requests up. `holds`: who is told
    of rounds, if their blocks are held.
    """

    def __init__(self, workload: Workload, pickup_ns: int = 0, door_ns: int = 0, doors: int = 1):
        count = len(workload)
        self.workload = workload
        self.pickup_ns, self.door_ns = pickup_ns, door_ns
        self.ends = 0
        self._door_free_ns = [0] * doors
        planned, limit = workload.arrival_ns.tolist(), workload.concurrency
        sessions = workload.sessions
        turns = InTurn(planned, limit) if sessions is None else RoundByRound(sessions, planned, limit)
        self._retrieval_ns = None if workload.retrieval is None else workload.retrieval.latency_ns.tolist()
        self._turns = turns if self._retrieval_ns is None else AfterRetrieval(turns, self._retrieval_ns)
        self._pools = workload.pools
        self._arrival_ns = [-1] * count
        self._queued_ns = [-1] * count
        self._scheduled_ns = [-1] * count
        self._first_token_ns = [-1] * count
        self._finish_ns = [-1] * count
        self._preemptions = [0] * count
        self._cached = [0] * count
        self._replica = [-1] * count
        self._outputs = [0] * count
        self._status = [OPEN] * count
        self._last_token_ns: dict[int, int] = {}
        self.itl: dict[int, int] = {}
        self.cut_tokens = 0
        self.moments: list[Moment] = []
        self.holds: Holds | None = None
        self._find_next()

    def _find_next(self) -> None:
        self._send_ns = self.next_ns = self._turns.next_ns
        if self._send_ns != NEVER:
            self.next_ns = max(self._send_ns, self._door_free_ns[0]) + self.door_ns + self.pickup_ns

    def send(self) -> int:
        """Send the next request, and say which it is; who gets it, or that nobody does, is told afterwards."""
        i = self._turns.take()
        heapreplace(self._door_free_ns, self.next_ns - self.pickup_ns)
        self._arrival_ns[i] = self._send_ns - (0 if self._retrieval_ns is None else self._retrieval_ns[i])
        self._outputs[i] = int(self.workload.output_tokens[i])
        self._find_next()
        return i

    def arrival_ns(self, i: int) -> int:
        """When request i was sent."""
        return self._arrival_ns[i]

    def awaits(self, i: int) -> bool:
        """Whether request i has not ended, and the client still waits for it."""
        return self._status[i] == OPEN

    def replica_of(self, i: int) -> int:
        """Where request i went last, -1 before."""
        return self._replica[i]

    def placed(self, i: int, replica: int, outputs: int) -> None:
        """Request i went to a replica, for `outputs` tokens."""
        self._replica[i] = replica
        self._outputs[i] = 0 if self._pools else outputs

    def rejected(self, i: int, now_ns: int, status: int = REJECTED) -> None:
        """The engine, or a router (`SHED`), refuses request i."""
        self._end(i, status, now_ns)

    def aborted(self, i: int, now_ns: int) -> None:
        """The client gives request i up."""
        self.cut_tokens += self._outputs[i] or 1
        self.moments.append(Moment(now_ns, "client gives up", self._replica[i], i))
        self._end(i, ABORTED, now_ns)

    def lost(self, i: int, now_ns: int) -> None:
        """Its replica failed, and it was not sent again."""
        self.cut_tokens += self._outputs[i] or 1
        self._end(i, LOST, now_ns)

    def failed(self, i: int, now_ns: int) -> None:
        """Its KV could not be loaded where it is to be decoded."""
        self._end(i, FAILED, now_ns)

    def restarted(self, i: int) -> None:
        """Its replica failed; it begins again somewhere else."""
        self.cut_tokens += self._outputs[i] or 1
        self._queued_ns[i] = self._scheduled_ns[i] = self._first_token_ns[i] = -1
        self._last_token_ns.pop(i, None)

    def _end(self, i: int, status: int, now_ns: int) -> None:
        if not self.awaits(i):
            return  # the client has gone
        self._status[i] = status
        self._ended(i, now_ns)

    def _ended(self, i: int, now_ns: int) -> None:
        """Request i has ended: others may follow, or never will."""
        self.ends += 1
        if self.holds is not None:
            self.holds.over(i)
        for later in self._turns.ended(i, now_ns, self._status[i] == FINISHED):
            self._status[later] = UNSENT
            self.ends += 1
        if self._turns.next_ns != self._send_ns:
            self._find_next()

    @property
    def done(self) -> bool:
        """Whether every request has ended."""
        return self.ends == len(self._status)

    def queued(self, request: Request, now_ns: int) -> None:
        """The engine loop took the request up."""
        self._queued_ns[request.index] = now_ns

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """A batch was decided."""
        for request in batch.admitted:
            if self._scheduled_ns[request.index] < 0:
                self._scheduled_ns[request.index] = now_ns
                if self.holds is not None:
                    self.holds.over(request.index)

    def opened(self, requests: Iterable[Request], now_ns: int) -> None:
        """Requests get the first token that came with their KV."""
        for request in requests:
            if self._first_token_ns[request.index] < 0:
                self._first_token_ns[request.index] = now_ns

    def interrupted(self, requests: Iterable[Request], last_token_ns: int) -> None:
        """Decoding requests were preempted; their last token before came then."""
        for request in requests:
            self._last_token_ns[request.index] = last_token_ns

    def continued(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Tokens arrived that follow others: (time since the one before, how many such tokens) each."""
        itl = self.itl
        for gap_ns, count in gaps:
            itl[gap_ns] = itl.get(gap_ns, 0) + count

    def delivered(self, batch: Batch, ended: Sequence[Request], now_ns: int) -> None:
        """A batch's tokens arrived; `ended` got their last one.

        Of a batch that does not say itself which of its tokens follow others, `emitted` has those that
        follow the last token before a preemption.
        """
        for request in batch.emitted:
            i = request.index
            if self._first_token_ns[i] < 0:
                self._first_token_ns[i] = now_ns
            elif batch.follows is None:
                self.continued([(now_ns - self._last_token_ns[i], 1)])
        for request in ended:
            i = request.index
            if self._status[i] not in (OPEN, FINISHED):
                continue  # its client has gone; one that ends twice is counted twice, and the checks find it
            self._finish_ns[i] = now_ns
            self._status[i] = FINISHED
            self._preemptions[i] = request.preemptions
            self._cached[i] = request.cached
            self._ended(i, now_ns)
            if self.holds is not None:
                self.holds.ended(request, self._replica[i], now_ns)

    def table(self) -> RequestTable:
        """What happened to each request, in the workload's order."""

        def column(values: list[int]) -> np.ndarray:
            return np.array(values, dtype=np.int64)

        return RequestTable(
            arrival_ns=column(self._arrival_ns),
            queued_ns=column(self._queued_ns),
            scheduled_ns=column(self._scheduled_ns),
            first_token_ns=column(self._first_token_ns),
            finish_ns=column(self._finish_ns),
            prompt_tokens=self.workload.prompt_tokens.astype(np.int64),
            output_tokens=column(self._outputs),
            cached_tokens=column(self._cached),
            preemptions=column(self._preemptions),
            replica=column(self._replica),
            status=column(self._status),
            retrieval_ns=None if self._retrieval_ns is None else column(self._retrieval_ns),
        )

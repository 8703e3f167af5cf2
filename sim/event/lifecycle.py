"""Replicas that start, drain and fail while requests run.

- `start`: a replica is in service `load_s` later, with an empty cache. One whose first change is a start begins out of
  service.
- `drain`: it gets no more requests, and ends those it has; a prefill instance waits until its blocks have been read, a
  decode instance takes what had been promised to it.
- `fail`: it is gone at once, with all it has in memory. Its requests are sent to another (`retry`: from their
  beginning; what the client has seen of them counts no more) or lost. The step it was in the middle of stays in the log
  to its end, and gives nothing.

With a mean time between failures, each replica also fails at drawn times (exponential, by seed, replica and number),
and is repaired after `repair_s`. Requests that come while nobody is in service wait for the next one that is; of
prefill and decode instances one of each must be.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.handover import HandOver, Interruptions, Lease
from sim.event.replica import Replica
from sim.report.moment import Moment
from sim.units import to_ns


START, DRAIN, FAIL = "start", "drain", "fail"


@dataclass(frozen=True)
class Change:
    """What happens to a replica, counted over all pools, and when."""

    at_ns: int
    replica: int
    action: str


@dataclass(frozen=True)
class Elastic:
    """All changes known in advance, in order, and the rest of the rules."""

    changes: tuple[Change, ...] = ()
    retry: bool = True
    load_s: float = 60.0
    mtbf_s: float = 0.0
    repair_s: float = 0.0
    seed: int = 0


class Lifecycle:
    """Who is in service, and what becomes of the requests of those that are not any more.

    `ranks`: of each replica. `place(i, now_ns)` sends a request (again). `waiting`: requests that nobody could take,
    and since when (ns); `unserved_ns`: how long each has waited so, in all. `version` counts the changes of
    `up`; `retries` how often each request was sent again.
    `moments`: what happened to replicas. `between`: requests on their way between instances, if there are such.
    """

    def __init__(
        self,
        elastic: Elastic,
        agenda: Agenda,
        client: Client,
        ranks: Sequence[Sequence[Replica]],
        place: Callable[[int, int], None],
        hand_over: HandOver | None = None,
        leases: Sequence[Lease] = (),
    ):
        self.up = [True] * len(ranks)
        self.version = 0
        self.waiting: dict[int, int] = {}
        self.unserved_ns: Counter[int] = Counter()
        self.retries: dict[int, int] = {}
        self.moments: list[Moment] = []
        self._elastic = elastic
        self._agenda = agenda
        self._client = client
        self._ranks = ranks
        self._place = place
        self._hand_over = hand_over
        self.between = None if hand_over is None else Interruptions(hand_over, leases, self._again)
        self._failures = [0] * len(ranks)
        self._loads = [0] * len(ranks)
        first: dict[int, str] = {}
        for change in elastic.changes:
            first.setdefault(change.replica, change.action)
            agenda.at(change.at_ns, self._changed(change))
        for replica, action in first.items():
            self.up[replica] = action != START
        for replica, up in enumerate(self.up):
            if up:
                self._expect_failure(replica, 0)

    def park(self, i: int, now_ns: int) -> None:
        """Nobody is in service who could take request i."""
        self.waiting[i] = now_ns

    def leave(self, i: int, now_ns: int) -> bool:
        """Request i waits no longer, if it did."""
        since_ns = self.waiting.pop(i, None)
        if since_ns is None:
            return False
        if now_ns > since_ns:
            self.unserved_ns[i] += now_ns - since_ns
        return True

    @property
    def waits(self) -> bool:
        """Whether requests wait for somebody to come into service."""
        return bool(self.waiting or (self._hand_over is not None and self._hand_over.stranded))

    def give_up(self, now_ns: int) -> None:
        """Nobody will be in service any more: those that wait are lost."""
        left = list(self.waiting)
        for i in left:
            self.leave(i, now_ns)
        if self.between is not None:
            left += self.between.give_up_stranded(now_ns)
        for i in left:
            self._client.lost(i, now_ns)

    def _changed(self, change: Change) -> Callable[[int], None]:
        def act(now_ns: int) -> None:
            if change.action == START:
                self._start(change.replica, now_ns)
            elif change.action == DRAIN:
                self._set(change.replica, False)
                self._note(now_ns, DRAIN, change.replica)
            else:
                self._fail(change.replica, now_ns)

        return act

    def _start(self, replica: int, now_ns: int) -> None:
        """It loads its weights, then it is in service; unless something else happens to it before."""
        self._loads[replica] += 1
        self._note(now_ns, START, replica)
        number = self._loads[replica]

        def ready(at_ns: int) -> None:
            if self._loads[replica] != number or self.up[replica]:
                return
            for rank in self._ranks[replica]:
                if not rank.occupied:
                    rank.renew()
            self._set(replica, True)
            self._note(at_ns, "in service", replica)
            self._expect_failure(replica, at_ns)
            for i in list(self.waiting):
                self.leave(i, at_ns)
                self._place(i, at_ns)
            if self._hand_over is not None:
                self._hand_over.resume(at_ns)

        self._agenda.at(now_ns + to_ns(self._elastic.load_s), ready)

    def _fail(self, replica: int, now_ns: int) -> None:
        if not self.up[replica] and not any(rank.occupied for rank in self._ranks[replica]):
            self._loads[replica] += 1  # it was loading
            return
        self._set(replica, False)
        self._note(now_ns, FAIL, replica)
        gone: list[int] = []
        for rank in self._ranks[replica]:
            if self.between is not None:
                gone += self.between.failed(rank.index, now_ns)
            gone += [request.index for request in rank.fail()]
        for i in gone:
            self._again(i, now_ns)

    def _again(self, i: int, now_ns: int) -> None:
        """Request i is over where it was: it begins again, or is lost."""
        if not self._client.awaits(i):
            return
        if self._elastic.retry:
            self.retries[i] = self.retries.get(i, 0) + 1
            self._client.restarted(i)
            self._place(i, now_ns)
        else:
            self._client.lost(i, now_ns)

    def _note(self, now_ns: int, what: str, replica: int) -> None:
        self.moments.append(Moment(now_ns, what, self._ranks[replica][0].index))

    def _set(self, replica: int, up: bool) -> None:
        self.up[replica] = up
        self._loads[replica] += 1
        self.version += 1

    def _expect_failure(self, replica: int, now_ns: int) -> None:
        """The next drawn failure, and the repair after it, if the run is still going on then."""
        mean_s = self._elastic.mtbf_s
        if not mean_s:
            return
        self._failures[replica] += 1
        number = self._failures[replica]
        draw = np.random.SeedSequence((self._elastic.seed, replica, number)).generate_state(1, np.uint64)[0]
        after_s = -mean_s * np.log1p(-(int(draw) >> 11) / float(1 << 53))

        def failed(at_ns: int) -> None:
            if self._client.done or not self.up[replica] or self._failures[replica] != number:
                return
            self._fail(replica, at_ns)
            self._agenda.at(at_ns + to_ns(self._elastic.repair_s), lambda then: self._start(replica, then))

        self._agenda.at(now_ns + to_ns(float(after_s)), failed)

"""The exact engine: the events of a whole fleet in order, in integer nanoseconds.

Arrivals are merged in by the client's own order. At equal times outputs come before arrivals, and arrivals before the
next batch: what ends at t frees a place at t, and what arrives at t is in the batch decided at t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.event.aborts import Aborts
from sim.event.agenda import NEVER, Agenda
from sim.event.client import Client
from sim.event.handover import HandOver, Interruptions, Lease
from sim.event.lifecycle import Elastic, Lifecycle
from sim.event.replica import Replica
from sim.report.result import SHED
from sim.scheduler.base import Request
from sim.units import NS_PER_S


MAX_EMPTY_TURNS = 10_000
MAX_FRUITLESS_PREEMPTIONS = 10_000

OnProgress = Callable[[int, int], None]
"""Told how many requests have ended, and the simulated time in ns."""

PROGRESS_EVENTS = 256
"""Progress is told once in so many events."""


class Stuck(ValueError):
    """A replica will never finish: its scheduler decides nothing any more, or preempts without a token in between."""


def check_progress(replica: Replica, now_ns: int) -> None:
    """Raise `Stuck`, with a sentence that says which setting to change, for a replica that gets nowhere."""
    left = f"at {now_ns / NS_PER_S:.3f} s, with {replica.scheduler.unfinished} requests unfinished"
    if replica.empty_turns > MAX_EMPTY_TURNS:
        raise Stuck(
            f"the scheduler of replica {replica.index} decided {replica.empty_turns} empty batches in a row, {left}: "
            f"with {replica.scheduler.free_blocks:,} of {replica.scheduler.usable_blocks:,} KV blocks free it may wait "
            "for blocks that never come; raise engine.num_gpu_blocks_override, or correct the scheduler or choose "
            "another with engine.scheduler"
        )
    if replica.fruitless_preemptions > MAX_FRUITLESS_PREEMPTIONS:
        raise Stuck(
            f"replica {replica.index} preempted {replica.fruitless_preemptions:,} times without a token in between, "
            f"{left}: its {replica.scheduler.usable_blocks:,} KV blocks are too few for one request, which the engine "
            "would preempt and start again for ever; raise engine.num_gpu_blocks_override, or leave it out"
        )


NOBODY = -1
"""Who gets a request while no replica is in service that could serve it."""


@dataclass
class Entry:
    """Where requests of the client go: one pool, or several.

    - `serves[k](prompt, outputs)`: the tokens that pool k will emit, or None if it can never serve such a request.
    - `choose(i, pools)`: the rank for request i among these pools, which can; None to turn it away, `NOBODY` if it has
      to wait. `pool_of`: the pool of each rank.
    - `make(rank, i, outputs)`: the request for it; None if whoever hands over sends it later.
    """

    serves: Sequence[Callable[[int, int], int | None]]
    choose: Callable[[int, tuple[int, ...]], int | None]
    pool_of: Sequence[int]
    make: Callable[[int, int, int], Request | None]


class Cluster:
    """A fleet under way: the client's requests, the replicas, and whatever else is on the agenda.

    `elastic`: replicas come and go; `ranks` are those of each replica. `hand_over`: what is between instances, and the
    `leases` of their blocks.
    """

    def __init__(
        self,
        agenda: Agenda,
        client: Client,
        replicas: Sequence[Replica],
        entry: Entry,
        elastic: Elastic | None = None,
        ranks: Sequence[Sequence[Replica]] = (),
        hand_over: HandOver | None = None,
        leases: Sequence[Lease] = (),
    ):
        self.agenda, self.client, self.replicas, self.entry = agenda, client, replicas, entry
        self._prompts = client.workload.prompt_tokens.tolist()
        # one that ends with its prompt is to the engine one of one token (vLLM's max_tokens = 1 of pooling requests)
        self._outputs = np.maximum(client.workload.output_tokens, 1).tolist()
        self.lifecycle: Lifecycle | None = None
        self._between = None
        if elastic is not None:
            self.lifecycle = Lifecycle(elastic, agenda, client, ranks, self.place, hand_over, leases)
            self._between = self.lifecycle.between
        elif hand_over is not None:
            self._between = Interruptions(hand_over, leases, lambda i, now_ns: None)
        patience = client.workload.abort_after_ns
        self._aborts = None if patience is None else Aborts(agenda, client, self._take_out)

    def place(self, i: int, now_ns: int) -> None:
        """Give request i to a replica, or turn it away."""
        client, entry = self.client, self.entry
        allowed = [serves(self._prompts[i], self._outputs[i]) for serves in entry.serves]
        able = tuple(k for k, tokens in enumerate(allowed) if tokens is not None)
        if not able:
            client.rejected(i, now_ns)
            return
        target = entry.choose(i, able)
        if target is None:
            client.rejected(i, now_ns, SHED)
            return
        if target == NOBODY:
            assert self.lifecycle is not None
            self.lifecycle.park(i, now_ns)
            return
        tokens = allowed[entry.pool_of[target]]
        assert tokens is not None
        client.placed(i, target, tokens)
        request, replica = entry.make(target, i, tokens), self.replicas[target]
        if request is None:
            return
        replica.send(request)
        if replica.blocked:
            replica.blocked = False
            self.agenda.wake(target, now_ns)

    def _take_out(self, i: int, now_ns: int) -> None:
        """Nobody waits for request i any more."""
        if self.lifecycle is not None and self.lifecycle.leave(i, now_ns):
            return
        if self._between is not None and self._between.given_up(i, now_ns):
            return
        place = self.client.replica_of(i)
        if place < 0:
            return
        replica = self.replicas[place]
        if replica.cancel(i) is not None and replica.blocked:
            replica.blocked = False
            self.agenda.wake(place, now_ns)

    def run(self, on_progress: OnProgress | None = None) -> None:
        """Everything to the end; `on_progress(ended, now_ns)` is called now and then."""
        agenda, client, replicas = self.agenda, self.client, self.replicas
        while True:
            at = client.next_ns
            if agenda.next_ns <= at:
                if at == NEVER and agenda.next_ns == NEVER:
                    if self.lifecycle is None or not self.lifecycle.waits:
                        return
                    self.lifecycle.give_up(agenda.now_ns)
                    continue
                index, action = agenda.pop()
                now_ns = agenda.now_ns
                if action is not None:
                    action(now_ns)
                else:
                    replica = replicas[index]
                    replica.complete(now_ns)
                    if client.next_ns <= now_ns:
                        self._take_arrivals(now_ns)
                    following = replica.call(now_ns, self._horizon)
                    if following is not None:
                        if replica.empty_turns and client.holds is not None:
                            client.holds.give_way(replica)
                        self._check(replica, now_ns)
                        agenda.wake(index, following)
            else:
                agenda.now_ns = at
                agenda.events += 1
                self._take_arrivals(at)
            if on_progress is not None and agenda.events % PROGRESS_EVENTS == 0:
                on_progress(client.ends, agenda.now_ns)

    def _take_arrivals(self, now_ns: int) -> None:
        client = self.client
        while (at := client.next_ns) <= now_ns:
            i = client.send()
            self.place(i, at)
            if self._aborts is not None:
                self._aborts.arrived(i, at)

    def _horizon(self) -> int:
        return min(self.agenda.next_ns, self.client.next_ns)

    @staticmethod
    def _check(replica: Replica, now_ns: int) -> None:
        if replica.empty_turns > MAX_EMPTY_TURNS or replica.fruitless_preemptions > MAX_FRUITLESS_PREEMPTIONS:
            check_progress(replica, now_ns)

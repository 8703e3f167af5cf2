"""Data-parallel ranks that share experts: every step is run by all of them.

Each rank has a scheduler, a KV cache, a queue and a loop of its own, as a replica has. A turn of its loop ends in a
batch, or in nothing to run; then the rank takes part in the next step all the same, with a dummy batch of one token.
A step is launched once every rank is ready for it, all ranks are padded alike, and it lasts until the slowest ends.
So

- a rank whose batches in flight are fewer than it may have goes on at once, and is ready for the step after;
- a rank with an empty batch first waits for its oldest output, as a replica does, and is ready then;
- a rank that ran a dummy batch is ready for the next step as soon as that one is launched: what arrives after
  that has to wait for one step more than it would at a rank that is busy.

The group rests when no rank has anything to do, until a request comes to one of them, which wakes all.

Source: engine-core loop of data-parallel ranks and model runner of vLLM 0.10.2 to 0.21, read.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

from sim.cost.experts.prices import SUMS
from sim.cost.lengths import batch_s
from sim.cost.lockstep import LockstepPrices, exchanged
from sim.deployment.engine import EngineSettings
from sim.event.balance import Queues, RankGroup
from sim.event.batch_queue import BatchQueue
from sim.event.log import StepLog
from sim.event.padding import StepPadding
from sim.event.replica import Port, Replica, Watcher
from sim.scheduler.base import Batch


GroupPrice = Callable[[Sequence[Batch | None]], tuple[int, list[int], int]]
"""Of the batches of one step (None: a dummy): its duration in ns, padded tokens of each rank, and the graph mode."""


class State(IntEnum):
    """What a rank does next: another turn, the next step once all are ready, or it waits for its oldest output."""

    TURN = 0
    READY = 1
    WAITS = 2


class LockstepPricer:
    """Pads the batches of one step alike and prices them, in integer nanoseconds.

    The price is that of `sim.cost.lockstep`.
    """

    def __init__(self, prices: LockstepPrices, settings: EngineSettings):
        self._routing = prices.routing
        self._own_s = prices.own_s.tolist()
        self._experts_s = prices.experts_s.tolist()
        self._decides = prices.decides
        self._exchange_s = self._prefill_exchange_s = prices.exchange_s.tolist()
        if prices.prefill_exchange_s is not None:
            self._prefill_exchange_s = prices.prefill_exchange_s.tolist()
        self._row_s = prices.row_s.tolist()
        self._launch_s = prices.launch_s.tolist()
        self._fixed_s = [gap_s + prices.host_s for gap_s in prices.gap_s.tolist()]
        self._terms = prices.lengths
        self.padded = StepPadding(settings)

    def __call__(self, batches: Sequence[Batch | None]) -> tuple[int, list[int], int]:
        """Duration in ns, padded tokens of each rank, and graph mode; None is a dummy batch."""
        padded, mode = self.padded(batches)
        tokens = sum(padded)
        prefills = any(batch is not None and batch.prefill_tokens for batch in batches)
        exchange_s = self._prefill_exchange_s if prefills else self._exchange_s
        moved = exchanged(self._decides, tokens, min(padded), max(padded), len(padded))
        shared_s = self._experts_s[tokens] + exchange_s[moved]
        if self._routing is not None:
            shared_s += self._routing.extra_s(tokens, *_sums(batches))
        exposed_s = self._launch_s[mode] - shared_s
        slowest_s = most_row_s = 0.0
        for batch, size in zip(batches, padded, strict=True):
            own_s = self._own_s[size]
            late_s = exposed_s - own_s
            rank_s = own_s + late_s if late_s > 0.0 else own_s
            if batch is not None:
                rank_s += batch_s(self._terms, batch)
                row_s = self._row_s[batch.emitting]
                if row_s > most_row_s:
                    most_row_s = row_s
            if rank_s > slowest_s:
                slowest_s = rank_s
        return int(1e9 * (slowest_s + shared_s + self._fixed_s[mode] + most_row_s) + 0.5), padded, mode


def _sums(batches: Sequence[Batch | None]) -> tuple[int, ...]:
    """What of all batches together a step's draw depends on."""
    own = [batch for batch in batches if batch is not None]
    return tuple(sum(getattr(batch, name) for batch in own) for name in SUMS)


class LockstepRank(Replica):
    """One data-parallel rank. Whoever addresses it as a replica drives its whole group."""

    def __init__(
        self,
        index: int,
        queue: BatchQueue,
        client: Watcher,
        log: StepLog,
        *,
        group: "LockstepGroup",
        queues: Queues | None = None,
        host_ns: int = 0,
        port: Port | None = None,
    ):
        self._group = group
        super().__init__(index, queue, group.refuse, client, log, host_ns=host_ns, port=port)
        self.state = State.TURN
        self.pending: Batch | None = None
        self._ready_after_output = False
        self._decided_ns = 0
        self._queues = queues
        self._place = len(group.ranks)
        self._running = self._waiting = 0
        group.ranks.append(self)

    @property
    def blocked(self) -> bool:
        """Whether the group rests."""
        return self._group.blocked

    @blocked.setter
    def blocked(self, value: bool) -> None:
        self._group.blocked = value

    def complete(self, now_ns: int) -> None:
        """Process the outputs that ranks of the group have waited for until now."""
        self._group.complete(now_ns)

    def call(self, now_ns: int, horizon: Callable[[], int]) -> int | None:
        """Turns of the group's loops from `now_ns` on; see `LockstepGroup.call`."""
        del horizon
        return self._group.call(now_ns)

    @property
    def due_ns(self) -> int:
        """When the output that the rank waits for can be processed."""
        return max(self._ends[0], self._host_free_ns)

    @property
    def idle(self) -> bool:
        """Whether the rank has nothing to run and nothing to come."""
        return self.pending is None and not self.scheduler.unfinished and not self._inbox

    @property
    def rests(self) -> bool:
        """Whether it is idle, or its last turn found nothing but transfers to wait for."""
        return self.idle or (self.empty_turns > 0 and not self._inbox and self._only_hears())

    def turn(self, now_ns: int) -> None:
        """Take arrivals and schedule once."""
        self.poll()
        self._take_up(now_ns)
        batch = self.queue.issue()
        self._decided_ns = now_ns
        if batch is not None:
            self._running, self._waiting = batch.running, batch.waiting
            if batch.admitted or batch.preempted:
                self._report(batch, now_ns)
            if batch.tokens:
                self.empty_turns = 0
                self.pending = batch
                self.state = State.READY
                return
            self.empty_turns = 0 if batch.opened else self.empty_turns + 1
            self._ends.append(now_ns)
            self._told.append((batch.number, batch.follows))
        self.state, self._ready_after_output = State.READY, False
        if self.queue.waits(batch):
            self.state, self._ready_after_output = State.WAITS, True

    def ready_ns(self, now_ns: int) -> int:
        """When the host has issued the rank's part of a step that all are ready for at `now_ns`."""
        self._host_free_ns = max(self._host_free_ns, now_ns) + self._host_ns
        return self._host_free_ns

    def launched(self, now_ns: int, start_ns: int, end_ns: int, padded: int, mode: int) -> None:
        """The step is on the devices: keep its end, and go on."""
        batch, self.pending = self.pending, None
        self.state = State.TURN
        logged = self._dummy() if batch is None else batch
        self._log.append(self.index, self._decided_ns, start_ns, end_ns, logged, padded, mode, self._hits)
        if batch is not None:
            if self.on_step is not None:
                self.on_step(batch, start_ns, end_ns)
            self._ends.append(end_ns)
            self._told.append((batch.number, batch.follows))
            if self.queue.waits(batch):
                self.state, self._ready_after_output = State.WAITS, False
                return
        self._tell(now_ns)

    def finish(self, now_ns: int) -> None:
        """Process the oldest output."""
        self._waits = True
        before = self.outstanding
        super().complete(now_ns)
        self._running -= before - self.outstanding
        self.state = State.READY if self._ready_after_output else State.TURN
        self._tell(now_ns)

    def _tell(self, now_ns: int) -> None:
        """The end of a turn: the front end may learn of the queues."""
        if self._queues is not None:
            self._queues.report(now_ns, self._place, self._waiting, self._running)

    def _dummy(self) -> Batch:
        """What the log has of a step in which this rank had nothing to run."""
        batch: Batch = Batch()
        batch.running, batch.waiting, batch.free_blocks = self._running, self._waiting, self.scheduler.free_blocks
        return batch


class LockstepGroup(RankGroup):
    """The ranks of one replica. `check(rank, now_ns)` is called where a rank may be stuck."""

    def __init__(
        self,
        price: GroupPrice,
        check: Callable[[Replica, int], None],
    ):
        self.ranks: list[LockstepRank] = []
        super().__init__(self.ranks)
        self.blocked = True
        self._price = price
        self._check = check
        self._device_free_ns = 0

    @property
    def polls(self) -> bool:
        """Whether the loops look for news of transfers together, and run no step in which nobody has a batch."""
        return all(rank.port is not None and rank.port.polled for rank in self.ranks)

    @staticmethod
    def refuse(batch: Batch) -> tuple[int, int, int]:
        """A rank alone has no price."""
        raise RuntimeError("a rank in lockstep is priced with its group")

    def complete(self, now_ns: int) -> None:
        """Process the outputs that ranks have waited for until now."""
        for rank in self.ranks:
            if rank.state is State.WAITS and rank.due_ns <= now_ns:
                rank.finish(now_ns)

    def call(self, now_ns: int) -> int | None:
        """Turns of all loops and launches of steps, as far as nobody waits; returns the time of the next output.

        None: nobody has anything to do, and the group rests.
        """
        ranks = self.ranks
        while True:
            for rank in ranks:
                if rank.state is State.TURN:
                    rank.turn(now_ns)
                    if rank.empty_turns or rank.fruitless_preemptions:
                        self._check(rank, now_ns)
            waiting = [rank.due_ns for rank in ranks if rank.state is State.WAITS]
            if waiting:
                self.blocked = False
                return max(now_ns, min(waiting))
            nothing = all(rank.pending is None for rank in ranks)
            if all(rank.idle for rank in ranks) or (nothing and self.polls):
                for rank in ranks:
                    rank.state = State.TURN
                if all(rank.rests for rank in ranks):
                    self.blocked = True
                    return None
                continue
            self._launch(now_ns)

    def _launch(self, now_ns: int) -> None:
        """The next step, behind the one before."""
        duration_ns, padded, mode = self._price([rank.pending for rank in self.ranks])
        start_ns = max(self._device_free_ns, *[rank.ready_ns(now_ns) for rank in self.ranks])
        self._device_free_ns = end_ns = start_ns + duration_ns
        for rank, tokens in zip(self.ranks, padded, strict=True):
            rank.launched(now_ns, start_ns, end_ns, tokens, mode)

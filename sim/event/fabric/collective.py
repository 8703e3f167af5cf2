"""One collective as events: chunks that go through the dimensions, a few at a time, at every rank on its own clock.

A buffer is cut into chunks. In each dimension a rank has `active` of them under way; the others wait their turn, so
that chunks overlap across dimensions. A message that a rank reads or takes in passes its endpoint, and three passes
over the bytes at the memory's rate where it sums (`Rules`). Byte counts and delays are cut to whole ones, as
ASTRA-sim's are.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence

from sim.event.agenda import NEVER, Agenda
from sim.event.fabric.wires import Wires, wires
from sim.hardware.collective_rules import Dimension, Rules, phases_of
from sim.hardware.collective_steps import Steps, steps_of


def finish_ns(op: str, size_bytes: int, dimensions: Sequence[Dimension], rules: Rules) -> int:
    """When the slowest rank has ended one collective that all ranks begin at 0; arguments as of `closed_form_ns`."""
    agenda = Agenda()
    ends: dict[int, int] = {}
    over = wires(agenda, dimensions, rules.queued)
    collective = Collective(agenda, over, dimensions, rules, op, size_bytes, ends.__setitem__)
    for rank in range(collective.ranks):
        collective.start(rank)
    while agenda.next_ns != NEVER:
        _, action = agenda.pop()
        assert action is not None
        action(agenda.now_ns)
    assert len(ends) == collective.ranks
    return max(ends.values())


class Collective:
    """One collective over all ranks; `done(rank, now_ns)` when a rank has all its chunks."""

    def __init__(
        self,
        agenda: Agenda,
        over: Wires,
        dimensions: Sequence[Dimension],
        rules: Rules,
        op: str,
        size_bytes: int,
        done: Callable[[int, int], None],
    ):
        self._agenda, self._rules, self._done = agenda, rules, done
        sizes = [way.size for way in dimensions]
        self.ranks = math.prod(sizes)
        phases = phases_of(op, sizes)
        self._dimension = [phase.dimension for phase in phases]
        self._exchanges = []
        for number, phase in enumerate(phases):
            at = phase.dimension
            steps = steps_of(phase.op, dimensions[at].algorithm, sizes[at])
            stride, chunk = math.prod(sizes[:at]), int(size_bytes // rules.splits * phase.share)
            self._exchanges.append(
                [
                    Exchange(agenda, over, steps, chunk, sizes[at], stride, rules, self._ended(which, number))
                    for which in range(rules.splits)
                ]
            )
        self._left: Counter[int] = Counter()
        self._busy: Counter[tuple[int, int]] = Counter()
        self._queue: dict[tuple[int, int], deque[tuple[int, int]]] = {}

    def start(self, rank: int) -> None:
        """A rank joins now."""
        self._left[rank] = self._rules.splits
        for chunk in range(self._rules.splits):
            self._enter(rank, chunk, 0)

    def _enter(self, rank: int, chunk: int, phase: int) -> None:
        key = (rank, self._dimension[phase])
        self._queue.setdefault(key, deque()).append((chunk, phase))
        self._next(key)

    def _next(self, key: tuple[int, int]) -> None:
        while self._busy[key] < self._rules.active and self._queue[key]:
            chunk, phase = self._queue[key].popleft()
            self._busy[key] += 1
            self._exchanges[phase][chunk].start(key[0])

    def _ended(self, chunk: int, phase: int) -> Callable[[int], None]:
        def ended(rank: int) -> None:
            key = (rank, self._dimension[phase])
            self._busy[key] -= 1
            if phase + 1 < len(self._dimension):
                self._enter(rank, chunk, phase + 1)
            else:
                self._left[rank] -= 1
            self._next(key)
            if not self._left[rank]:
                del self._left[rank]
                self._done(rank, self._agenda.now_ns)

        return ended


class Exchange:
    """One chunk along one dimension: each rank sends its messages as what it waits for comes in.

    A message is taken in when the rank has sent its own of the same number: until then it lies at the rank.
    """

    def __init__(
        self,
        agenda: Agenda,
        over: Wires,
        steps: Steps,
        size_bytes: int,
        ranks: int,
        stride: int,
        rules: Rules,
        done: Callable[[int], None],
    ):
        self._agenda, self._over, self._steps, self._rules, self._done = agenda, over, steps, rules, done
        self._ranks, self._stride = ranks, stride
        self._sizes = [int(size_bytes * size) for size in steps.sizes]
        self._sum_ns = [3 * int(int(size_bytes * size) / rules.memory_bytes_per_ns) for size in steps.reduced]
        self._free: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._arrived: Counter[tuple[int, int]] = Counter()

    def start(self, rank: int) -> None:
        """A rank begins: it reads what it sends first."""
        for _ in range(self._steps.width):
            self._agenda.at(self._agenda.now_ns + self._rules.endpoint_ns, lambda now_ns: self._ready(rank))

    def _ready(self, rank: int) -> None:
        """One more message has been read, or taken in."""
        steps = self._steps
        self._free[rank] += 1
        gated = bool(steps.gate) and self._sent[rank] >= steps.width
        if gated and self._received[rank] < steps.gate:
            return
        while self._free[rank] and self._sent[rank] < len(steps.sizes):
            self._send(rank)
            if not gated:
                break
        if self._sent[rank] == len(steps.sizes) and self._free[rank] == steps.width:
            self._done(rank)

    def _send(self, rank: int) -> None:
        steps, number = self._steps, self._sent[rank]
        target = self._at(rank, steps.to[number])
        self._free[rank] -= 1
        self._sent[rank] += 1
        self._over.send(rank, target, self._sizes[number], lambda now_ns: self._match(target, rank, 1))
        self._match(rank, self._at(rank, steps.source[number]), -1)

    def _match(self, rank: int, source: int, change: int) -> None:
        """A message has come in (1), or is wanted (-1); with both it is taken in."""
        before = self._arrived[rank, source]
        self._arrived[rank, source] = before + change
        if before * change < 0:
            delay_ns = self._rules.endpoint_ns + self._sum_ns[self._received[rank]]
            self._received[rank] += 1
            self._agenda.at(self._agenda.now_ns + delay_ns, lambda now_ns: self._ready(rank))

    def _at(self, rank: int, distance: int) -> int:
        place = rank // self._stride % self._ranks
        return rank + (self._steps.partner(place, distance, self._ranks) - place) * self._stride

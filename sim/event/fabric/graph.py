"""Small graphs of work, one per rank: computing, loading from remote memory, collectives, messages to other ranks.

A node begins when those it depends on have ended and its unit is free. A rank has one unit that computes and one that
communicates (collectives and sends), so computing hides communication; a receive waits beside them. A send ends when it
has arrived. Remote memory serves one load at a time: of each rank, of a node of ranks, or of all of them.

Among nodes that could begin at once, the one given first begins. The k-th collective of a rank belongs with the k-th of
the others. Source: the execution of graphs in astra-sim (MIT), as seen in runs of it.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.event.agenda import NEVER, Agenda
from sim.event.fabric.collective import Collective
from sim.event.fabric.wires import wires
from sim.hardware.collective_rules import Dimension, Rules


COMPUTE, COLLECTIVE, SEND, RECEIVE, LOAD = "compute", "collective", "send", "receive", "load"
UNIT = {COMPUTE: "compute", COLLECTIVE: "communicate", SEND: "communicate"}


@dataclass(frozen=True)
class Node:
    """One piece of a rank's work.

    `duration_ns` of computing and of a load; `op` and `size_bytes` (per rank, put in) of a collective; `size_bytes` and
    `channel` (source, target, tag) of a message.
    """

    kind: str
    after: tuple[int, ...] = ()
    duration_ns: int = 0
    op: str = ""
    size_bytes: int = 0
    channel: tuple[int, int, int] = (0, 0, 0)


class Graph:
    """The graphs of all ranks over common links. `memory_of`: which memory a rank loads from."""

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        rules: Rules,
        graphs: Mapping[int, Mapping[int, Node]],
        memory_of: Mapping[int, int],
    ):
        self._agenda = Agenda()
        self._wires = wires(self._agenda, dimensions, rules.queued)
        self._collective = (self._agenda, self._wires, dimensions, rules)
        self._graphs, self._memory_of = graphs, memory_of
        self._wanted = {(rank, number): len(node.after) for rank, own in graphs.items() for number, node in own.items()}
        self._followers: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank, own in graphs.items():
            for number, node in own.items():
                for before in node.after:
                    self._followers[rank, before].append(number)
        self._ready: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._busy: set[tuple[int, str]] = set()
        self._joined: dict[int, int] = defaultdict(int)
        self._collectives: list[Collective] = []
        self._members: list[dict[int, int]] = []
        self._arrived: dict[tuple[int, int, int], int] = defaultdict(int)
        self._receivers: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self._memory_free: dict[int, int] = defaultdict(int)
        self.finish_ns: dict[int, int] = {}
        self._left = {rank: len(own) for rank, own in graphs.items()}

    def run(self) -> dict[int, int]:
        """When each rank has ended its graph, ns. **Raises:** `ValueError` if some nodes never can begin."""
        for (rank, number), wanted in self._wanted.items():
            if not wanted:
                self._offer(rank, number)
        while self._agenda.next_ns != NEVER:
            _, action = self._agenda.pop()
            assert action is not None
            action(self._agenda.now_ns)
        stuck = [rank for rank, left in self._left.items() if left]
        if stuck:
            raise ValueError(f"ranks {stuck} never end: nodes wait for each other, or for a message nobody sends.")
        return self.finish_ns

    def _offer(self, rank: int, number: int) -> None:
        node = self._graphs[rank][number]
        unit = UNIT.get(node.kind)
        if unit is None:
            self._begin(rank, number)
            return
        heapq.heappush(self._ready[rank, unit], number)
        self._agenda.at(self._agenda.now_ns, lambda now_ns: self._issue(rank, unit))

    def _issue(self, rank: int, unit: str) -> None:
        if (rank, unit) not in self._busy and self._ready[rank, unit]:
            self._busy.add((rank, unit))
            self._begin(rank, heapq.heappop(self._ready[rank, unit]))

    def _begin(self, rank: int, number: int) -> None:
        node, now_ns = self._graphs[rank][number], self._agenda.now_ns
        if node.kind == COMPUTE:
            self._agenda.at(now_ns + node.duration_ns, lambda then: self._end(rank, number))
        elif node.kind == LOAD:
            memory = self._memory_of[rank]
            self._memory_free[memory] = max(self._memory_free[memory], now_ns) + node.duration_ns
            self._agenda.at(self._memory_free[memory], lambda then: self._end(rank, number))
        elif node.kind == SEND:
            source, target, _ = node.channel
            self._wires.send(source, target, node.size_bytes, lambda then: self._sent(rank, number))
        elif node.kind == RECEIVE:
            self._receivers[node.channel].append(number)
            self._take_in(node.channel)
        else:
            self._join(rank, number)

    def _sent(self, rank: int, number: int) -> None:
        channel = self._graphs[rank][number].channel
        self._arrived[channel] += 1
        self._take_in(channel)
        self._end(rank, number)

    def _take_in(self, channel: tuple[int, int, int]) -> None:
        while self._arrived[channel] and self._receivers[channel]:
            self._arrived[channel] -= 1
            self._end(channel[1], self._receivers[channel].popleft())

    def _join(self, rank: int, number: int) -> None:
        node, turn = self._graphs[rank][number], self._joined[rank]
        self._joined[rank] += 1
        if turn == len(self._collectives):
            self._members.append({})
            self._collectives.append(
                Collective(
                    *self._collective,
                    node.op,
                    node.size_bytes,
                    lambda done, now_ns: self._end(done, self._members[turn][done]),
                )
            )
        self._members[turn][rank] = number
        self._collectives[turn].start(rank)

    def _end(self, rank: int, number: int) -> None:
        unit = UNIT.get(self._graphs[rank][number].kind)
        if unit is not None:
            self._busy.discard((rank, unit))
            self._agenda.at(self._agenda.now_ns, lambda now_ns: self._issue(rank, unit))
        self._left[rank] -= 1
        self.finish_ns[rank] = self._agenda.now_ns
        for follower in self._followers[rank, number]:
            self._wanted[rank, follower] -= 1
            if not self._wanted[rank, follower]:
                self._offer(rank, follower)

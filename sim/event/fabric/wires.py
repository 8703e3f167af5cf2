"""What messages travel over in the collectives' event form: dimensions of ranks, without and with queues on links.

Without contention a message from one rank to another takes `hops x latency + bytes / bandwidth`. With it, each link
sends one message at a time, first come first served: busy for `bytes / bandwidth`, and the whole message is at the
link's end after `latency + bytes / bandwidth`, where it is sent on (store and forward).

Times are whole nanoseconds; each delay is cut to one, as ASTRA-sim's analytical network does.
Source: astra-sim/astra-network-analytical (MIT), congestion-unaware and congestion-aware networks.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from sim.event.agenda import Action, Agenda
from sim.hardware.collective_rules import Dimension


class Wires(Protocol):
    """Messages between ranks."""

    def send(self, source: int, target: int, size_bytes: int, done: Action) -> None:
        """A message leaves now; `done(now_ns)` when it has arrived."""
        ...


def wires(agenda: Agenda, dimensions: Sequence[Dimension], queued: bool) -> Wires:
    """Links of all dimensions, with queues or without."""
    return QueuedWires(agenda, dimensions) if queued else FreeWires(agenda, dimensions)


def _way(dimensions: Sequence[Dimension], source: int, target: int) -> tuple[int, int, int]:
    """The one dimension that two ranks differ in, the ranks between neighbours along it, and where the circle begins.

    **Raises:** `ValueError` for a rank and itself, or two that differ in several.
    """
    stride = 1
    for at, way in enumerate(dimensions):
        one, other = source // stride % way.size, target // stride % way.size
        first = source - one * stride
        if one != other and first + other * stride == target:
            return at, stride, first
        stride *= way.size
    raise ValueError(f"a message wants two ranks that differ in one dimension, got {source} and {target}.")


class FreeWires:
    """Links without contention."""

    def __init__(self, agenda: Agenda, dimensions: Sequence[Dimension]):
        self._agenda = agenda
        self._dimensions = dimensions

    def send(self, source: int, target: int, size_bytes: int, done: Action) -> None:
        """See `Wires`."""
        at, stride, first = _way(self._dimensions, source, target)
        way = self._dimensions[at]
        hops = way.hops((source - first) // stride, (target - first) // stride)
        delay_ns = hops * way.latency_ns + size_bytes / way.bytes_per_ns
        self._agenda.at(self._agenda.now_ns + int(delay_ns), done)


Link = tuple[int, int, int]
"""Dimension and both ends; a switch is the end `-1 -` the first rank of its circle."""


class QueuedWires:
    """Links with a queue each."""

    def __init__(self, agenda: Agenda, dimensions: Sequence[Dimension]):
        self._agenda = agenda
        self._dimensions = dimensions
        self._waiting: dict[Link, deque[tuple[int, Action]]] = {}

    def send(self, source: int, target: int, size_bytes: int, done: Action) -> None:
        """See `Wires`."""
        self._forward(self._path(source, target), size_bytes, done)

    def _path(self, source: int, target: int) -> list[Link]:
        at, stride, first = _way(self._dimensions, source, target)
        way = self._dimensions[at]
        if way.kind == "FullyConnected":
            return [(at, source, target)]
        if way.kind == "Switch":
            return [(at, source, -1 - first), (at, -1 - first, target)]
        place, ahead = (source - first) // stride, (target - source) // stride % way.size
        turn = 1 if ahead <= way.size - ahead else -1
        stops = [first + (place + turn * hop) % way.size * stride for hop in range(min(ahead, way.size - ahead) + 1)]
        return [(at, one, other) for one, other in zip(stops, stops[1:], strict=False)]

    def _forward(self, path: list[Link], size_bytes: int, done: Action) -> None:
        if not path:
            done(self._agenda.now_ns)
            return
        link, rest = path[0], path[1:]
        message: tuple[int, Action] = (size_bytes, lambda now_ns: self._forward(rest, size_bytes, done))
        if link in self._waiting:
            self._waiting[link].append(message)
        else:
            self._waiting[link] = deque()
            self._transmit(link, *message)

    def _transmit(self, link: Link, size_bytes: int, arrived: Action) -> None:
        way, now_ns = self._dimensions[link[0]], self._agenda.now_ns
        busy_ns = size_bytes / way.bytes_per_ns
        self._agenda.at(now_ns + int(way.latency_ns + busy_ns), arrived)
        self._agenda.at(now_ns + int(busy_ns), lambda then: self._free(link))

    def _free(self, link: Link) -> None:
        if self._waiting[link]:
            self._transmit(link, *self._waiting[link].popleft())
        else:
            del self._waiting[link]

"""What both ways of handing over share: the pairs, the two sides of a transfer, its times, the links."""

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import ClassVar

import numpy as np

from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.handover.failures import Failures
from sim.event.handover.ports import DecodePort, KVPort as KVPort, PrefillPort
from sim.event.network import Network
from sim.event.replica import Replica
from sim.report.result import LinkTable, TransferTable
from sim.scheduler.base import Request
from sim.units import to_ns


COLUMNS = (
    "source",
    "target",
    "prefilled_ns",
    "queued_ns",
    "allocated_ns",
    "begun_ns",
    "received_ns",
    "seated_ns",
    "failed",
    "blocks",
    "bytes",
)


@dataclass(frozen=True)
class HandOverCosts:
    """Seconds: of the hand-over itself, before the first byte per transfer and per block, and of the links.

    `layers`: of the model, where the KV of each leaves while others are computed; 0: it leaves when all are.
    """

    hand_over_s: float
    setup_s: float
    block_s: float
    latency_s: float
    layers: int = 0


FREE = HandOverCosts(0.0, 0.0, 0.0, 0.0)


class HandOver(abc.ABC):
    """All transfers of a run: their times, and what happens between the two sides.

    `keeps_token`: the prefill's token is the client's first. `count`: prefills handed over.
    """

    decode_first: ClassVar[bool]

    def __init__(
        self,
        agenda: Agenda,
        client: Client,
        topology: Topology,
        costs: HandOverCosts,
        *,
        keeps_token: bool = False,
        failures: Failures | None = None,
    ):
        self.client = client
        self.failures = failures
        self.count = 0
        self.keeps_token = keeps_token
        self._agenda = agenda
        self._topology = topology
        self._costs = costs
        self._network = Network(agenda)
        self._prefilled: dict[int, Request] = {}
        self._paired: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._times = np.full((len(client.workload), len(COLUMNS)), -1, np.int64)
        self._at = {name: place for place, name in enumerate(COLUMNS)}

    def connect(
        self,
        replicas: Sequence[Replica],
        choose: Callable[[int, int], int],
        make: Callable[[int, int, int], Request],
        *,
        block_bytes: Sequence[Sequence[float]],
        block_tokens: Sequence[int],
        pickup_ns: Sequence[int],
        at_arrival: bool,
    ) -> None:
        """All replicas, by number, and who decodes.

        `choose(i, source)`: the decode instance for request i of a prefill instance, when its prefill ends, or
        `at_arrival`. `make(target, i, outputs)`: the request for it. `block_bytes`: of a block of each group of each
        replica, all its devices together, `block_tokens` its tokens. `pickup_ns`: of the decode side's server.
        """
        self._replicas = replicas
        self._choose = choose
        self._make = make
        self._block_bytes = block_bytes
        self._block_tokens = block_tokens
        self._shares = [_shares(each) for each in block_bytes]
        self._pickup_ns = pickup_ns
        self._at_arrival = at_arrival

    @property
    def unseen_tokens(self) -> int:
        """Tokens that prefills sampled and nobody sees."""
        return 0 if self.keeps_token else self.count

    @abc.abstractmethod
    def arrived(self, i: int, source: int, outputs: int) -> Request | None:
        """Request i, of which the client gets so many tokens, goes to prefill instance `source`.

        The request for its queue; None if it comes there later.
        """

    @abc.abstractmethod
    def prefilled(self, source: int, request: Request, now_ns: int) -> None:
        """A prefill has ended."""

    @abc.abstractmethod
    def begin(self, target: int, request: Request, blocks: Sequence[int]) -> None:
        """The decode instance has blocks for the prompt, so many of each group to be filled."""

    @abc.abstractmethod
    def computed(self, source: int, request: Request, tokens: int) -> None:
        """A prefill instance has computed so many tokens of a request that is told of as it goes."""

    def queued(self, request: Request, now_ns: int) -> None:
        """The decode instance's loop took the request up."""
        self._set(request.index, queued_ns=now_ns)

    def seated(self, requests: Iterable[Request], now_ns: int) -> None:
        """Requests have a seat at a decode instance, the first time."""
        for request in requests:
            if self._get(request.index, "seated_ns") < 0:
                self._set(request.index, seated_ns=now_ns)

    def ended(self, requests: Iterable[Request]) -> None:
        """Requests are about to end at a decode instance: what the prefill saw of them belongs to them too."""
        for request in requests:
            prefill = self._prefilled.pop(request.index, None)
            if prefill is not None:
                request.cached = prefill.cached
                request.preemptions += prefill.preemptions

    def rate(self, source: int, target: int) -> float:
        """Bytes per second that one more transfer would have from one instance to another, as things are."""
        path = self._topology.path(source, target)
        self._network.grow(self._topology.bytes_per_s)
        return self._network.offers(path)

    def _pair(self, i: int, source: int) -> int:
        """Choose who decodes request i of a prefill instance; it counts there from now on."""
        target = self._paired[i] = self._choose(i, source)
        self._replicas[target].outstanding += 1
        return target

    def _reach(self, i: int, now_ns: int) -> None:
        """The request is in the decode instance's queue."""
        target = self._paired.pop(i)
        self._replicas[target].outstanding -= 1  # counted when it was chosen
        self._send(target, self._make(target, i, self._outputs.pop(i)), now_ns)

    def _send(self, target: int, request: Request, now_ns: int) -> None:
        """Put a request in a replica's queue, whose loop acts if it rested."""
        replica = self._replicas[target]
        replica.send(request)
        if replica.blocked:
            replica.blocked = False
            self._agenda.wake(target, now_ns)

    def _move(self, source: int, target: int, size: float, done: Callable[[int], None]) -> None:
        """Bytes leave now."""
        path = self._topology.path(source, target)
        self._network.grow(self._topology.bytes_per_s)
        self._network.start(path, size, done)

    def _received(self, source: int, target: int, request: Request, now_ns: int) -> None:
        """The last byte of a decode instance's request is there: both sides are told."""
        self._set(request.index, received_ns=now_ns)
        self._came(target, request, now_ns)
        self._read(source, self._prefilled[request.index], now_ns)

    def _came(self, target: int, request: Request, now_ns: int, failed: bool = False) -> None:
        """The decode instance will hear that a load has ended."""
        replica = self._replicas[target]
        assert isinstance(replica.port, DecodePort)
        replica.port.arrived(request, failed)
        self._tell(replica, now_ns)

    def _read(self, source: int, request: Request, now_ns: int) -> None:
        """The prefill instance will hear that nobody needs the blocks of a request any more."""
        replica = self._replicas[source]
        assert isinstance(replica.port, PrefillPort)
        replica.port.sent.append(request)
        self._tell(replica, now_ns)

    def _tell(self, replica: Replica, now_ns: int) -> None:
        """A loop that rests hears it now."""
        port = replica.port
        assert isinstance(port, DecodePort | PrefillPort)
        scheduler = port.scheduler
        assert scheduler is not None
        if replica.blocked and (scheduler.unfinished or scheduler.watches):
            replica.hear(port)
            replica.blocked = False
            self._agenda.wake(replica.index, now_ns)

    def lost(self, target: int, request: Request) -> None:
        """A request has ended with an error at a decode instance."""
        self._prefilled.pop(request.index)
        self._replicas[target].drop(request)
        self.client.failed(request.index, self._agenda.now_ns)

    def _get(self, i: int, name: str) -> int:
        return int(self._times[i, self._at[name]])

    def _set(self, i: int, **values: int) -> None:
        for name, value in values.items():
            self._times[i, self._at[name]] = value

    def _asked(self, target: int, request: Request, blocks: Sequence[int]) -> tuple[float, float]:
        """A decode instance has blocks, so many of each group to be filled: their bytes, and as blocks of all layers.

        A block of a group holds the layers of that group; what a block costs was measured for one of all layers.
        """
        size = sum(map(mul, blocks, self._block_bytes[target]))
        self._set(request.index, allocated_ns=self._agenda.now_ns, blocks=sum(blocks), bytes=round(size))
        return size, sum(map(mul, blocks, self._shares[target]))

    def _wait_ns(self, blocks: float, first: bool = True) -> int:
        """Between the wish to move so many blocks and the first byte."""
        costs = self._costs
        return to_ns((costs.setup_s if first else 0.0) + costs.block_s * blocks + costs.latency_s)

    def table(self) -> TransferTable:
        """What happened to each request on its way, in arrival order."""
        columns = {name: self._times[:, place].copy() for name, place in self._at.items()}
        return TransferTable(**columns, decode_first=self.decode_first, keeps_token=self.keeps_token)

    def links(self) -> LinkTable:
        """The links that were used."""
        network, topology = self._network, self._topology
        network.grow(topology.bytes_per_s)  # also those that nothing was sent over
        return LinkTable(
            list(topology.names),
            np.array(topology.bytes_per_s),
            np.array(network.bytes),
            np.array(network.busy_ns, np.int64),
            np.array(network.most_flows, np.int64),
            change_link=np.array(network.changes[0], np.int64),
            change_ns=np.array(network.changes[1], np.int64),
            change_rate=np.array(network.changes[2], np.float64),
            changes_left_out=network.changes_left_out,
        )


def _shares(block_bytes: Sequence[float]) -> list[float]:
    """What a block of each group holds, as a share of all layers."""
    whole = sum(block_bytes)
    return [each / whole if whole else 1 / len(block_bytes) for each in block_bytes]

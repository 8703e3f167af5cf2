"""What both ways of handing over share: the pairs, the two sides of a transfer, its times, the links."""

import abc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import ClassVar

import numpy as np

from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.handover.failures import Failures
from sim.event.handover.passage import Passage, Times
from sim.event.handover.ports import DecodePort, KVPort as KVPort, PrefillPort
from sim.event.network import Network
from sim.event.replica import Replica
from sim.report.moment import CUT, Moment
from sim.report.result import LinkTable, TransferTable
from sim.scheduler.base import Request
from sim.units import to_ns


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

    `keeps_token`: the prefill's token is the client's first. `count`: prefills handed over. `passages`: of requests on
    their way, by number, until they end at their decode instance. `stranded`: those that are prefilled and find no
    decode instance in service, `unserved_ns` how long each has been so. `cuts`: transfers that were broken off,
    `cut_bytes` of them had been sent.
    """

    decode_first: ClassVar[bool]
    binds: ClassVar[bool] = False
    """Whether the decode instance cannot be another any more once it is chosen."""

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
        self.passages: dict[int, Passage] = {}
        self.stranded: list[Passage] = []
        self.unserved_ns: Counter[int] = Counter()
        self.on_strand: Callable[[Passage, int], None] = lambda passage, now_ns: None
        self.times = Times(len(client.workload))
        self.cuts: list[Moment] = []
        self.carried: dict[tuple[int, int], float] = {}
        """Bytes from one instance to another that no row of the table has: of lives and transfers that were cut."""
        self._agenda = agenda
        self._topology = topology
        self._costs = costs
        self._network = Network(agenda)

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
        `at_arrival`; -1 if none is in service. `make(target, i, outputs)`: the request for it. `block_bytes`: of a
        block of each group of each replica, all its devices together, `block_tokens` its tokens. `pickup_ns`: of the
        decode side's server.
        """
        self.replicas = replicas
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

    @abc.abstractmethod
    def failed_at_source(self, passage: Passage, now_ns: int) -> None:
        """The KV of a prompt that was computed is gone: the decode instance hears of a load that fails."""

    def queued(self, request: Request, now_ns: int) -> None:
        """The decode instance's loop took the request up."""
        self.times.set(request.index, queued_ns=now_ns)

    def seated(self, requests: Iterable[Request], now_ns: int) -> None:
        """Requests have a seat at a decode instance, the first time."""
        for request in requests:
            if self.times.get(request.index, "seated_ns") < 0:
                self.times.set(request.index, seated_ns=now_ns)

    def ended(self, requests: Iterable[Request]) -> None:
        """Requests are about to end at a decode instance: what the prefill saw of them belongs to them too."""
        for request in requests:
            passage = self.passages.get(request.index)
            if passage is not None:
                assert passage.prefill is not None
                request.cached = passage.prefill.cached
                request.preemptions += passage.prefill.preemptions
                self.close(passage)

    def rate(self, source: int, target: int) -> float:
        """Bytes per second that one more transfer would have from one instance to another, as things are."""
        path = self._topology.path(source, target)
        self._network.grow(self._topology.bytes_per_s)
        return self._network.offers(path)

    def close(self, passage: Passage) -> None:
        """A passage is over; nothing of what was to happen to it does."""
        self._unstrand(passage)
        passage.over = True
        if self.passages.get(passage.i) is passage:
            del self.passages[passage.i]

    def asked(self, passage: Passage) -> bool:
        """Whether the decode instance has blocks for it, and waits for what is not there yet."""
        return self.times.get(passage.i, "allocated_ns") >= 0 and self.times.get(passage.i, "received_ns") < 0

    def uncount(self, passage: Passage) -> None:
        """Its decode instance does not expect it any more."""
        if passage.counted:
            passage.counted = False
            self.replicas[passage.target].outstanding -= 1

    def stop(self, passage: Passage, now_ns: int) -> None:
        """What is on its way is broken off; what has been sent of it counts on the links."""
        flow, passage.flow = passage.flow, None
        if flow is not None:
            passage.sent_bytes += self._network.stop(flow)
        if flow is None and not passage.sent_bytes:
            return
        self.cuts.append(Moment(now_ns, CUT, passage.target, passage.i))
        pair = passage.source, passage.target
        self.carried[pair] = self.carried.get(pair, 0.0) + passage.sent_bytes
        passage.sent_bytes = 0.0

    def resume(self, now_ns: int) -> None:
        """An instance has come into service: who has found none may go on."""
        stranded, self.stranded = self.stranded, []
        for passage in stranded:
            if passage.over:
                continue
            if self._pair(passage):
                self._unstrand(passage)
                self.later(passage, now_ns + self._hand_over_ns(passage), partial(self._reach, passage))
            else:
                self.stranded.append(passage)

    def _open(self, i: int, source: int, outputs: int) -> Passage:
        """Request i begins its way, perhaps again."""
        if self.times.get(i, "received_ns") >= 0:
            pair = self.times.get(i, "source"), self.times.get(i, "target")
            self.carried[pair] = self.carried.get(pair, 0.0) + max(self.times.get(i, "bytes"), 0)
        self.times.clear(i)
        passage = self.passages[i] = Passage(i, source, outputs)
        return passage

    def later(self, passage: Passage, at_ns: int, action: Callable[[int], None]) -> None:
        """`action(at_ns)` then, unless the passage is over by then."""

        def act(now_ns: int) -> None:
            if not passage.over:
                action(now_ns)

        self._agenda.at(at_ns, act)

    def _pair(self, passage: Passage) -> bool:
        """Choose who decodes a request; it counts there from now on. False if nobody in service can."""
        target = self._choose(passage.i, passage.source)
        if target < 0:
            return False
        passage.target = target
        passage.counted = True
        self.replicas[target].outstanding += 1
        return True

    @abc.abstractmethod
    def _hand_over_ns(self, passage: Passage) -> int:
        """From the choice of the decode instance to the request's arrival there."""

    def _strand(self, passage: Passage, now_ns: int) -> None:
        """No decode instance is in service: it waits for the next, what was prefilled of it in its blocks."""
        self.stranded.append(passage)
        passage.stranded_ns = now_ns
        self.on_strand(passage, now_ns)

    def _unstrand(self, passage: Passage) -> None:
        if passage.stranded_ns >= 0:
            self.unserved_ns[passage.i] += self._agenda.now_ns - passage.stranded_ns
            passage.stranded_ns = -1

    def _reach(self, passage: Passage, now_ns: int) -> None:
        """The request is in the decode instance's queue."""
        if passage.target < 0 and not self._pair(passage):
            self._strand(passage, now_ns)
            return
        self.uncount(passage)  # counted when it was chosen
        self.times.set(passage.i, target=passage.target)
        passage.decode = self._make(passage.target, passage.i, passage.outputs)
        self._send(passage.target, passage.decode, now_ns)

    def _send(self, target: int, request: Request, now_ns: int) -> None:
        """Put a request in a replica's queue, whose loop acts if it rested."""
        self.replicas[target].send(request)
        self.nudge(target, now_ns)

    def nudge(self, index: int, now_ns: int) -> None:
        """The loop of a replica acts if it rested."""
        replica = self.replicas[index]
        if replica.blocked:
            replica.blocked = False
            self._agenda.wake(index, now_ns)

    def _move(self, passage: Passage, size: float, done: Callable[[int], None]) -> None:
        """Bytes leave now."""

        def landed(now_ns: int) -> None:
            passage.flow = None
            passage.sent_bytes += size
            done(now_ns)

        path = self._topology.path(passage.source, passage.target)
        self._network.grow(self._topology.bytes_per_s)
        passage.flow = self._network.start(path, size, landed)

    def _received(self, passage: Passage, now_ns: int) -> None:
        """The last byte of a decode instance's request is there: both sides are told."""
        assert passage.prefill is not None
        self.times.set(passage.i, received_ns=now_ns)
        self.came(passage, now_ns)
        self.read(passage, now_ns)
        if passage.given_up:
            self.close(passage)

    def came(self, passage: Passage, now_ns: int, failed: bool = False) -> None:
        """The decode instance will hear that a load has ended."""
        assert passage.decode is not None
        replica = self.replicas[passage.target]
        assert isinstance(replica.port, DecodePort)
        replica.port.arrived(passage.decode, failed)
        self._tell(replica, now_ns)

    def read(self, passage: Passage, now_ns: int) -> None:
        """The prefill instance will hear that nobody needs the blocks of a request any more, if it has them still."""
        replica = self.replicas[passage.source]
        assert isinstance(replica.port, PrefillPort)
        if passage.prefill is not None and replica.port.read(passage.prefill):
            self._tell(replica, now_ns)

    def read_at(self, passage: Passage, at_ns: int) -> None:
        """The same, at a time to come."""
        self._agenda.at(at_ns, lambda now_ns: self.read(passage, now_ns))

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
        self.close(self.passages[request.index])
        self.replicas[target].drop(request)
        self.client.failed(request.index, self._agenda.now_ns)

    def _asked(self, target: int, request: Request, blocks: Sequence[int]) -> tuple[float, float]:
        """A decode instance has blocks, so many of each group to be filled: their bytes, and as blocks of all layers.

        A block of a group holds the layers of that group; what a block costs was measured for one of all layers.
        """
        size = sum(map(mul, blocks, self._block_bytes[target]))
        self.times.set(request.index, allocated_ns=self._agenda.now_ns, blocks=sum(blocks), bytes=round(size))
        return size, sum(map(mul, blocks, self._shares[target]))

    def _wait_ns(self, blocks: float, first: bool = True) -> int:
        """Between the wish to move so many blocks and the first byte."""
        costs = self._costs
        return to_ns((costs.setup_s if first else 0.0) + costs.block_s * blocks + costs.latency_s)

    def table(self) -> TransferTable:
        """What happened to each request on its way, in arrival order."""
        return self.times.table(self.decode_first, self.keeps_token)

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

    def every_byte_counts(self) -> bool:
        """Whether each link has carried what was received over it, and what was sent of transfers that were cut."""
        table = self.table()
        came = table.received_ns >= 0
        pairs = np.stack([table.source[came], table.target[came]], axis=1)
        carried = dict(self.carried)
        if len(pairs):
            found, place = np.unique(pairs, axis=0, return_inverse=True)
            sizes = np.bincount(place.ravel(), np.maximum(table.bytes[came], 0))
            for (source, target), size in zip(found.tolist(), sizes.tolist(), strict=True):
                carried[source, target] = carried.get((source, target), 0.0) + size
        paths = [(list(self._topology.path(*pair)), size) for pair, size in carried.items()]
        self._network.grow(self._topology.bytes_per_s)
        expected = np.zeros(len(self._network.bytes))
        for path, size in paths:
            expected[path] += size
        return bool(np.allclose(expected, self._network.bytes, rtol=1e-9, atol=len(table.bytes) + 1.0))


def _shares(block_bytes: Sequence[float]) -> list[float]:
    """What a block of each group holds, as a share of all layers."""
    whole = sum(block_bytes)
    return [each / whole if whole else 1 / len(block_bytes) for each in block_bytes]

"""From a prefill to a decode instance: who hands over to whom, and the KV's way there.

The prefill instance computes the prompt and one token, which nobody sees, and holds the blocks. Its answer goes through
the proxy to the decode side's server. There the scheduler takes blocks for the whole prompt when it can; only then is
the KV asked for: a set-up, then the bytes over links that other transfers may use too. Both sides hear of the end of
it with their next step, and the decode instance samples the first token that the client sees.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.event.network import Network
from sim.event.replica import Replica
from sim.report.result import LinkTable, TransferTable
from sim.scheduler.base import Batch, Request
from sim.scheduler.hooks import NOTHING, Alone, Connected, External
from sim.units import to_ns


COLUMNS = (
    "source",
    "target",
    "prefilled_ns",
    "queued_ns",
    "allocated_ns",
    "begun_ns",
    "received_ns",
    "blocks",
    "bytes",
)


@dataclass(frozen=True)
class HandOverCosts:
    """Seconds: of the hand-over itself, before the first byte per transfer and per block, and of the links."""

    hand_over_s: float
    setup_s: float
    block_s: float
    latency_s: float


FREE = HandOverCosts(0.0, 0.0, 0.0, 0.0)


class PrefillPort(Alone):
    """A prefill instance's side: it keeps the blocks of what it has finished until they have been read."""

    def __init__(self) -> None:
        self.scheduler: Connected | None = None
        self.sent: list[Request] = []
        self.held = 0

    def keeps(self, request: Request, finished: bool) -> bool:
        """Of every finished prefill."""
        self.held += finished
        return finished

    @property
    def busy(self) -> bool:
        """Whether blocks are still to be read."""
        return self.held > len(self.sent)

    @property
    def reports(self) -> bool:
        """Whether blocks have been read since the last report."""
        return bool(self.sent)

    def report(self) -> None:
        """Tell the scheduler which."""
        sent, self.sent = self.sent, []
        self.held -= len(sent)
        assert self.scheduler is not None
        self.scheduler.report((), sent)


class DecodePort(Alone):
    """A decode instance's side: every request comes with its prompt's KV elsewhere, which is loaded once."""

    def __init__(self, index: int, begin: Callable[[int, Request, int], None]):
        self.scheduler: Connected | None = None
        self.received: list[Request] = []
        self.under_way = 0
        self._index = index
        self._begin = begin
        self._loaded: set[int] = set()

    def look_up(self, request: Request, local_tokens: int) -> External:
        """The rest of the prompt, the first time."""
        if request.index in self._loaded:
            return NOTHING
        return External(request.prompt - local_tokens, loads=True)

    def allocated(self, request: Request, external: External, blocks: int) -> None:
        """Ask for it."""
        self._loaded.add(request.index)
        self.under_way += 1
        self._begin(self._index, request, blocks)

    @property
    def busy(self) -> bool:
        """Whether loads are under way."""
        return self.under_way > 0

    @property
    def reports(self) -> bool:
        """Whether loads have ended since the last report."""
        return bool(self.received)

    def report(self) -> None:
        """Tell the scheduler which."""
        received, self.received = self.received, []
        assert self.scheduler is not None
        self.scheduler.report(received, ())


class HandOver:
    """All transfers of a run: their times, and what happens between the two sides.

    `count`: prefills handed over, whose token nobody sees.
    """

    def __init__(self, agenda: Agenda, client: Client, topology: Topology, costs: HandOverCosts):
        self.client = client
        self.count = 0
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
        choose: Callable[[int], int],
        make: Callable[[int, int, int], Request],
        *,
        block_bytes: Sequence[float],
        pickup_ns: Sequence[int],
        at_arrival: bool,
    ) -> None:
        """All replicas, by number, and who decodes.

        `choose(i)`: the decode instance for request i, when its prefill ends, or `at_arrival`. `make(target, i,
        outputs)`: the request for it. `block_bytes`: of a block of each replica, all its devices together.
        `pickup_ns`: of the decode side's server.
        """
        self._replicas = replicas
        self._choose = choose
        self._make = make
        self._block_bytes = block_bytes
        self._pickup_ns = pickup_ns
        self._at_arrival = at_arrival

    def arrived(self, i: int, outputs: int) -> None:
        """Request i is sent to a prefill instance; it is to get so many tokens."""
        self._outputs[i] = outputs
        if self._at_arrival:
            self._pair(i)

    def prefilled(self, source: int, request: Request, now_ns: int) -> None:
        """A prefill has ended: its answer is on its way to the decode side."""
        i = request.index
        self.count += 1
        self._prefilled[i] = request
        if i not in self._paired:
            self._pair(i)
        target = self._paired[i]
        self._set(i, source=source, target=target, prefilled_ns=now_ns)
        at_ns = now_ns + to_ns(self._costs.hand_over_s) + self._pickup_ns[target]
        self._agenda.at(at_ns, lambda at: self._reach(i, at))

    def queued(self, request: Request, now_ns: int) -> None:
        """The decode instance's loop took the request up."""
        self._set(request.index, queued_ns=now_ns)

    def begin(self, target: int, request: Request, blocks: int) -> None:
        """The decode instance has blocks for the prompt, so many of them to be filled."""
        now_ns, i = self._agenda.now_ns, request.index
        size = blocks * self._block_bytes[target]
        self._set(i, allocated_ns=now_ns, blocks=blocks, bytes=round(size))
        costs = self._costs
        wait_s = costs.setup_s + costs.block_s * blocks + costs.latency_s
        self._agenda.at(now_ns + to_ns(wait_s), lambda at: self._move(target, request, size, at))

    def ended(self, requests: Iterable[Request]) -> None:
        """Requests are about to end at a decode instance: what the prefill saw of them belongs to them too."""
        for request in requests:
            prefill = self._prefilled.pop(request.index, None)
            if prefill is not None:
                request.cached = prefill.cached
                request.preemptions += prefill.preemptions

    def _pair(self, i: int) -> None:
        target = self._choose(i)
        self._paired[i] = target
        self._replicas[target].outstanding += 1

    def _reach(self, i: int, now_ns: int) -> None:
        """The request is in the decode instance's queue."""
        target = self._paired.pop(i)
        replica = self._replicas[target]
        replica.outstanding -= 1  # counted when it was chosen
        replica.send(self._make(target, i, self._outputs.pop(i)))
        if replica.blocked:
            replica.blocked = False
            self._agenda.wake(target, now_ns)

    def _move(self, target: int, request: Request, size: float, now_ns: int) -> None:
        """The first byte leaves."""
        i = request.index
        self._set(i, begun_ns=now_ns)
        source = int(self._times[i, self._at["source"]])
        path = self._topology.path(source, target)
        self._network.grow(self._topology.bytes_per_s)
        self._network.start(path, size, lambda at: self._received(source, target, request, at))

    def _received(self, source: int, target: int, request: Request, now_ns: int) -> None:
        """The last byte is there: both sides are told."""
        self._set(request.index, received_ns=now_ns)
        there, here = self._replicas[target], self._replicas[source]
        assert isinstance(there.port, DecodePort)
        assert isinstance(here.port, PrefillPort)
        there.port.under_way -= 1
        there.port.received.append(request)
        here.port.sent.append(self._prefilled[request.index])
        for replica, port in ((there, there.port), (here, here.port)):
            scheduler = port.scheduler
            assert scheduler is not None
            if replica.blocked and (scheduler.unfinished or scheduler.watches):
                replica.hear(port)
                replica.blocked = False
                self._agenda.wake(replica.index, now_ns)

    def _set(self, i: int, **values: int) -> None:
        for name, value in values.items():
            self._times[i, self._at[name]] = value

    def table(self) -> TransferTable:
        """What happened to each request on its way, in arrival order."""
        return TransferTable(**{name: self._times[:, place].copy() for name, place in self._at.items()})

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
        )


class PrefillSide:
    """What a prefill instance says of a request, on its way to the client: it is not finished yet."""

    def __init__(self, index: int, hand_over: HandOver):
        self._index = index
        self._hand_over = hand_over
        self.queued = hand_over.client.queued
        self.scheduled = hand_over.client.scheduled

    def interrupted(self, requests: Iterable[Request], last_token_ns: int) -> None:
        """Nobody decodes here."""

    def continued(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Nobody waits for tokens of here."""

    def delivered(self, batch: Batch, ended: Sequence[Request], now_ns: int) -> None:
        """Prefills have ended."""
        for request in ended:
            self._hand_over.prefilled(self._index, request, now_ns)


class DecodeSide:
    """What a decode instance says: the first token is the one that it samples."""

    def __init__(self, hand_over: HandOver):
        self._hand_over = hand_over
        client = hand_over.client
        self.queued = hand_over.queued
        self.scheduled = client.scheduled
        self.interrupted = client.interrupted
        self.continued = client.continued

    def delivered(self, batch: Batch, ended: Sequence[Request], now_ns: int) -> None:
        """Tokens for the client."""
        self._hand_over.ended(ended)
        self._hand_over.client.delivered(batch, ended, now_ns)

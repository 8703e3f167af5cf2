"""KV in tiers behind the devices' caches: what goes there, what is recalled from there, and how long that takes.

A request that is about to be admitted is looked up behind what its own cache holds: chunk by chunk, in the first tier
that has it. A recall takes blocks like a load from another instance; then its bytes go over the links of the tiers and
the host link of the rank, shared with all that uses them at that time. With `recall: request` it waits for them without
a seat, and others go on; with `recall: batch` the batch that admits it takes as much longer as its recalls would, alone
on their links.

Where a tier is prefetched, chunks that a request which comes will want of it go into the tier before, if nothing nearer
has them. Nobody waits for that: what has not arrived by the request's turn is recalled from where it is.

Computed blocks are copied when their step has ended, each step's together; a request that has ended keeps its blocks
until its copies are done. A block that is about to be lost is copied beside the steps.

Source: vLLM's KV connectors (recorded), its offloading connector and LMCache, documentation.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sim.deployment.tiers import Tier
from sim.event.agenda import Agenda
from sim.event.network import Network
from sim.event.replica import Replica
from sim.memory.chunks import Chunks
from sim.memory.pool import chain_keys
from sim.report.tiers import TierCount
from sim.scheduler.base import Batch
from sim.scheduler.hooks import NOTHING, Alone, Connected, External
from sim.units import NS_PER_S, to_ns


class CacheTiers:
    """All tiers of a run, behind `ranks` equal ranks; `counts`: what became of each.

    Links by number: to and from the devices of each rank at `host_bytes_per_s`, then those of tiers that have rates.
    """

    def __init__(self, agenda: Agenda, tiers: Sequence[Tier], host_bytes_per_s: float, ranks: int):
        self.agenda = agenda
        self.tiers = tiers
        self.counts = [TierCount(tier.name, tier.chunks, tier.chunk_blocks, tier.shared) for tier in tiers]
        self._rates = [host_bytes_per_s] * (2 * ranks)
        self._chunks: list[list[Chunks]] = []
        self._links: list[list[tuple[int, int]]] = []
        for tier in tiers:
            own = [self._place(tier) for _ in range(1 if tier.shared else ranks)]
            self._chunks.append([own[0 if tier.shared else rank][0] for rank in range(ranks)])
            self._links.append([own[0 if tier.shared else rank][1] for rank in range(ranks)])
        self._network = Network(agenda, self._rates)
        self._replicas: Sequence[Replica] = ()

    def _place(self, tier: Tier) -> tuple[Chunks, tuple[int, int]]:
        """What one tier holds, and its links for reading and writing, -1 without a rate."""
        links = []
        for rate in (tier.read_bytes_per_s, tier.write_bytes_per_s):
            links.append(len(self._rates) if rate else -1)
            self._rates += [rate] if rate else []
        return Chunks(tier.chunks), (links[0], links[1])

    def connect(self, replicas: Sequence[Replica]) -> None:
        """The ranks, by number."""
        self._replicas = replicas
        for replica in replicas:
            assert isinstance(replica.port, TierPort)
            replica.on_step = replica.port.launched
            if any(tier.delays_batch for tier in self.tiers):
                replica.behind_ns = replica.port.behind_ns

    def chunks(self, tier: int, rank: int) -> Chunks:
        """What a rank finds in a tier."""
        return self._chunks[tier][rank]

    def alone_s(self, tier: int, rank: int, blocks: int) -> float:
        """Seconds of a recall that has its links to itself."""
        rate = min(self._rates[link] for link in self._path(tier, rank, reads=True))
        return self.tiers[tier].latency_s + blocks * self.tiers[tier].block_bytes / rate

    def recall(self, tier: int, rank: int, blocks: int, done: Callable[[int], None]) -> None:
        """Bring blocks to a rank's devices."""
        size, path = blocks * self.tiers[tier].block_bytes, self._path(tier, rank, reads=True)
        begin = partial(self._begin, path, size, done)
        self.agenda.at(self.agenda.now_ns + to_ns(self.tiers[tier].latency_s), begin)

    def write(self, tier: int, rank: int, keys: Sequence[int], done: Callable[[int], None]) -> None:
        """Copy chunks from a rank's devices; they can be found when all are there."""
        self._copy(tier, rank, keys, self._path(tier, rank, reads=False), done)

    def prefetch(self, tier: int, rank: int, keys: Sequence[int], done: Callable[[int], None]) -> None:
        """Bring chunks that a tier has into the tier before, behind its latency."""
        chunks, count = self._chunks[tier][rank], self.counts[tier]
        path = [link for link in (self._links[tier][rank][0], self._links[tier - 1][rank][1]) if link >= 0]
        for key in keys:
            chunks.pin(key)
        count.asked_chunks += len(keys)

        def arrived(now_ns: int) -> None:
            count.prefetched_chunks += len(keys)
            for key in keys:
                chunks.unpin(key)
            done(now_ns)

        begin_ns = self.agenda.now_ns + to_ns(self.tiers[tier].latency_s)
        self.agenda.at(begin_ns, lambda now_ns: self._copy(tier - 1, rank, keys, path, arrived))

    def _copy(self, tier: int, rank: int, keys: Sequence[int], path: Sequence[int], done: Any) -> None:
        one, count = self.tiers[tier], self.counts[tier]
        size = len(keys) * one.chunk_blocks * one.block_bytes

        def landed(now_ns: int) -> None:
            count.written_chunks += len(keys)
            count.written_bytes += size
            gone = [old for key in keys for old in self._add(tier, rank, key)]
            count.most_chunks = max(count.most_chunks, self._chunks[tier][rank].most)
            self._give_up(tier, rank, gone)
            if done is not None:
                done(now_ns)

        self._begin(path, size, landed, self.agenda.now_ns)

    def _add(self, tier: int, rank: int, key: int) -> list[int]:
        gone = self._chunks[tier][rank].add(key)
        if gone is None:
            self.counts[tier].refused_chunks += 1
        return gone or []

    def _give_up(self, tier: int, rank: int, keys: Sequence[int]) -> None:
        """Chunks that had to go: into the next tier if it takes them, else they are lost."""
        below = tier + 1
        if below == len(self.tiers) or self.tiers[below].through:
            self.counts[tier].dropped_chunks += len(keys)
            return
        missing = [key for key in keys if key not in self._chunks[below][rank]]
        if missing:
            path = [link for link in (self._links[tier][rank][0], self._links[below][rank][1]) if link >= 0]
            self._copy(below, rank, missing, path, None)

    def _path(self, tier: int, rank: int, reads: bool) -> list[int]:
        own = self._links[tier][rank][0 if reads else 1]
        host = 2 * rank + (0 if reads else 1)
        return [host] if own < 0 else [own, host]

    def _begin(self, path: Sequence[int], size: float, done: Callable[[int], None], now_ns: int) -> None:
        if path:
            self._network.start(path, size, done)
        else:
            self.agenda.at(now_ns, done)

    def tell(self, rank: int, now_ns: int) -> None:
        """A loop that rests hears now what is new at its port."""
        replica = self._replicas[rank]
        port = replica.port
        assert isinstance(port, TierPort) and port.scheduler is not None
        if replica.blocked and (port.scheduler.unfinished or port.scheduler.watches):
            replica.hear(port)
            replica.blocked = False
            self.agenda.wake(rank, now_ns)

    def checks(self) -> dict[str, bool]:
        """Conservation: what was asked for came, and nothing holds more than it can."""
        ports = [replica.port for replica in self._replicas]
        whole = all(count.recalled_blocks == count.asked_blocks for count in self.counts)
        return {
            "every block recalled from a tier arrived": whole and not any(port and port.busy for port in ports),
            "every chunk prefetched arrived": all(c.prefetched_chunks == c.asked_chunks for c in self.counts),
            "no tier held more than its size": all(count.most_chunks <= count.chunks for count in self.counts),
        }


class TierPort(Alone):
    """One rank's side: what its scheduler asks and is told, and what its loop hears."""

    def __init__(self, rank: int, tiers: CacheTiers, block_tokens: int):
        self.scheduler: Connected | None = None
        self.find: Callable[[int], int | None] = lambda key: None
        self._rank, self._tiers, self._block_tokens = rank, tiers, block_tokens
        self._through = [k for k, tier in enumerate(tiers.tiers) if tier.through]
        self._found: tuple[Any, list[tuple[int, int, int]]] = (None, [])
        self._loading: dict[Any, int] = {}
        self._received: list[Any] = []
        self._read: list[Any] = []
        self._copies: Counter[Any] = Counter()
        self._held: set[Any] = set()
        self._computed: dict[int, list[tuple[int, Any]]] = {k: [] for k in self._through}
        self._writing: set[tuple[int, int]] = set()
        self._prefetches = any(tier.prefetches for tier in tiers.tiers)
        self._coming: set[tuple[int, int]] = set()
        self._lost: list[int] = []
        self._behind_ns = 0

    # What the scheduler asks and tells.

    def look_up(self, request: Any, local_tokens: int) -> External:
        """The chunks that follow what the rank itself holds, each in the first tier that has it."""
        size, tiers = self._block_tokens, self._tiers
        first = at = local_tokens // size
        limit = (request.known - 1) // size
        found: list[tuple[int, int, int]] = []
        if at < limit:
            keys = chain_keys(request, limit, size)
        while at < limit:
            for k, tier in enumerate(tiers.tiers):
                end = (at // tier.chunk_blocks + 1) * tier.chunk_blocks
                if end <= limit and keys[end - 1] in tiers.chunks(k, self._rank):
                    found.append((k, keys[end - 1], end - at))
                    at = end
                    break
            else:
                break
        if not found:
            return NOTHING
        self._found = request, found
        return External((at - first) * size, loads=not any(tiers.tiers[k].delays_batch for k, _, _ in found))

    def allocated(self, request: Any, external: External, blocks: Sequence[int]) -> None:
        """The blocks are there: begin the recall."""
        asked, found = self._found
        assert asked is request, "allocated after another request's look-up"
        tiers = self._tiers
        by_tier: Counter[int] = Counter()
        for k, key, count in found:
            by_tier[k] += count
            tiers.chunks(k, self._rank).pin(key)
        for k, count in by_tier.items():
            tiers.counts[k].asked_blocks += count
            tiers.counts[k].recalls += 1
        if not external.loads:
            self._behind_ns += max(to_ns(tiers.alone_s(k, self._rank, count)) for k, count in by_tier.items())
            self._unpin(found)
            for k, count in by_tier.items():
                self._count(k, count, to_ns(tiers.alone_s(k, self._rank, count)))
            return
        self._loading[request] = len(by_tier)
        begun_ns = tiers.agenda.now_ns
        for k, count in by_tier.items():
            done = partial(self._arrived, request, k, count, begun_ns, found)
            tiers.recall(k, self._rank, count, done)

    def keeps(self, request: Any, finished: bool) -> bool:
        """Until what it computed has been copied."""
        if finished:
            self._flush(request)
        if not finished or not self._copies[request]:
            return False
        self._held.add(request)
        return True

    def queued(self, request: Any) -> None:
        """Prefetch what lies further away than it needs to, up to the first block that nobody has."""
        if not self._prefetches:
            return
        tiers, rank = self._tiers, self._rank
        limit = (request.known - 1) // self._block_tokens
        keys = chain_keys(request, limit, self._block_tokens)
        wanted: dict[int, list[int]] = {}
        at = 0
        while at < limit and self.find(keys[at]) is not None:
            at += 1
        while at < limit:
            for k, tier in enumerate(tiers.tiers):
                end = (at // tier.chunk_blocks + 1) * tier.chunk_blocks
                if end <= limit and keys[end - 1] in tiers.chunks(k, rank):
                    if tier.prefetches and (k, keys[end - 1]) not in self._coming:
                        wanted.setdefault(k, []).append(keys[end - 1])
                    at = end
                    break
            else:
                break
        for k, chunks in wanted.items():
            coming = {(k, key) for key in chunks}
            self._coming |= coming
            tiers.prefetch(k, rank, chunks, partial(self._prefetched, coming))

    def registered(self, request: Any, first: int, stop: int) -> None:
        """Blocks [first, stop) of a request have their content: what lies in no tier yet is to be copied."""
        if not self._through:
            return
        keys = chain_keys(request, stop, self._block_tokens)
        for k in self._through:
            chunks, step = self._tiers.chunks(k, self._rank), self._tiers.tiers[k].chunk_blocks
            for end in range((first // step + 1) * step, stop + 1, step):
                key = keys[end - 1]
                if key in chunks:
                    chunks.use(key)
                elif (k, key) not in self._writing:
                    self._writing.add((k, key))
                    self._computed[k].append((key, request))
                    self._copies[request] += 1

    def lost(self, key: int) -> None:
        """A block with this content is about to be used for another."""
        if not self._tiers.tiers[0].through:
            self._lost.append(key)

    # What the loop does and hears.

    def launched(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        """A step is on the device: copies of what it computes begin when it has ended."""
        if self._lost:
            lost, self._lost = self._lost, []
            held = self._tiers.chunks(0, self._rank)
            missing = [key for key in dict.fromkeys(lost) if key not in held]
            for key in lost:
                if key in held:
                    held.use(key)
            if missing:
                self._tiers.write(0, self._rank, missing, lambda now_ns: None)
        if any(self._computed.values()):
            computed, self._computed = self._computed, {k: [] for k in self._through}
            self._tiers.agenda.at(end_ns, lambda now_ns: self._copy(computed))

    def behind_ns(self) -> int:
        """What recalls add to the batch that is priced now."""
        found, self._behind_ns = self._behind_ns, 0
        return found

    @property
    def busy(self) -> bool:
        """Whether recalls are under way, or blocks held for their copies."""
        return bool(self._loading) or bool(self._held)

    @property
    def reports(self) -> bool:
        """Whether there is news."""
        return bool(self._received) or bool(self._read)

    @property
    def polled(self) -> bool:
        """Whether the loop looks for news before each call."""
        return self.scheduler is not None and self.scheduler.polls

    def report(self) -> None:
        """Tell the scheduler."""
        received, self._received = self._received, []
        read, self._read = self._read, []
        assert self.scheduler is not None
        self.scheduler.report(received, read)

    def _prefetched(self, coming: set[tuple[int, int]], now_ns: int) -> None:
        self._coming -= coming

    def _arrived(
        self, request: Any, k: int, blocks: int, begun_ns: int, found: list[tuple[int, int, int]], now_ns: int
    ) -> None:
        self._count(k, blocks, now_ns - begun_ns)
        self._loading[request] -= 1
        if not self._loading[request]:
            del self._loading[request]
            self._unpin(found)
            self._received.append(request)
            self._tiers.tell(self._rank, now_ns)

    def _count(self, k: int, blocks: int, took_ns: int) -> None:
        count = self._tiers.counts[k]
        count.recalled_blocks += blocks
        count.recalled_bytes += blocks * self._tiers.tiers[k].block_bytes
        count.recall_s.append(took_ns / NS_PER_S)

    def _unpin(self, found: list[tuple[int, int, int]]) -> None:
        for k, key, _ in found:
            self._tiers.chunks(k, self._rank).unpin(key)

    def _flush(self, request: Any) -> None:
        """What a request has computed is copied now, if no step took it along."""
        mine = {k: [pair for pair in waiting if pair[1] is request] for k, waiting in self._computed.items()}
        if any(mine.values()):
            self._computed = {
                k: [pair for pair in waiting if pair[1] is not request] for k, waiting in self._computed.items()
            }
            self._copy(mine)

    def _copy(self, computed: dict[int, list[tuple[int, Any]]]) -> None:
        for k, waiting in computed.items():
            if waiting:
                self._tiers.write(k, self._rank, [key for key, _ in waiting], partial(self._copied, k, waiting))

    def _copied(self, k: int, done: list[tuple[int, Any]], now_ns: int) -> None:
        free = False
        for key, request in done:
            self._writing.discard((k, key))
            self._copies[request] -= 1
            if not self._copies[request]:
                del self._copies[request]
                if request in self._held:
                    self._held.remove(request)
                    self._read.append(request)
                    free = True
        if free:
            self._tiers.tell(self._rank, now_ns)

"""The exact engine on a fleet: build the replicas of all pools, run the workload, hand over the tables."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.deployment.tiers import Tier
from sim.deployment.topology import Topology
from sim.event.agenda import Agenda
from sim.event.balance import RankGroup
from sim.event.checks import check_conservation
from sim.event.client import Client
from sim.event.cluster import NOBODY, Cluster, Entry, OnProgress
from sim.event.content import request_content
from sim.event.handover import FREE, Failures, HandOver, HandOverCosts, Layerwise, Lease, Progress, hand_over_of
from sim.event.holds import Holds
from sim.event.lifecycle import Elastic, Lifecycle
from sim.event.log import StepLog
from sim.event.pool import EnginePool, PoolRanks, Prices, make_ranks
from sim.event.replica import Replica
from sim.event.routing.base import Arrival, Door, Router, chooser
from sim.event.routing.find import make_router
from sim.event.swap import SwapPort, swap_checks
from sim.event.tiers import CacheTiers
from sim.memory.shape import GroupShape
from sim.report.moment import Moment
from sim.report.result import LinkTable, RequestTable, SpeculationTable, StageTable, StepTable, TransferTable
from sim.report.speculation import merged
from sim.report.swap import SwapCount
from sim.report.tiers import TierCount
from sim.scheduler.base import Request
from sim.scheduler.find import roles_of
from sim.units import to_ns
from sim.workload.trace import Workload


@dataclass(frozen=True)
class Routing:
    """Who chooses: `router` among the replicas that take requests, `decode_router` among those that decode for others.

    `at_arrival`: the second choice is made when the request arrives, otherwise when its prefill ends. `options`,
    `decode_options`: of the two.
    """

    router: str = "round_robin"
    decode_router: str = "least_outstanding"
    at_arrival: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    decode_options: Mapping[str, Any] = field(default_factory=dict)


IN_TURN = Routing()


@dataclass(frozen=True)
class ExactRun:
    """What the exact engine hands over: tables, inter-token latencies with multiplicities, checks, counts.

    `pool_stages`: of each pool whose replicas have several, None of the others. `transfers`, `links`: where KV moved
    between instances. `retries`: requests that were sent again because a replica failed, and how often;
    `unserved_ns`: how long they waited for somebody in service. `moments`: what happened to requests and replicas
    beside all that, in order. `speculation`: what became of drafts; `cache_tiers`: of KV behind the
    caches; `swap`: of that of preempted requests.
    """

    requests: RequestTable
    steps: StepTable
    itl_ns: np.ndarray
    itl_count: np.ndarray
    checks: dict[str, bool]
    events: int
    cpu_s: float
    pool_stages: tuple[StageTable | None, ...] = (None,)
    transfers: TransferTable | None = None
    links: LinkTable | None = None
    retries: dict[int, int] = field(default_factory=dict)
    unserved_ns: dict[int, int] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    speculation: SpeculationTable | None = None
    cache_tiers: tuple[TierCount, ...] = ()
    swap: SwapCount | None = None

    @property
    def stages(self) -> StageTable | None:
        """Those of the only pool."""
        (found,) = self.pool_stages
        return found


def run_exact(
    workload: Workload,
    settings: EngineSettings,
    prices: Prices,
    *,
    num_gpu_blocks: int,
    groups: tuple[GroupShape, ...] | None = None,
    replicas: int = 1,
    data_parallel: int = 1,
    scheduler: str = "vllm",
    router: str = "round_robin",
    router_options: Mapping[str, Any] | None = None,
    elastic: Elastic | None = None,
    hold_ns: int = 0,
    tiers: tuple[Tier, ...] = (),
    swap_blocks: int = 0,
    block_bytes: float = 0.0,
    host_bytes_per_s: float = 0.0,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> ExactRun:
    """Simulate `workload` on `replicas` equal engines of `num_gpu_blocks` KV blocks each (one is the null block).

    `data_parallel`: ranks of each replica, every one an engine with blocks of its own; the tables number them through,
    replica by replica. `groups` share the blocks; None: one of full attention. Prefixes are reused if the settings say
    so and the workload has content; `tiers` lie behind each cache, over a host link of so many bytes per second, or the
    host has room for `swap_blocks` of preempted requests of each rank, of `block_bytes`. Bit for bit the same for the
    same arguments.

    **Raises:** `Stuck` (a `ValueError`) for a run that would never end.
    """
    pool = EnginePool(
        settings,
        prices,
        num_gpu_blocks,
        groups or (GroupShape("full", settings.block_size),),
        replicas=replicas,
        data_parallel=data_parallel,
        scheduler=scheduler,
        tiers=tiers,
        block_bytes=(block_bytes,),
        swap_blocks=swap_blocks,
        host_bytes_per_s=host_bytes_per_s,
    )
    routing = Routing(router, options=router_options or {})
    return run_fleet(workload, [pool], routing, elastic=elastic, hold_ns=hold_ns, seed=seed, on_progress=on_progress)


def run_fleet(
    workload: Workload,
    pools: Sequence[EnginePool],
    routing: Routing = IN_TURN,
    *,
    topology: Topology | None = None,
    costs: HandOverCosts = FREE,
    failures: Failures | None = None,
    elastic: Elastic | None = None,
    hold_ns: int = 0,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> ExactRun:
    """Simulate `workload` on several pools of replicas, which are numbered through, rank by rank, in their order.

    Pools of role `prefill` hand over to those of role `decode`, over `topology` (an endpoint for each rank, in the same
    order) at these `costs`, some with `failures`. `elastic`: replicas come and go.
    `hold_ns`: so long blocks are held between rounds of sessions, which `check_holds` has allowed.

    **Raises:** `Stuck` (a `ValueError`) for a run that would never end.
    """
    started = time.process_time()
    content = request_content(workload)
    agenda, log = Agenda(), StepLog()
    entering = [pool for pool in pools if pool.role != "decode"]
    profile = entering[0].settings.profile
    client = Client(
        workload, to_ns(profile.api_pickup_s), to_ns(profile.api_door_s), sum(pool.replicas for pool in entering)
    )
    hand_over = None if topology is None else _hand_over(pools, agenda, client, topology, costs, failures)
    only = pools[0]
    cache_tiers = CacheTiers(agenda, only.tiers, only.host_bytes_per_s, only.ranks) if only.tiers else None
    swap = SwapCount(only.swap_blocks, only.block_bytes[0]) if only.swap_blocks else None
    make_swap = None
    if swap is not None:
        make_swap = partial(SwapPort, agenda, swap, only.settings.block_size, only.host_bytes_per_s)
    ranks: list[PoolRanks] = []
    for pool in pools:
        first = sum(len(made.replicas) for made in ranks)
        named = content is not None and pool.settings.prefix_caching
        now = (lambda: agenda.now_ns) if pool.role == "decode" else (lambda: client.next_ns)
        ranks.append(make_ranks(pool, first, named, client, hand_over, log, now, seed, cache_tiers, make_swap))
    replicas = [replica for made in ranks for replica in made.replicas]
    if cache_tiers is not None:
        cache_tiers.connect(replicas)
    for replica in replicas:
        replica.queue.pools = workload.pools
    for made in ranks:
        for scheduler in made.schedulers:
            know = getattr(scheduler, "know", None)
            if know is not None:
                know(workload)
    for replica in replicas:
        if isinstance(replica.port, SwapPort):
            replica.port.connect(replica)
    if hold_ns and workload.sessions is not None:
        client.holds = Holds(agenda, replicas, workload.sessions, hold_ns)
    if isinstance(hand_over, Layerwise):
        for pool, made in zip(pools, ranks, strict=True):
            for replica in made.replicas if pool.role == "prefill" else ():
                replica.on_step = Progress(hand_over)
    make = _request_maker(workload, replicas, [made.named for made in ranks for _ in made.replicas], content)
    in_service: list[Lifecycle | None] = []
    if hand_over is not None:
        decode = make_router(routing.decode_router, seed, routing.decode_options, "decode_router")
        pick = _decode_chooser(pools, ranks, decode, workload, hand_over.rate, in_service)
        hand_over.connect(
            replicas,
            lambda i, source: pick(_arrival(workload, content, i, agenda.now_ns), source),
            make,
            block_bytes=[pool.block_bytes for pool in pools for _ in range(pool.ranks)],
            block_tokens=[pool.settings.block_size for pool in pools for _ in range(pool.ranks)],
            pickup_ns=[to_ns(pool.settings.profile.api_pickup_s) for pool in pools for _ in range(pool.ranks)],
            at_arrival=routing.at_arrival,
        )
    router = make_router(routing.router, seed, routing.options)
    entry = _entry(
        workload,
        pools,
        ranks,
        router,
        hand_over,
        make,
        lambda i: _arrival(workload, content, i, agenda.now_ns),
        in_service,
    )
    doors = [door for made in ranks for door in made.doors]
    leases = [_lease(pool, failures) for pool in pools for _ in range(pool.ranks)]
    cluster = Cluster(agenda, client, replicas, entry, elastic, [_ranks_of(door) for door in doors], hand_over, leases)
    in_service.append(cluster.lifecycle)
    cluster.run(on_progress)
    for replica in replicas:
        if replica.port is not None and replica.port.reports:
            replica.hear(replica.port)
    requests, steps = client.table(), log.table()
    stages = tuple(None if made.stage_log is None else made.stage_log.table() for made in ranks)
    bounds = np.searchsorted(steps.replica, np.cumsum([0, *(len(made.replicas) for made in ranks)]))
    transfers = None if hand_over is None else hand_over.table()
    speculation = merged([verified.table() for made in ranks for verified in made.verified])
    checks = check_conservation(
        requests,
        steps,
        [scheduler for made in ranks for scheduler in made.schedulers],
        unseen_tokens=sum(replica.dropped_rows for replica in replicas) + (hand_over.unseen_tokens if hand_over else 0),
        accepted_tokens=sum(replica.accepted_tokens for replica in replicas),
        ends=client.ends,
        cut_tokens=client.cut_tokens,
        committed=None if speculation is None else speculation.committed,
        stages=[(int(a), int(b), found) for a, b, found in zip(bounds[:-1], bounds[1:], stages, strict=True)],
        transfers=transfers,
        every_byte=hand_over is None or hand_over.every_byte_counts(),
        sessions=workload.sessions,
        pools=workload.pools,
    )
    if cache_tiers is not None:
        checks |= cache_tiers.checks()
    if swap is not None:
        checks |= swap_checks(swap, [replica.port for replica in replicas if isinstance(replica.port, SwapPort)])
    silent = [
        replica
        for pool, made in zip(pools, ranks, strict=True)
        for replica in made.replicas
        if pool.role != "prefill" and not replica.tells_follows
    ]
    itl_ns, itl_count = inter_token_latencies(steps, silent, client.itl)
    cpu_s = time.process_time() - started
    links = None if hand_over is None else hand_over.links()
    retries, moments = {}, list(client.moments)
    unserved_ns: Counter[int] = Counter()
    if cluster.lifecycle is not None:
        retries = cluster.lifecycle.retries
        moments += cluster.lifecycle.moments
        unserved_ns.update(cluster.lifecycle.unserved_ns)
    if hand_over is not None:
        moments += hand_over.cuts
        unserved_ns.update(hand_over.unserved_ns)
    return ExactRun(
        requests,
        steps,
        itl_ns,
        itl_count,
        checks,
        agenda.events,
        cpu_s,
        stages,
        transfers,
        links,
        retries,
        dict(unserved_ns),
        tuple(sorted(moments, key=lambda moment: moment.at_ns)),
        speculation,
        () if cache_tiers is None else tuple(cache_tiers.counts),
        swap,
    )


def _hand_over(
    pools: Sequence[EnginePool],
    agenda: Agenda,
    client: Client,
    topology: Topology,
    costs: HandOverCosts,
    failures: Failures | None,
) -> HandOver:
    """As the engine of the prefill and decode pools does it; they have one."""
    roles = roles_of(next(pool.scheduler for pool in pools if pool.role != "both"))
    assert roles is not None, "checked when the fleet was built"
    return hand_over_of(roles, costs.layers > 0)(
        agenda, client, topology, costs, keeps_token=roles.keeps_token, failures=failures
    )


def _ranks_of(door: Door) -> list[Replica]:
    """The ranks behind a door."""
    target = door.target
    if isinstance(target, RankGroup):
        return list(target.ranks)
    assert isinstance(target, Replica)
    return [target]


def _decoders(
    pools: Sequence[EnginePool], ranks: Sequence[PoolRanks], prompt: int, outputs: int
) -> tuple[int, tuple[int, ...]] | None:
    """The decode pools that give a request the most tokens, and how many; None if none can serve it."""
    served = {k: ranks[k].serves(prompt, outputs) for k, pool in enumerate(pools) if pool.role == "decode"}
    most = max((tokens for tokens in served.values() if tokens is not None), default=None)
    return None if most is None else (most, tuple(k for k, tokens in served.items() if tokens == most))


def _decode_chooser(
    pools: Sequence[EnginePool],
    ranks: Sequence[PoolRanks],
    router: Router,
    workload: Workload,
    rate: Callable[[int, int], float],
    in_service: Sequence[Lifecycle | None],
) -> Callable[[Arrival, int], int]:
    """The decode rank for a request of a prefill rank, among those in service that can serve it; `NOBODY` without any.

    `rate`: what one more transfer would have from one rank to another; to a replica, to its first.
    """
    choosers: dict[tuple[tuple[int, ...], int], tuple[Callable[[Arrival], int | None], list[int]] | None] = {}

    def choose(arrival: Arrival, source: int) -> int:
        found = _decoders(pools, ranks, arrival.prompt_tokens, int(workload.output_tokens[arrival.index]))
        assert found is not None, "turned away at the entry"
        lifecycle = in_service[0]
        key = found[1], 0 if lifecycle is None else lifecycle.version
        if key not in choosers:
            doors = _open_doors(found[1], ranks, lifecycle)
            firsts = [_ranks_of(door)[0].index for door in doors]
            choosers[key] = (chooser(router, doors), firsts) if doors else None
        picked = choosers[key]
        if picked is None:
            return NOBODY
        chosen, firsts = picked
        target = chosen(replace(arrival, rate_to=lambda place: rate(source, firsts[place])))
        if target is None:
            raise ValueError("deployment.decode_router turned a request away whose prompt was prefilled; it must not.")
        return target

    return choose


def _open_doors(able: Sequence[int], ranks: Sequence[PoolRanks], lifecycle: Lifecycle | None) -> list[Door]:
    """The doors of the replicas of some pools that are in service."""
    doors = [door for k in able for door in ranks[k].doors]
    if lifecycle is None:
        return doors
    numbered = {id(door): number for number, door in enumerate(door for made in ranks for door in made.doors)}
    return [door for door in doors if lifecycle.up[numbered[id(door)]]]


def _lease(pool: EnginePool, failures: Failures | None) -> Lease:
    """How long a rank of a pool holds blocks for a reader: as the user says, or its engine."""
    if failures is not None and failures.expires:
        return Lease(failures.lease_s)
    connector = pool.settings.profile.connector
    return Lease(connector.lease_s, connector.renews_lease)


def _arrival(workload: Workload, content: Sequence[np.ndarray] | None, i: int, now_ns: int) -> Arrival:
    """Request i as a router sees it."""
    prompt = int(workload.prompt_tokens[i])
    priority = 0 if workload.priority is None else int(workload.priority[i])
    says = None if content is None else content[i][:prompt]
    session = None if workload.sessions is None else workload.sessions.of(i)
    return Arrival(i, prompt, priority, now_ns, says, session=session)


def _request_maker(
    workload: Workload,
    replicas: Sequence[Replica],
    named: Sequence[bool],
    content: Sequence[np.ndarray] | None,
) -> Callable[[int, int, int], Request]:
    """Makes request i for the scheduler of a rank, with so many tokens to emit."""
    prompts = workload.prompt_tokens.tolist()
    priorities = [0] * len(prompts) if workload.priority is None else workload.priority.tolist()

    def make(rank: int, i: int, outputs: int) -> Request:
        of_type = replicas[rank].scheduler.request_type
        says = content[i] if content is not None and named[rank] else None
        return of_type(i, prompts[i], outputs, says, priorities[i])

    return make


def _entry(
    workload: Workload,
    pools: Sequence[EnginePool],
    ranks: Sequence[PoolRanks],
    router: Router,
    hand_over: HandOver | None,
    make: Callable[[int, int, int], Request],
    arrival: Callable[[int], Arrival],
    in_service: Sequence[Lifecycle | None],
) -> Entry:
    """Where the client's requests go: to the pools that prefill, among them those that can serve a request.

    A prefill instance has one token to emit; how many there will be is for the decode instances, of which one must be
    able to serve the request, and in service.
    """
    entering = [k for k, pool in enumerate(pools) if pool.role != "decode"]
    lengths = workload.prompt_tokens.tolist(), workload.output_tokens.tolist()
    decoding: dict[tuple[tuple[int, ...], int], bool] = {}
    pool_of = [k for k, made in enumerate(ranks) for _ in made.replicas]
    choosers: dict[tuple[tuple[int, ...], int], Callable[[Arrival], int | None] | None] = {}

    def serves(k: int, prompt: int, outputs: int) -> int | None:
        if pools[k].role == "both":
            return ranks[k].serves(prompt, outputs)
        if ranks[k].serves(prompt, 1) is None:
            return None
        found = _decoders(pools, ranks, prompt, outputs)
        return None if found is None else found[0]

    def choose(i: int, able: tuple[int, ...]) -> int | None:
        lifecycle = in_service[0]
        if lifecycle is not None and hand_over is not None and not decodes(i, lifecycle):
            able = tuple(k for k in able if pools[entering[k]].role == "both")
        key = able, 0 if lifecycle is None else lifecycle.version
        if key not in choosers:
            doors = _open_doors([entering[k] for k in able], ranks, lifecycle)
            choosers[key] = chooser(router, doors) if doors else None
        pick = choosers[key]
        return NOBODY if pick is None else pick(arrival(i))

    def decodes(i: int, lifecycle: Lifecycle) -> bool:
        found = _decoders(pools, ranks, lengths[0][i], lengths[1][i])
        if found is None:
            return False
        key = found[1], lifecycle.version
        if key not in decoding:
            decoding[key] = bool(_open_doors(found[1], ranks, lifecycle))
        return decoding[key]

    def make_first(rank: int, i: int, outputs: int) -> Request | None:
        if hand_over is None or pools[pool_of[rank]].role == "both":
            return make(rank, i, outputs)
        return hand_over.arrived(i, rank, outputs)

    return Entry(
        [partial(serves, k) for k in entering],
        choose,
        [entering.index(k) if k in entering else -1 for k in pool_of],
        make_first,
    )


def inter_token_latencies(
    steps: StepTable, silent: Sequence[Replica], told: dict[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """All inter-token latencies of a run, as values and multiplicities.

    `told`: how often each occurred, as far as the client knows. Of the `silent` replicas it does not: there a request
    that decodes in a batch got its token before from the replica's previous batch, so each of their `steps` contributes
    `decodes` times the distance of the two times at which outputs were delivered.
    """
    values = np.fromiter(told.keys(), np.int64, len(told))
    counts = np.fromiter(told.values(), np.int64, len(told))
    if not silent:
        return values, counts
    delivered_ns = np.concatenate([np.array(replica.delivered_ns, np.int64) for replica in silent])
    executed = steps.prefill_tokens + steps.decodes > 0  # dummy batches of ranks in lockstep deliver nothing
    executed &= np.isin(steps.replica, [replica.index for replica in silent])
    replica, decodes = steps.replica[executed], steps.decodes[executed]
    same = np.flatnonzero(replica[1:] == replica[:-1]) + 1
    gaps = delivered_ns[same] - delivered_ns[same - 1]
    decodes = decodes[same]
    used = decodes > 0
    values, counts = np.concatenate([gaps[used], values]), np.concatenate([decodes[used], counts])
    if (counts >= 0).all():
        return values, counts
    values, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, counts, len(values)).astype(np.int64)  # first tokens are taken off again
    return values[counts > 0], counts[counts > 0]

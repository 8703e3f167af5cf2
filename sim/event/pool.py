"""One pool of a fleet: equal engines with one job, each rank of them a scheduler, a device and a loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from sim.cost.attention_ffn import AttentionFfnPrices
from sim.cost.drafting import DraftedPrices
from sim.cost.lockstep import LockstepPrices
from sim.cost.stages import StagePrices
from sim.cost.table import PriceTable
from sim.deployment.engine import EngineSettings
from sim.deployment.tiers import Tier
from sim.event.batch_queue import BatchQueue
from sim.event.client import Client
from sim.event.handover.base import HandOver
from sim.event.handover.ports import DecodePort, KVPort, PrefillPort
from sim.event.handover.sides import DecodeSide, PrefillSide
from sim.event.log import StepLog
from sim.event.pricer import pricer
from sim.event.ranks import free_ranks, lockstep_ranks
from sim.event.replica import Port, Replica, Watcher
from sim.event.routing.base import Door
from sim.event.servable import Entrance, Trial
from sim.event.stages import StagedReplica, StageLog
from sim.event.swap import SwapPort
from sim.event.tiers import CacheTiers, TierPort
from sim.event.verified import Verified
from sim.memory.shape import CacheShape, GroupShape
from sim.runtime.speculation import DrawnDrafts, NothingRight
from sim.scheduler.base import Scheduler
from sim.scheduler.find import make_scheduler, make_speculative, make_swapping, make_tiered, roles_of
from sim.scheduler.hooks import Connected, Drafting
from sim.units import to_ns


Prices = PriceTable | DraftedPrices | StagePrices | LockstepPrices | AttentionFfnPrices
"""Of one stage, with drafts or without; of each of several; or of data-parallel ranks that run together, with the
experts or without."""


@dataclass(frozen=True)
class EnginePool:
    """`replicas` equal engines, each of `data_parallel` ranks with `num_gpu_blocks` KV blocks (one the null block).

    `groups` share the blocks. `role`: `both`, `prefill` or `decode`. `block_bytes`: of one block of each group on all
    devices of a rank, for transfers. `tiers` lie behind the cache of each rank, over a host link of so many bytes/s, or
    there is room in the host for `swap_blocks` of its preempted requests.
    """

    settings: EngineSettings
    prices: Prices
    num_gpu_blocks: int
    groups: tuple[GroupShape, ...]
    replicas: int = 1
    data_parallel: int = 1
    scheduler: str = "vllm"
    role: str = "both"
    block_bytes: tuple[float, ...] = (0.0,)
    name: str = ""
    tiers: tuple[Tier, ...] = ()
    swap_blocks: int = 0
    host_bytes_per_s: float = 0.0

    @property
    def ranks(self) -> int:
        """Schedulers, each with a queue and a cache of its own."""
        return self.replicas * self.data_parallel


@dataclass(frozen=True)
class PoolRanks:
    """A pool's ranks in order, the door of each replica, the log of its stages, and what it can ever serve."""

    replicas: list[Replica]
    doors: list[Door]
    serves: Entrance
    stage_log: StageLog | None = None
    schedulers: list[Scheduler] = field(default_factory=list)
    named: bool = False
    verified: tuple[Verified, ...] = ()


def make_ranks(
    pool: EnginePool,
    first: int,
    named: bool,
    client: Client,
    hand_over: HandOver | None,
    log: StepLog,
    now: Callable[[], int],
    seed: int = 0,
    tiers: CacheTiers | None = None,
    swap: Callable[[], SwapPort] | None = None,
) -> PoolRanks:
    """All ranks of a pool, numbered from `first`. `named`: prefixes are reused, so blocks have an identity.

    With a `hand_over`, those of role `prefill` and `decode` hand over and take up through it. `now`: the time at which
    a request comes. `seed`: of the drafts that are accepted. `tiers`: what lies behind their caches;
    `swap`: makes the place of a rank's preempted KV.
    """
    settings, prices = pool.settings, pool.prices
    cache = CacheShape(pool.num_gpu_blocks - 1, named, pool.groups)
    ports: list[KVPort | TierPort | SwapPort | None]
    ports = [_port(pool.role, first + place, hand_over) for place in range(pool.ranks)]
    if tiers is not None:
        ports = [TierPort(place, tiers, settings.block_size) for place in range(pool.ranks)]
    if swap is not None:
        ports = [swap() for _ in range(pool.ranks)]
    watchers = [_watcher(pool.role, first + place, client, hand_over) for place in range(pool.ranks)]
    schedulers = [_scheduler(pool, cache, port, _drafts(pool, seed)) for port in ports]
    serves = Entrance(lambda: trial_of(pool, replace(cache, named=False)), settings, cache)
    if isinstance(prices, LockstepPrices | AttentionFfnPrices):
        replicas, doors = lockstep_ranks(
            first, schedulers, settings, prices, watchers, ports, log, pool.data_parallel, now
        )
        return PoolRanks(replicas, doors, serves, None, schedulers, named)
    stage_log = StageLog(len(prices.tables)) if isinstance(prices, StagePrices) else None
    replicas = _loops(first, schedulers, settings, prices, watchers, ports, log, stage_log)
    doors = free_ranks(first, replicas, settings, pool.data_parallel)
    return PoolRanks(replicas, doors, serves, stage_log, schedulers, named, _counted(pool, replicas))


def _loops(
    first: int,
    schedulers: list[Scheduler],
    settings: EngineSettings,
    prices: PriceTable | DraftedPrices | StagePrices,
    watchers: Sequence[Watcher],
    ports: Sequence[Port | None],
    log: StepLog,
    stage_log: StageLog | None,
) -> list[Replica]:
    """A replica around each scheduler.

    With several batches in flight the host's time can hide behind the device's, and the loop may sleep; with one it
    does neither (the price of a step has the host's time in it).
    """
    profile, depth = settings.profile, settings.batches_in_flight
    host_ns = to_ns(profile.host_step_s) if depth > 1 else 0
    idle_sleep_ns = to_ns(profile.idle_sleep_s) if depth > 1 else 0
    queues = [BatchQueue(scheduler, depth, not profile.nonempty_batch_returns) for scheduler in schedulers]
    each = list(enumerate(zip(queues, watchers, ports, strict=True), first))
    if isinstance(prices, PriceTable | DraftedPrices):
        price = pricer(prices, settings)
        return [
            Replica(index, queue, price, watcher, log, host_ns=host_ns, idle_sleep_ns=idle_sleep_ns, port=port)
            for index, (queue, watcher, port) in each
        ]
    assert stage_log is not None
    pricers = {id(table): pricer(table, settings) for table in prices.tables}
    ahead = settings.async_scheduling
    return [
        StagedReplica(
            index,
            queue,
            [pricers[id(table)] for table in prices.tables],
            watcher,
            log,
            stage_log=stage_log,
            hand_over_ns=[to_ns(seconds) for seconds in prices.hand_over_s.tolist()],
            return_ns=to_ns(prices.return_s) if ahead else None,
            one_at_a_time=ahead and not profile.async_stages_overlap,
            host_ns=host_ns,
            idle_sleep_ns=idle_sleep_ns,
            port=port,
        )
        for index, (queue, watcher, port) in each
    ]


def trial_of(pool: EnginePool, cache: CacheShape) -> Trial:
    """A scheduler of this pool alone; in a decode pool a prompt's KV is there with the next step."""
    if pool.role != "decode":
        speculation = pool.settings.speculation
        return Trial(_scheduler(pool, cache, None, None if speculation is None else NothingRight(speculation)))
    port = DecodePort(0, lambda index, request, blocks: port.arrived(request))
    return Trial(_scheduler(pool, cache, port), port.report)


def _port(role: str, index: int, hand_over: HandOver | None) -> KVPort | None:
    if hand_over is None or role == "both":
        return None
    return PrefillPort(index, hand_over.computed) if role == "prefill" else _decode_port(index, hand_over)


def _decode_port(index: int, hand_over: HandOver) -> DecodePort:
    return DecodePort(index, hand_over.begin, hand_over.failures, hand_over.lost)


def _watcher(role: str, index: int, client: Client, hand_over: HandOver | None) -> Watcher:
    if hand_over is None or role == "both":
        return client
    return PrefillSide(index, hand_over) if role == "prefill" else DecodeSide(hand_over)


def _drafts(pool: EnginePool, seed: int) -> DrawnDrafts | None:
    speculation = pool.settings.speculation
    return None if speculation is None else DrawnDrafts(speculation, seed)


def _counted(pool: EnginePool, replicas: Sequence[Replica]) -> tuple[Verified, ...]:
    """What counts each replica's drafts; nothing where there are none."""
    speculation = pool.settings.speculation
    if speculation is None:
        return ()
    found = tuple(Verified(speculation.method, speculation.tokens) for _ in replicas)
    for replica, verified in zip(replicas, found, strict=True):
        replica.on_output = verified.count
    return found


def _scheduler(
    pool: EnginePool,
    cache: CacheShape,
    port: KVPort | TierPort | SwapPort | None,
    progress: DrawnDrafts | None = None,
) -> Scheduler:
    speculation = pool.settings.speculation
    if port is None and speculation is not None and progress is not None:
        drafting = Drafting(speculation.tokens, speculation.lookahead)
        return make_speculative(pool.scheduler, pool.settings, cache, drafting, progress)
    if port is None:
        return make_scheduler(pool.scheduler, pool.settings, cache)
    if isinstance(port, SwapPort):
        return make_swapping(pool.scheduler, pool.settings, cache, port)
    if isinstance(port, TierPort):
        tiered = make_tiered(pool.scheduler, pool.settings, cache, port)
        port.scheduler = cast(Connected, tiered)
        return tiered
    roles = roles_of(pool.scheduler)
    assert roles is not None, "checked when the fleet was built"
    make = roles.prefill if pool.role == "prefill" else roles.decode
    port.scheduler = made = make(pool.settings, cache, port)
    return cast(Scheduler, made)

"""The data-parallel ranks of a pool's replicas, and the door of each replica: which of its ranks gets a request."""

from collections.abc import Callable, Sequence

from sim.cost.attention_ffn import AttentionFfnPrices
from sim.cost.lockstep import LockstepPrices
from sim.deployment.engine import EngineSettings
from sim.event.attention_ffn import AttentionFfnPricer
from sim.event.balance import Queues, balancer, target_of
from sim.event.batch_queue import BatchQueue
from sim.event.cluster import check_progress
from sim.event.lockstep import GroupPrice, LockstepGroup, LockstepPricer, LockstepRank
from sim.event.log import StepLog
from sim.event.replica import Port, Replica, Watcher
from sim.event.routing.base import Door, Target
from sim.scheduler.base import Scheduler
from sim.units import to_ns


def lockstep_ranks(
    first: int,
    schedulers: Sequence[Scheduler],
    settings: EngineSettings,
    prices: LockstepPrices | AttentionFfnPrices,
    watchers: Sequence[Watcher],
    ports: Sequence[Port | None],
    log: StepLog,
    data_parallel: int,
    now: Callable[[], int],
) -> tuple[list[Replica], list[Door]]:
    """A rank around each scheduler, numbered from `first`, `data_parallel` of them to a group with one door."""
    profile, depth = settings.profile, settings.batches_in_flight
    host_ns = to_ns(profile.host_step_s) if depth > 1 else 0
    interval_ns = to_ns(profile.parallel.stats_interval_s)
    price: GroupPrice
    if isinstance(prices, AttentionFfnPrices):
        price = AttentionFfnPricer(prices, settings)
    else:
        price = LockstepPricer(prices, settings)
    ranks: list[Replica] = []
    doors: list[Door] = []
    for start in range(0, len(schedulers), data_parallel):
        group = LockstepGroup(price, check_progress)
        queues = Queues(data_parallel, interval_ns) if profile.parallel.balance == "queues" else None
        join = getattr(schedulers[start], "join", None)
        if join is not None:
            join(schedulers[start : start + data_parallel])
        for place in range(start, start + data_parallel):
            queue = BatchQueue(schedulers[place], depth, not profile.nonempty_batch_returns)
            rank = LockstepRank(
                first + place,
                queue,
                watchers[place],
                log,
                group=group,
                queues=queues,
                host_ns=host_ns,
                port=ports[place],
            )
            ranks.append(rank)
        doors.append(_door(first + start, group, balancer(profile.parallel.balance, group.ranks, queues, now)))
    return ranks, doors


def free_ranks(first: int, engines: Sequence[Replica], settings: EngineSettings, data_parallel: int) -> list[Door]:
    """The doors of replicas of `data_parallel` ranks each that run for themselves."""
    rule = settings.profile.parallel.balance
    doors = []
    for start in range(0, len(engines), data_parallel):
        ranks = engines[start : start + data_parallel]
        pick = balancer(rule, ranks, None, lambda: 0) if data_parallel > 1 else lambda: 0
        doors.append(_door(first + start, target_of(ranks), pick))
    return doors


def _door(first: int, target: Target, pick: Callable[[], int]) -> Door:
    return Door(target, lambda: first + pick())

"""The data-parallel ranks of every replica, and the way of a request to one of them: first a replica, then a rank."""

from collections.abc import Callable, Sequence

from sim.cost.lockstep import LockstepPrices
from sim.deployment.engine import EngineSettings
from sim.event.balance import Queues, RankGroup, balancer
from sim.event.batch_queue import BatchQueue
from sim.event.client import Client
from sim.event.cluster import check_progress
from sim.event.lockstep import LockstepGroup, LockstepPricer, LockstepRank
from sim.event.log import StepLog
from sim.event.replica import Replica
from sim.event.router import Router, Target
from sim.scheduler.base import Scheduler
from sim.units import to_ns


def lockstep_ranks(
    schedulers: Sequence[Scheduler],
    settings: EngineSettings,
    prices: LockstepPrices,
    client: Client,
    log: StepLog,
    data_parallel: int,
    router: Router,
) -> tuple[list[Replica], Router]:
    """A rank around each scheduler, `data_parallel` of them to a group, and the router over all ranks."""
    profile, depth = settings.profile, settings.batches_in_flight
    host_ns = to_ns(profile.host_step_s) if depth > 1 else 0
    interval_ns = to_ns(profile.parallel.stats_interval_s)
    price = LockstepPricer(prices, settings)
    ranks: list[Replica] = []
    groups: list[RankGroup] = []
    picks: list[Callable[[], int]] = []
    for start in range(0, len(schedulers), data_parallel):
        group = LockstepGroup(price, check_progress)
        queues = Queues(data_parallel, interval_ns) if profile.parallel.balance == "queues" else None
        join = getattr(schedulers[start], "join", None)
        if join is not None:
            join(schedulers[start : start + data_parallel])
        for index in range(start, start + data_parallel):
            queue = BatchQueue(schedulers[index], depth, not profile.nonempty_batch_returns)
            ranks.append(LockstepRank(index, queue, client, log, group=group, queues=queues, host_ns=host_ns))
        groups.append(group)
        picks.append(balancer(profile.parallel.balance, group.ranks, queues, lambda: client.next_ns))
    return ranks, _two_steps(router, groups, picks, data_parallel)


def free_ranks(engines: Sequence[Replica], settings: EngineSettings, data_parallel: int, router: Router) -> Router:
    """The router over ranks that run for themselves, `data_parallel` of them to a replica."""
    rule = settings.profile.parallel.balance
    groups = [RankGroup(engines[i : i + data_parallel]) for i in range(0, len(engines), data_parallel)]
    picks = [balancer(rule, group.ranks, None, lambda: 0) for group in groups]
    return _two_steps(router, groups, picks, data_parallel)


def _two_steps(
    router: Router, groups: Sequence[RankGroup], picks: Sequence[Callable[[], int]], data_parallel: int
) -> Router:
    """`router` picks a replica, the replica's front end a rank."""

    def pick(index: int, ranks: Sequence[Target]) -> int:
        del ranks
        group = router(index, groups) if len(groups) > 1 else 0
        return group * data_parallel + picks[group]()

    return pick

"""The exact engine on one plan: build the replicas, run the workload, hand over the tables."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.cost.lockstep import LockstepPrices
from sim.cost.stages import StagePrices
from sim.cost.table import PriceTable
from sim.deployment.engine import EngineSettings
from sim.event.batch_queue import BatchQueue
from sim.event.checks import check_conservation
from sim.event.client import Client
from sim.event.cluster import run_cluster
from sim.event.content import request_content
from sim.event.log import StepLog
from sim.event.pricer import Pricer
from sim.event.ranks import free_ranks, lockstep_ranks
from sim.event.replica import Replica
from sim.event.router import make_router
from sim.event.servable import Entrance
from sim.event.stages import StagedReplica, StageLog
from sim.memory.shape import CacheShape, GroupShape
from sim.report.result import RequestTable, StageTable, StepTable
from sim.scheduler.base import Scheduler
from sim.scheduler.find import make_scheduler
from sim.units import to_ns
from sim.workload.trace import Workload


@dataclass(frozen=True)
class ExactRun:
    """What the exact engine hands over: tables, inter-token latencies with multiplicities, checks, counts.

    `stages`: where a replica has several.
    """

    requests: RequestTable
    steps: StepTable
    itl_ns: np.ndarray
    itl_count: np.ndarray
    checks: dict[str, bool]
    events: int
    cpu_s: float
    stages: StageTable | None = None


def run_exact(
    workload: Workload,
    settings: EngineSettings,
    prices: PriceTable | StagePrices | LockstepPrices,
    *,
    num_gpu_blocks: int,
    groups: tuple[GroupShape, ...] | None = None,
    replicas: int = 1,
    data_parallel: int = 1,
    scheduler: str = "vllm",
    router: str = "round_robin",
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> ExactRun:
    """Simulate `workload` on `replicas` equal engines of `num_gpu_blocks` KV blocks each (one is the null block).

    `prices` of one stage, of each of several, or of data-parallel ranks in lockstep. `data_parallel`: ranks of each
    replica, every one an engine with blocks of its own; the tables number them through, replica by replica. `groups`
    share the blocks; None: one of full attention. Prefixes are reused if the settings say so and the workload has
    content. Bit for bit the same for the same arguments.

    **Raises:** `Stuck` (a `ValueError`) for a run that would never end.
    """
    started = time.process_time()
    content = request_content(workload) if settings.prefix_caching else None
    groups = groups or (GroupShape("full", settings.block_size),)
    cache = CacheShape(num_gpu_blocks - 1, content is not None, groups)
    profile = settings.profile
    client = Client(workload, to_ns(profile.api_pickup_s), to_ns(profile.api_door_s), replicas)
    log = StepLog()
    schedulers = [make_scheduler(scheduler, settings, cache) for _ in range(replicas * data_parallel)]
    route = make_router(router, seed)
    stage_log = None
    engines: list[Replica]
    if isinstance(prices, LockstepPrices):
        engines, route = lockstep_ranks(schedulers, settings, prices, client, log, data_parallel, route)
    else:
        engines, stage_log = _replicas(schedulers, settings, prices, client, log)
        if data_parallel > 1:
            route = free_ranks(engines, settings, data_parallel, route)
    entrance = Entrance(lambda: make_scheduler(scheduler, settings, replace(cache, named=False)), settings, cache)
    events = run_cluster(client, engines, route, entrance, content, on_progress)
    requests, steps = client.table(), log.table()
    stages = None if stage_log is None else stage_log.table()
    checks = check_conservation(
        requests,
        steps,
        schedulers,
        dropped_rows=sum(engine.dropped_rows for engine in engines),
        accepted_tokens=sum(engine.accepted_tokens for engine in engines),
        ends=client.ends,
        stages=stages,
    )
    told = any(engine.tells_follows for engine in engines)
    delivered_ns = np.concatenate([np.array(engine.delivered_ns, np.int64) for engine in engines])
    itl_ns, itl_count = inter_token_latencies(None if told else steps, delivered_ns, client.itl)
    return ExactRun(requests, steps, itl_ns, itl_count, checks, events, time.process_time() - started, stages)


def _replicas(
    schedulers: Sequence[Scheduler],
    settings: EngineSettings,
    prices: PriceTable | StagePrices,
    client: Client,
    log: StepLog,
) -> tuple[list[Replica], StageLog | None]:
    """A replica around each scheduler, and the log of stages that they write, if there are several.

    With several batches in flight the host's time can hide behind the device's, and the loop may sleep; with one it
    does neither (the price of a step has the host's time in it).
    """
    profile, depth = settings.profile, settings.batches_in_flight
    loop = {
        "host_ns": to_ns(profile.host_step_s) if depth > 1 else 0,
        "idle_sleep_ns": to_ns(profile.idle_sleep_s) if depth > 1 else 0,
    }
    queues = [BatchQueue(scheduler, depth, not profile.nonempty_batch_returns) for scheduler in schedulers]
    if isinstance(prices, PriceTable):
        pricer = Pricer(prices, settings)
        return [Replica(index, queue, pricer, client, log, **loop) for index, queue in enumerate(queues)], None
    pricers = {id(table): Pricer(table, settings) for table in prices.tables}
    stage_log = StageLog(len(prices.tables))
    ahead = settings.async_scheduling
    staged: list[Replica] = [
        StagedReplica(
            index,
            queue,
            [pricers[id(table)] for table in prices.tables],
            client,
            log,
            stage_log=stage_log,
            hand_over_ns=[to_ns(seconds) for seconds in prices.hand_over_s.tolist()],
            return_ns=to_ns(prices.return_s) if ahead else None,
            one_at_a_time=ahead and not profile.async_stages_overlap,
            **loop,
        )
        for index, queue in enumerate(queues)
    ]
    return staged, stage_log


def inter_token_latencies(
    steps: StepTable | None, delivered_ns: np.ndarray, told: dict[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """All inter-token latencies of a run, as values and multiplicities.

    `told`: how often each occurred, where the client knows. Without that, a request that decodes in a batch got its
    token before from the replica's previous batch, so each of the `steps` contributes `decodes` times the distance of
    the two times in `delivered_ns`.
    """
    values = np.fromiter(told.keys(), np.int64, len(told))
    counts = np.fromiter(told.values(), np.int64, len(told))
    if steps is None:
        return values, counts
    executed = steps.prefill_tokens + steps.decodes > 0  # dummy batches of ranks in lockstep deliver nothing
    replica, decodes = steps.replica[executed], steps.decodes[executed]
    same = np.flatnonzero(replica[1:] == replica[:-1]) + 1
    gaps = delivered_ns[same] - delivered_ns[same - 1]
    decodes = decodes[same]
    used = decodes > 0
    return np.concatenate([gaps[used], values]), np.concatenate([decodes[used], counts])

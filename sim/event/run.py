"""The exact engine on one plan: build the replicas, run the workload, hand over the tables."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.cost.table import PriceTable
from sim.deployment.engine import EngineSettings
from sim.event.checks import check_conservation
from sim.event.client import Client
from sim.event.cluster import run_cluster
from sim.event.content import request_content
from sim.event.log import StepLog
from sim.event.pricer import Pricer
from sim.event.replica import Replica
from sim.event.router import make_router
from sim.memory.shape import CacheShape, GroupShape
from sim.report.result import RequestTable, StepTable
from sim.scheduler.find import make_scheduler
from sim.units import to_ns
from sim.workload.trace import Workload


MOST_IN_FLIGHT = 2
"""Deeper queues are those of pipeline stages, whose hand-over is not modelled."""


@dataclass(frozen=True)
class ExactRun:
    """What the exact engine hands over: tables, inter-token latencies with multiplicities, checks, counts."""

    requests: RequestTable
    steps: StepTable
    itl_ns: np.ndarray
    itl_count: np.ndarray
    checks: dict[str, bool]
    events: int
    cpu_s: float


def servable_tokens(prompt: int, outputs: int, max_model_len: int, block_size: int, usable_blocks: int) -> int | None:
    """Tokens the engine emits for a request, cut at `max_model_len`, or None if it can never be served.

    A prompt needs room for one more token; the cache must hold all but the last token:
    `ceil((prompt + outputs - 1) / block_size) <= usable_blocks`.
    """
    outputs = min(outputs, max_model_len - prompt)
    if outputs < 1 or -(-(prompt + outputs - 1) // block_size) > usable_blocks:
        return None
    return outputs


def run_exact(
    workload: Workload,
    settings: EngineSettings,
    table: PriceTable,
    *,
    num_gpu_blocks: int,
    replicas: int = 1,
    scheduler: str = "vllm",
    router: str = "round_robin",
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> ExactRun:
    """Simulate `workload` on `replicas` equal engines of `num_gpu_blocks` KV blocks each (one is the null block).

    Prefixes are reused if the settings say so and the workload has content. Bit for bit the same for
    the same arguments. **Raises:** `ValueError` for more than two batches in flight.
    """
    if settings.batches_in_flight > MOST_IN_FLIGHT:
        raise ValueError(
            f"at most {MOST_IN_FLIGHT} batches in flight can be simulated, got {settings.batches_in_flight}: "
            "set deployment.pipeline_parallel to 1"
        )
    started = time.process_time()
    usable = num_gpu_blocks - 1
    content = request_content(workload) if settings.prefix_caching else None
    client = Client(workload, to_ns(settings.profile.api_pickup_s))
    log = StepLog()
    pricer = Pricer(table, settings)
    cache = CacheShape(usable, content is not None, (GroupShape("full", settings.block_size),))
    schedulers = [make_scheduler(scheduler, settings, cache) for _ in range(replicas)]
    engines = [
        Replica(
            index,
            one,
            pricer,
            client,
            log,
            depth=settings.batches_in_flight,
            host_ns=to_ns(settings.profile.host_step_s) if settings.batches_in_flight > 1 else 0,
            idle_sleep_ns=to_ns(settings.profile.idle_sleep_s) if settings.batches_in_flight > 1 else 0,
            fill_with_empty=not settings.profile.nonempty_batch_returns,
        )
        for index, one in enumerate(schedulers)
    ]

    def admit(prompt: int, outputs: int) -> int | None:
        return servable_tokens(prompt, outputs, settings.max_model_len, settings.block_size, usable)

    events = run_cluster(client, engines, make_router(router, seed), admit, content, on_progress)
    requests, steps = client.table(), log.table()
    checks = check_conservation(requests, steps, schedulers)
    itl_ns, itl_count = inter_token_latencies(steps, client.resumed_itl_ns)
    return ExactRun(requests, steps, itl_ns, itl_count, checks, events, time.process_time() - started)


def inter_token_latencies(steps: StepTable, resumed_ns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """All inter-token latencies of a run, as values and multiplicities.

    A request that decodes in a batch got its token before from the replica's previous batch, so each batch
    contributes `decodes` times the distance of the two ends; resumed requests add their gap once each.
    """
    same = np.flatnonzero(steps.replica[1:] == steps.replica[:-1]) + 1
    gaps = steps.end_ns[same] - steps.end_ns[same - 1]
    counts = steps.decodes[same]
    used = counts > 0
    values = np.concatenate([gaps[used], np.array(resumed_ns, dtype=np.int64)])
    return values, np.concatenate([counts[used], np.ones(len(resumed_ns), dtype=np.int64)])

"""The facade: from a configuration to a result, in steps that can be taken apart.

`build` checks everything and compiles a job; `run` simulates it with the exact engine, `sweep` many of them with the
wide one; `simulate` builds and runs from the overrides of the command line. A deployment of several pools is a `Fleet`,
which `prepare` compiles. Bad input is a `ValueError` of one sentence; a deployment that does not fit its memory is an
`Infeasible`, whose sentence says what would.
"""

import time
from collections.abc import Callable, Sequence

from conf.compose import compose
from conf.schema import SimulateConf
from sim.api.fleet import Fleet, build_fleet, run_fleet_of
from sim.api.job import Infeasible as Infeasible, Job as Job, build as build
from sim.api.outcome import assemble, timing
from sim.cost.table import PriceTable
from sim.event.cluster import OnProgress
from sim.event.elastic import elastic_of, is_elastic
from sim.event.run import run_exact
from sim.report.result import SimulationResult
from sim.scan.jobs import Status, servable, why_exact as lane_needs_exact
from sim.scan.recover import LaneRun
from sim.scan.wide import scan
from sim.scheduler.find import failure
from sim.units import to_ns
from sim.workload.experts import EVEN
from sim.workload.trace import Workload


LANE_CHECKS = ("every request ended once", "every block is free again", "tokens out = tokens asked for")
"""What the wide engine asserts when a lane ends (it raises otherwise)."""


def prepare(conf: SimulateConf, workload: Workload | None = None) -> Job | Fleet:
    """Check a configuration and compile it, whether it has one pool or several; see `build`."""
    return build_fleet(conf, workload) if conf.deployment.pools else build(conf, workload)


def run(job: Job | Fleet, on_progress: OnProgress | None = None) -> SimulationResult:
    """Simulate a job with the exact engine.

    `on_progress(ended, now_ns)` is called now and then with the requests that have ended and the simulated time.
    """
    if isinstance(job, Fleet):
        return run_fleet_of(job, on_progress)
    started = time.perf_counter()
    prices = job.prices()
    priced = time.perf_counter()
    deployment = job.conf.deployment
    scheduler = job.conf.engine.scheduler
    try:
        exact = run_exact(
            job.workload,
            job.plan.engine,
            prices,
            num_gpu_blocks=job.pool_blocks,
            groups=job.groups,
            replicas=deployment.replicas,
            data_parallel=deployment.data_parallel,
            scheduler=scheduler,
            router=deployment.router,
            router_options=deployment.router_options,
            elastic=elastic_of(deployment, {"": ("both", deployment.replicas)}, job.conf.seed),
            hold_ns=to_ns(deployment.session_hold_s),
            tiers=job.tiers,
            swap_blocks=job.swap_blocks,
            block_bytes=job.block_bytes[0],
            host_bytes_per_s=job.host_bytes_per_s,
            seed=job.conf.seed,
            on_progress=on_progress,
        )
    except Exception as error:
        raise failure(scheduler, error) from error
    simulated = time.perf_counter()
    result = assemble(job, exact, exact.steps, exact.checks, "exact")
    result.timing = timing(exact, started, priced, simulated)
    return result


def why_exact(job: Job | Fleet) -> str:
    """Why only the exact engine can run this job; empty if the wide one can."""
    if isinstance(job, Fleet):
        return "a deployment of several pools"
    if job.conf.experts.law != EVEN:
        return "experts that are drawn for every step"
    if is_elastic(job.conf.deployment):
        return "replicas that come and go"
    if job.conf.deployment.cache_tiers:
        return "tiers behind the KV cache"
    if job.conf.deployment.kv_swap_gb:
        return "KV swapped to the host"
    lane = job.lane_job()
    served, _ = servable(lane)
    return lane_needs_exact(lane, served)


def sweep(
    jobs: Sequence[Job],
    consume: Callable[[int, SimulationResult], None],
    on_progress: Callable[[int], None] | None = None,
) -> dict[int, str]:
    """Simulate many jobs side by side with the wide engine; `consume(job, result)` gets each as it ends.

    Returns the jobs that it cannot run, with the reason: they are for `run`. Results are those of the exact
    engine, to the nanosecond; jobs with equal plans share their price tables.
    """
    tables: list[PriceTable] = []
    table_of: dict[bytes, int] = {}
    lane_jobs = []
    for job in jobs:
        key = job.price_key()
        if key not in table_of:
            table_of[key] = len(tables)
            tables.append(job.price_table())
        lane_jobs.append(job.lane_job(table_of[key]))

    def reduce(index: int, lane: LaneRun) -> None:
        assert lane.steps is not None
        consume(index, assemble(jobs[index], lane, lane.steps, dict.fromkeys(LANE_CHECKS, True), "wide"))

    found = scan(lane_jobs, tables, log_steps=True, reduce=reduce, on_progress=on_progress)
    return {i: found.message[i] for i in range(len(jobs)) if found.status[i] != Status.OK}


def simulate(*overrides: str, workload: Workload | None = None) -> SimulationResult:
    """Run `headway simulate OVERRIDES` and return its result: `simulate("model=llama-3.1-8b", "workload.rate=10")`.

    **Raises:** `ValueError` for bad input, `Infeasible` for a deployment that does not fit.
    """
    return run(prepare(compose(overrides), workload))

"""A deployment of several pools: each compiled like a deployment of its own, simulated together."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conf.schema import SimulateConf
from sim.api.job import Infeasible, Job, bounds_ms, build
from sim.api.outcome import assemble, timing
from sim.api.transfers import costs_of, failures_of, hand_over_rows, not_modelled
from sim.deployment.pools import PoolSpec, pools_of
from sim.deployment.topology import Topology, lay_out
from sim.event.asked import KVSide, check_asked, check_kv
from sim.event.cluster import OnProgress
from sim.event.elastic import elastic_of, elastic_rows, may_fail
from sim.event.handover import Failures
from sim.event.pool import EnginePool, Prices
from sim.event.pooling import check_pooled_roles
from sim.event.run import ExactRun, Routing, run_fleet
from sim.report.result import PoolResult, RequestTable, SimulationResult, StepTable
from sim.scheduler.find import failure
from sim.workload.build import build_workload
from sim.workload.trace import Workload


@dataclass(frozen=True, eq=False)
class PoolJob:
    """One pool, compiled: its name, its role, and a job as if it were alone."""

    name: str
    role: str
    job: Job

    @property
    def ranks(self) -> int:
        """Schedulers of all its replicas."""
        deployment = self.job.conf.deployment
        return deployment.replicas * deployment.data_parallel

    @property
    def devices_per_rank(self) -> int:
        """Devices behind one scheduler."""
        deployment = self.job.conf.deployment
        return deployment.rank_devices


@dataclass(frozen=True, eq=False)
class Fleet:
    """A checked simulation of several pools. `topology`: where KV moves, if some pools only prefill."""

    conf: SimulateConf
    workload: Workload
    pools: tuple[PoolJob, ...]
    topology: Topology | None = None

    @property
    def disaggregated(self) -> bool:
        """Whether some pools only prefill and others only decode."""
        return self.topology is not None


def build_fleet(conf: SimulateConf, workload: Workload | None = None) -> Fleet:
    """Check a configuration with `deployment.pools` and compile it.

    **Raises:** `ValueError` for bad input and `Infeasible` for a pool that does not fit, both naming the pool.
    """
    specs = pools_of(conf.deployment, conf.hardware, conf.engine)
    check_asked(conf.deployment, specs, conf.seed)
    workload = workload if workload is not None else build_workload(conf.workload, conf.seed)
    if conf.deployment.cache_tiers:
        raise ValueError("deployment.cache_tiers are simulated for replicas of one kind only; set cache_tiers=none.")
    if conf.deployment.kv_swap_gb:
        raise ValueError("deployment.kv_swap_gb is simulated for replicas of one kind only; leave it out.")
    if conf.deployment.session_hold_s:
        raise ValueError("deployment.session_hold_s is simulated for replicas of one kind only; leave it out.")
    check_pooled_roles([spec.role for spec in specs], workload)
    pools = tuple(_compile(spec, conf, workload) for spec in specs)
    topology = None
    if any(spec.role == "prefill" for spec in specs):
        sides = [KVSide(spec, p.job.plan.engine, p.job.budget) for spec, p in zip(specs, pools, strict=True)]
        check_kv(sides, conf.deployment.transfer)
        _, efficiency = costs_of(conf, _scheduler(pools), 0)
        topology = lay_out(
            [(pool.name, pool.job.plan.device, pool.ranks, pool.devices_per_rank) for pool in pools],
            conf.deployment.transfer,
            efficiency,
        )
        _check_paths(topology, pools)
    return Fleet(conf, workload, pools, topology)


def _compile(spec: PoolSpec, conf: SimulateConf, workload: Workload) -> PoolJob:
    own = dataclasses.replace(conf, hardware=spec.device, engine=spec.engine, deployment=spec.deployment)
    try:
        return PoolJob(spec.name, spec.role, build(own, workload))
    except Infeasible as error:
        raise Infeasible(spec.refusal(error)) from error
    except ValueError as error:
        raise ValueError(spec.refusal(error)) from error


def _check_paths(topology: Topology, pools: Sequence[PoolJob]) -> None:
    """Raise `ValueError` for a prefill and a decode replica that no link joins."""
    firsts = np.cumsum([0, *(pool.ranks for pool in pools)]).tolist()
    for source, first in zip(pools, firsts, strict=False):
        for target, other in zip(pools, firsts, strict=False):
            if source.role == "prefill" and target.role == "decode":
                for one in range(first, first + source.ranks):
                    topology.path(one, other)


def _scheduler(pools: Sequence[PoolJob]) -> str:
    """That of the instances that hand over, which have one."""
    return next((pool for pool in pools if pool.role != "both"), pools[0]).job.conf.engine.scheduler


def _lease_s(fleet: Fleet) -> float:
    """How long prefill instances hold blocks for a reader of whom they hear nothing; 0 without any."""
    sides = (pool.job.plan.engine.profile.connector for pool in fleet.pools if pool.role == "prefill")
    return next((side.lease_s for side in sides), 0.0)


def _failures(fleet: Fleet) -> Failures | None:
    """What becomes of loads that fail: by themselves, or with their prefill instance where engines hear of it."""
    prefilling = [pool for pool in fleet.pools if pool.role == "prefill"]
    hear = all(p.job.plan.engine.profile.connector.reports_failed_loads for p in fleet.pools if p.role == "decode")
    gone = hear and may_fail(fleet.conf.deployment, [pool.name for pool in prefilling])
    return failures_of(fleet.conf, _lease_s(fleet), gone)


def _prices(fleet: Fleet) -> list[Prices]:
    """The prices of each pool; pools of equal plans share them."""
    made: dict[bytes, Prices] = {}
    found = []
    for pool in fleet.pools:
        key = pool.job.price_key()
        if key not in made:
            made[key] = pool.job.prices()
        found.append(made[key])
    return found


def run_fleet_of(fleet: Fleet, on_progress: OnProgress | None = None) -> SimulationResult:
    """Simulate a fleet with the exact engine."""
    started = time.perf_counter()
    prices = _prices(fleet)
    pools = [
        EnginePool(
            pool.job.plan.engine,
            prices[number],
            pool.job.pool_blocks,
            pool.job.groups,
            replicas=pool.job.conf.deployment.replicas,
            data_parallel=pool.job.conf.deployment.data_parallel,
            scheduler=pool.job.conf.engine.scheduler,
            role=pool.role,
            block_bytes=pool.job.block_bytes,
            name=pool.name,
        )
        for number, pool in enumerate(fleet.pools)
    ]
    priced = time.perf_counter()
    deployment = fleet.conf.deployment
    routing = Routing(
        deployment.router,
        deployment.decode_router,
        deployment.pairing == "at_arrival",
        deployment.router_options,
        deployment.decode_router_options,
    )
    layers = len(fleet.pools[0].job.plan.model.layers)
    costs, _ = costs_of(fleet.conf, _scheduler(fleet.pools), layers)
    try:
        exact = run_fleet(
            fleet.workload,
            pools,
            routing,
            topology=fleet.topology,
            costs=costs,
            failures=_failures(fleet),
            elastic=elastic_of(
                deployment,
                {pool.name: (pool.role, pool.job.conf.deployment.replicas) for pool in fleet.pools},
                fleet.conf.seed,
            ),
            seed=fleet.conf.seed,
            on_progress=on_progress,
        )
    except Exception as error:
        raise failure(fleet.pools[0].job.conf.engine.scheduler, error) from error
    simulated = time.perf_counter()
    result = _whole(fleet, exact, _pool_results(fleet, exact))
    result.timing = timing(exact, started, priced, simulated)
    return result


def _pool_results(fleet: Fleet, exact: ExactRun) -> list[PoolResult]:
    """The run as each pool saw it."""
    found = []
    first = 0
    for pool, stages in zip(fleet.pools, exact.pool_stages, strict=True):
        rows = slice(*np.searchsorted(exact.steps.replica, (first, first + pool.ranks)).tolist())
        steps = StepTable(
            **{field.name: getattr(exact.steps, field.name)[rows] for field in dataclasses.fields(StepTable)}
        )
        steps.replica = steps.replica - first
        nothing = np.zeros(0, np.int64)
        requests, numbers = _requests_of(exact, pool.role, first, first + pool.ranks)
        own = dataclasses.replace(
            exact,
            requests=requests,
            retries={at: exact.retries[i] for at, i in enumerate(numbers) if i in exact.retries},
            unserved_ns={at: exact.unserved_ns[i] for at, i in enumerate(numbers) if i in exact.unserved_ns},
            steps=steps,
            pool_stages=(stages,),
            itl_ns=nothing if pool.role == "prefill" else exact.itl_ns,
            itl_count=nothing if pool.role == "prefill" else exact.itl_count,
            transfers=None,
            links=None,
        )
        result = assemble(pool.job, own, steps, exact.checks, "exact")
        found.append(PoolResult(pool.name, pool.role, first, result))
        first += pool.ranks
    return found


def _requests_of(exact: ExactRun, role: str, first: int, stop: int) -> tuple[RequestTable, list[int]]:
    """The requests of a pool and their times there, and their numbers in the fleet.

    A prefill pool's requests come from clients, or when a decode instance has blocks for them, and end with its one
    token; a decode pool's come when its loop takes them up, and wait there for blocks, and once their KV has come for a
    seat: what counts as the wait is both, and what lies between as service.
    """
    requests, moved = exact.requests, exact.transfers
    columns = {field.name: getattr(requests, field.name) for field in dataclasses.fields(RequestTable)}
    columns = {name: values for name, values in columns.items() if values is not None}
    place = requests.replica
    if moved is not None and role != "both":
        place = moved.source if role == "prefill" else moved.target
    if moved is not None and role == "prefill":
        columns |= {"first_token_ns": moved.prefilled_ns, "finish_ns": moved.prefilled_ns}
        columns |= {"output_tokens": np.ones_like(requests.output_tokens)}
        if moved.decode_first:
            columns |= {"arrival_ns": moved.allocated_ns}
            columns.pop("retrieval_ns", None)
    if moved is not None and role == "decode":
        columns |= {"arrival_ns": moved.queued_ns, "queued_ns": moved.queued_ns}
        columns.pop("retrieval_ns", None)
        columns |= {"scheduled_ns": moved.allocated_ns + moved.seated_ns - moved.received_ns}
        again = 0 if moved.keeps_token else 1
        found = np.where(moved.failed > 0, 0, np.maximum(requests.prompt_tokens - again, 0))
        columns |= {"cached_tokens": found}
    mine = (place >= first) & (place < stop)
    columns = {name: values[mine] for name, values in columns.items()}
    return RequestTable(**columns | {"replica": place[mine] - first}), np.flatnonzero(mine).tolist()


def _whole(fleet: Fleet, exact: ExactRun, pools: list[PoolResult]) -> SimulationResult:
    """The fleet's result: what the clients saw, all steps, and each pool's own result beside them."""
    results = [pool.result for pool in pools]
    gpus = sum(result.gpus for result in results)
    names = [name for result in results for name in result.components_s]
    components = {
        name: np.concatenate([result.components_s.get(name, np.zeros(len(result.steps))) for result in results])
        for name in dict.fromkeys(names)
    }
    head = results[0]
    checks = dict(exact.checks)
    for result in results:
        for name, holds in result.checks.items():
            checks[name] = checks.get(name, True) and holds
    return dataclasses.replace(
        head,
        requests=exact.requests,
        steps=exact.steps,
        itl_ns=exact.itl_ns,
        itl_count=exact.itl_count,
        components_s=components,
        claim=None,
        device=" + ".join(dict.fromkeys(kind for result in results for kind in result.device.split(" + "))),
        engine_label=" + ".join(dict.fromkeys(result.engine_label for result in results)),
        gpus=gpus,
        num_gpu_blocks=min(result.num_gpu_blocks for result in results),
        usd_per_gpu_hour=_mean_price(results, gpus),
        memory=None,
        experts=None,
        assumptions=_assumptions(fleet, pools),
        not_modelled=_not_modelled(fleet, results),
        config=dataclasses.asdict(fleet.conf),
        checks=checks,
        settings={},
        log={},
        replicas=sum(result.replicas for result in results),
        data_parallel=1,
        stages=None,
        slo_ms=bounds_ms(fleet.conf),
        taught=any(result.taught for result in results),
        pools=tuple(pools),
        transfers=exact.transfers,
        links=exact.links,
        retries=exact.retries,
        unserved_ns=exact.unserved_ns,
        moments=exact.moments,
        attention_ffn=None,
    )


def _mean_price(results: Sequence[SimulationResult], gpus: int) -> float:
    """USD per device and hour, 0 if that of one pool is not known."""
    if not all(result.usd_per_gpu_hour for result in results):
        return 0.0
    return sum(result.usd_per_gpu_hour * result.gpus for result in results) / gpus


def _assumptions(fleet: Fleet, pools: Sequence[PoolResult]) -> list[tuple[str, str, str]]:
    """Rows that hold for all pools once, the others with the pool's name; and those of the hand-over."""
    every = [set(pool.result.assumptions) for pool in pools]
    common = set.intersection(*every)
    rows = [row for row in pools[0].result.assumptions if row in common]
    for pool in pools:
        rows += [(f"{pool.name}: {row[0]}", *row[1:]) for row in pool.result.assumptions if row not in common]
    deployment = fleet.conf.deployment
    rows.append(("router", deployment.router, "deployment.router"))
    rows += elastic_rows(deployment)
    return rows + (hand_over_rows(fleet.conf, _scheduler(fleet.pools), _failures(fleet)) if fleet.disaggregated else [])


def _not_modelled(fleet: Fleet, results: Sequence[SimulationResult]) -> list[str]:
    found = list(dict.fromkeys(sentence for result in results for sentence in result.not_modelled))
    return found + (not_modelled(fleet.conf, _scheduler(fleet.pools)) if fleet.disaggregated else [])

"""A deployment of several pools: each compiled like a deployment of its own, simulated together."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conf.schema import SimulateConf
from sim.api.job import Infeasible, Job, bounds_ms, build
from sim.api.outcome import assemble, timing
from sim.deployment.pools import PoolSpec, pools_of
from sim.deployment.topology import Topology, lay_out
from sim.event.asked import KVSide, check_asked, check_kv
from sim.event.cluster import OnProgress
from sim.event.elastic import elastic_of, elastic_rows
from sim.event.handover import Failures, HandOverCosts
from sim.event.pool import EnginePool, Prices
from sim.event.run import ExactRun, Routing, run_fleet
from sim.hardware.kv_transfer import connector_of, transfer_facts
from sim.report.result import PoolResult, RequestTable, SimulationResult, StepTable
from sim.scheduler.find import failure, roles_of
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
        return deployment.tensor_parallel * deployment.pipeline_parallel

    @property
    def block_bytes(self) -> tuple[float, ...]:
        """Bytes of one KV block of each group on all devices of a rank.

        A block is as large as the largest group's needs; it holds the layers of its own. Where another stage divides
        its layers into more or fewer groups, its blocks count as full.
        """
        ranks = self.job.conf.deployment.tensor_parallel
        found = [0.0] * len(self.job.groups)
        for stage in self.job.budget.stages:
            layers = [group.layers for group in stage.layout.groups]
            for number in range(len(found)):
                held = layers[number] / max(layers) if len(layers) == len(found) else 1.0
                found[number] += held * stage.layout.bytes_per_block * ranks
        return tuple(found)


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
    pools = tuple(_compile(spec, conf, workload) for spec in specs)
    topology = None
    if any(spec.role == "prefill" for spec in specs):
        sides = [KVSide(spec, p.job.plan.engine, p.job.budget) for spec, p in zip(specs, pools, strict=True)]
        check_kv(sides, conf.deployment.transfer)
        _, efficiency = _costs(conf, pools)
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


def _costs(conf: SimulateConf, pools: Sequence[PoolJob]) -> tuple[HandOverCosts, float]:
    """What a hand-over costs, and the share of the links' rate that a transfer reaches."""
    given = conf.deployment.transfer
    facts = transfer_facts(connector_of(given.connector, _scheduler(pools))).values
    value = {key: facts[key] if getattr(given, key) is None else getattr(given, key) for key in facts}
    layers = len(pools[0].job.plan.model.layers) if given.layerwise else 0
    costs = HandOverCosts(value["hand_over_s"], value["setup_s"], value["block_s"], value["latency_s"], layers)
    return costs, value["efficiency"]


def _failures(fleet: Fleet) -> Failures | None:
    """What becomes of loads that fail, if any do."""
    given = fleet.conf.deployment.transfer
    if not given.failure_rate and given.lease_s is None:
        return None
    own_s = next(pool.job.plan.engine.profile.connector.lease_s for pool in fleet.pools if pool.role == "prefill")
    return Failures(
        given.failure_rate,
        given.load_failure_policy == "recompute",
        own_s if given.lease_s is None else given.lease_s,
        given.lease_s is not None,
        fleet.conf.seed,
    )


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
            block_bytes=pool.block_bytes,
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
    costs, _ = _costs(fleet.conf, fleet.pools)
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
        own = dataclasses.replace(
            exact,
            requests=_requests_of(exact, pool.role, first, first + pool.ranks),
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


def _requests_of(exact: ExactRun, role: str, first: int, stop: int) -> RequestTable:
    """The requests of a pool and their times there.

    A prefill pool's requests come from clients, or when a decode instance has blocks for them, and end with its one
    token; a decode pool's come when its loop takes them up, and wait there for blocks, and once their KV has come for a
    seat: what counts as the wait is both, and what lies between as service.
    """
    requests, moved = exact.requests, exact.transfers
    columns = {field.name: getattr(requests, field.name) for field in dataclasses.fields(RequestTable)}
    place = requests.replica
    if moved is not None and role != "both":
        place = moved.source if role == "prefill" else moved.target
    if moved is not None and role == "prefill":
        columns |= {"first_token_ns": moved.prefilled_ns, "finish_ns": moved.prefilled_ns}
        columns |= {"output_tokens": np.ones_like(requests.output_tokens)}
        if moved.decode_first:
            columns |= {"arrival_ns": moved.allocated_ns}
    if moved is not None and role == "decode":
        columns |= {"arrival_ns": moved.queued_ns, "queued_ns": moved.queued_ns}
        columns |= {"scheduled_ns": moved.allocated_ns + moved.seated_ns - moved.received_ns}
        again = 0 if moved.keeps_token else 1
        found = np.where(moved.failed > 0, 0, np.maximum(requests.prompt_tokens - again, 0))
        columns |= {"cached_tokens": found}
    mine = (place >= first) & (place < stop)
    columns = {name: values[mine] for name, values in columns.items()}
    return RequestTable(**columns | {"replica": place[mine] - first})


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
        device=" + ".join(dict.fromkeys(result.device for result in results)),
        engine_label=" + ".join(dict.fromkeys(result.engine_label for result in results)),
        gpus=gpus,
        num_gpu_blocks=min(result.num_gpu_blocks for result in results),
        usd_per_gpu_hour=_mean_price(results, gpus),
        memory=None,
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
    if not fleet.disaggregated:
        return rows
    scheduler = _scheduler(fleet.pools)
    connector = connector_of(deployment.transfer.connector, scheduler)
    facts, sources = transfer_facts(connector)
    roles = roles_of(scheduler)
    early = (roles is not None and roles.decode_first) or deployment.pairing == "at_arrival"
    when = "when the request arrives" if early else "when the prefill ends"
    rows.append(("decode instance", f"{deployment.decode_router}, chosen {when}", "deployment.decode_router, pairing"))
    rows.append(("KV connector", connector, "deployment.transfer.connector"))
    words = {
        "hand_over_s": ("hand-over to the decode side's server", "{:.2f} ms", 1e3),
        "setup_s": ("before the first byte, per transfer", "{:.2f} ms", 1e3),
        "block_s": ("before the first byte, per block", "{:.1f} us", 1e6),
        "latency_s": ("latency of a transfer", "{:.2f} ms", 1e3),
        "efficiency": ("share of the links' rate that transfers reach", "{:.2f}", 1.0),
    }
    for key, (what, form, scale) in words.items():
        given = getattr(deployment.transfer, key)
        source = f"deployment.transfer.{key}" if given is not None else sources[key]
        rows.append((what, form.format(scale * (facts[key] if given is None else given)), source))
    return rows + _transfer_rows(fleet)


def _transfer_rows(fleet: Fleet) -> list[tuple[str, str, str]]:
    """What is said of transfers that overlap the prefill, and of those that fail."""
    given, where = fleet.conf.deployment.transfer, "deployment.transfer"
    rows = []
    if given.layerwise:
        rows.append(("KV of a layer", "leaves while later layers and chunks are computed", f"{where}.layerwise"))
    failures = _failures(fleet)
    if failures is None:
        return rows
    then = "the decode instance computes the prompt" if failures.recomputes else "the request ends with an error"
    rows.append(
        ("transfers that fail", f"{100 * failures.rate:g} %; {then}", f"{where}.failure_rate, load_failure_policy")
    )
    since = "after its prefill" if failures.expires else "after the failure of its transfer"
    source = (
        f"{where}.lease_s" if failures.expires else "the engine's lease, renewed while the decode side wants the KV"
    )
    rows.append(("a prefill instance frees KV that nobody reads", f"{failures.lease_s:g} s {since}", source))
    return rows


NEVER_FAILS = ("transfers that fail, and leases that run out (deployment.transfer.failure_rate, lease_s)",)
LEAVES_WHOLE = ("transfer of layers while others are still computed (deployment.transfer.layerwise)",)


def _not_modelled(fleet: Fleet, results: Sequence[SimulationResult]) -> list[str]:
    found = list(dict.fromkeys(sentence for result in results for sentence in result.not_modelled))
    roles = roles_of(_scheduler(fleet.pools)) if fleet.disaggregated else None
    transfer = fleet.conf.deployment.transfer
    if roles is not None:
        found += [
            *roles.not_modelled,
            "requests that are aborted on their way from prefill to decode",
            "prefill and decode instances that come and go, and transfers of those that fail",
            *(() if transfer.failure_rate or transfer.lease_s else NEVER_FAILS),
            *(() if transfer.layerwise else LEAVES_WHOLE),
        ]
    return found

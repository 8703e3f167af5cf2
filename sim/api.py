"""The facade: from a configuration to a result, in steps that can be taken apart.

`build` checks everything and compiles a job; `run` simulates it with the exact engine, `sweep` many of them with the
wide one; `simulate` builds and runs from the overrides of the command line. Bad input is a `ValueError` of one
sentence; a deployment that does not fit its memory is an `Infeasible`, whose sentence says what would.
"""

import dataclasses
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from conf.compose import compose
from conf.schema import SimulateConf
from predictors.learned import artifact_for, cost_rows, learned_cost
from predictors.served import taught_plan
from sim.cost.analytic import analytic_cost
from sim.cost.lockstep import LockstepPrices, lockstep_prices, lockstep_steps
from sim.cost.model import CostModel
from sim.cost.stages import StagePrices, stage_prices
from sim.cost.step_cost import SECONDS
from sim.cost.table import PriceTable, price_steps, price_table
from sim.deployment.compile import bounded, compile_plan
from sim.deployment.plan import Plan
from sim.event.content import has_content
from sim.event.router import make_router
from sim.event.run import ExactRun, run_exact
from sim.hardware.check import device_from
from sim.hardware.spec import DeviceConf
from sim.memory.budget import memory_budget
from sim.memory.cache import cache_shape
from sim.memory.describe import with_fitting_length
from sim.memory.report import memory_report
from sim.memory.shape import GroupShape
from sim.memory.terms import MemoryBudget
from sim.model.read import model_from_conf
from sim.report.engine_log import check_interval
from sim.report.metrics import check_slo
from sim.report.result import Claim, SimulationResult, StageTable, StepTable
from sim.scan.jobs import LaneJob, Status, lane_job, servable, why_exact as lane_needs_exact
from sim.scan.recover import LaneRun
from sim.scan.wide import scan
from sim.scheduler.find import (
    check_scheduler,
    failure,
    knows_groups,
    most_batch_tokens,
    most_running,
    not_modelled,
    reuses_prefixes,
)
from sim.workload.build import build_workload
from sim.workload.trace import Workload


LANE_CHECKS = ("every request ended once", "every block is free again", "tokens out = tokens asked for")
"""What the wide engine asserts when a lane ends (it raises otherwise)."""


class Infeasible(ValueError):
    """The deployment is well described but cannot start; the sentence says what would fit."""


@dataclass(frozen=True, eq=False)
class Job:
    """A checked simulation: nothing in it can fail for a reason the user could have been told."""

    conf: SimulateConf
    plan: Plan
    budget: MemoryBudget
    workload: Workload
    cost: CostModel
    cost_rows: tuple[tuple[str, str, str], ...] = ()
    estimated: bool = True
    taught: bool = False

    @property
    def pool_blocks(self) -> int:
        """KV blocks of one replica, the null block included, which the groups of layers share.

        A scheduler that knows no groups has those of one, as if each held the whole context.
        """
        known = knows_groups(self.conf.engine.scheduler)
        return self.budget.num_blocks if known else self.budget.num_blocks // len(self.budget.layout.groups)

    @property
    def groups(self) -> tuple[GroupShape, ...]:
        """The groups of layers with a block table each."""
        if not knows_groups(self.conf.engine.scheduler):
            return (GroupShape("full", self.plan.engine.block_size),)
        layout = self.budget.layout
        return cache_shape(layout, self.budget.num_blocks, False).groups

    def price_table(self) -> PriceTable:
        """The plan's prices for every padded token count and row count of these settings (of its first stage)."""
        return price_table(self.cost, self.plan.arrays, *self._most())

    def prices(self) -> PriceTable | StagePrices | LockstepPrices:
        """The plan's prices: one table, one per pipeline stage, or those of data-parallel ranks in lockstep."""
        plan = self.plan
        if plan.shared is not None:
            return lockstep_prices(self.cost, plan.arrays, plan.shared, plan.domains.dp_attn, *self._most())
        if plan.hand_over is None or plan.tokens_back is None:
            return self.price_table()
        return stage_prices(self.cost, plan.stages, plan.hand_over, plan.tokens_back, *self._most())

    def _most(self) -> tuple[int, int]:
        """Tokens and rows of the largest batch, padding included."""
        engine = self.plan.engine
        tokens = most_batch_tokens(self.conf.engine.scheduler, engine)
        return max(tokens, *engine.graph_sizes, *engine.prefill_graph_sizes, 0), engine.max_num_seqs

    def lane_job(self, table: int = 0) -> LaneJob:
        """The job as a lane of the wide engine, priced by the table of that number."""
        return lane_job(
            self.workload,
            self.plan.engine,
            self.pool_blocks - 1,
            table=table,
            replicas=self.conf.deployment.replicas,
            router=self.conf.deployment.router,
            scheduler=self.conf.engine.scheduler,
            groups=self.groups,
            data_parallel=self.conf.deployment.data_parallel,
        )

    def price_key(self) -> bytes:
        """Equal for jobs whose price tables are equal."""
        shape = repr(self._most()).encode()
        return shape + b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((self.cost, self.plan.arrays)))


def build(conf: SimulateConf, workload: Workload | None = None) -> Job:
    """Check a configuration and compile it. `workload` replaces the one that `conf.workload` describes.

    **Raises:** `ValueError` for bad input, `Infeasible` for a deployment that does not fit.
    """
    check_scheduler(conf.engine)
    check_interval(conf.log_interval_s)
    check_slo(bounds_ms(conf))
    make_router(conf.deployment.router, conf.seed)
    model = model_from_conf(conf.model)
    device = device_from(dataclasses.asdict(conf.hardware), conf.hardware.name)
    engine = with_fitting_length(conf.engine, model, device, conf.deployment)
    plan = compile_plan(model, device, engine, conf.deployment)
    budget = memory_budget(model, device, plan.engine, conf.deployment)
    if not budget.fits:
        raise Infeasible(budget.verdict)
    if workload is None:
        workload = build_workload(conf.workload, conf.seed)
    compiled = plan
    predictor, plan = taught_plan(conf.predictor, compiled)
    artifact = artifact_for(device, predictor)
    cost = analytic_cost() if artifact is None else learned_cost(artifact, device, plan.engine.name)
    job = Job(conf, plan, budget, workload, cost, cost_rows(artifact, device), artifact is None, plan is not compiled)
    running = most_running(conf.engine.scheduler, plan.engine, job.pool_blocks - 1)
    return dataclasses.replace(job, plan=bounded(plan, running))


def bounds_ms(conf: SimulateConf) -> dict[str, float]:
    """The bounds of `conf.slo` that are set, by metric."""
    return {key.removesuffix("_ms"): value for key, value in vars(conf.slo).items() if value is not None}


def run(job: Job, on_progress: Callable[[int], None] | None = None) -> SimulationResult:
    """Simulate a job with the exact engine. `on_progress` is called now and then with the requests sent so far."""
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
            seed=job.conf.seed,
            on_progress=on_progress,
        )
    except Exception as error:
        raise failure(scheduler, error) from error
    simulated = time.perf_counter()
    result = assemble(job, exact, exact.steps, exact.checks, "exact")
    result.timing = {
        "price_table_s": priced - started,
        "simulate_s": simulated - priced,
        "simulate_cpu_s": exact.cpu_s,
        "components_s": time.perf_counter() - simulated,
        "events": float(exact.events),
        "steps_per_cpu_s": len(exact.steps) / exact.cpu_s if exact.cpu_s > 0 else 0.0,
    }
    return result


def why_exact(job: Job) -> str:
    """Why only the exact engine can run this job; empty if the wide one can."""
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


def assemble(
    job: Job, found: ExactRun | LaneRun, steps: StepTable, checks: dict[str, bool], engine: str
) -> SimulationResult:
    """Everything a report needs: the tables of a run, its steps priced by component, and what was assumed.

    The step prices the engine used are compared with the cost model's own, to 1 ns.
    """
    stages = found.stages if isinstance(found, ExactRun) else None
    components, agree = _components(job, steps, stages)
    checks = checks | {"step prices equal the cost model's (1 ns)": agree}
    plan, conf = job.plan, job.conf
    settings = {
        field.name: getattr(plan.engine, field.name)
        for field in dataclasses.fields(plan.engine)
        if field.name not in ("profile", "origin", "notes")
    }
    return SimulationResult(
        requests=found.requests,
        steps=steps,
        itl_ns=found.itl_ns,
        itl_count=found.itl_count,
        components_s={name: components[name] for name in (*SECONDS, "wait_s") if name in components},
        claim=_claim(job, components),
        engine=engine,
        model=plan.model.name,
        device=plan.device.name,
        engine_label=_engine_label(job),
        gpus=plan.gpus,
        num_gpu_blocks=job.pool_blocks,
        block_size=plan.engine.block_size,
        usd_per_gpu_hour=plan.device.usd_per_hour,
        memory=memory_report(job.budget),
        workload=job.workload,
        seed=conf.seed,
        assumptions=[*job.cost_rows, *plan.assumptions, *_price_rows(plan.device), *_workload_rows(job)],
        not_modelled=[*plan.not_modelled, *_left_out(job)],
        config=dataclasses.asdict(conf),
        checks=checks,
        settings=settings,
        log=dataclasses.asdict(plan.engine.profile.log),
        log_interval_s=conf.log_interval_s,
        slo_ms=bounds_ms(conf),
        versions={name: importlib.metadata.version(name) for name in ("headway", "jax", "numpy")},
        replicas=conf.deployment.replicas,
        data_parallel=conf.deployment.data_parallel,
        stages=stages,
        quantisation=plan.model.quantisation,
        predictor=conf.predictor,
        taught=job.taught,
    )


def _engine_label(job: Job) -> str:
    """Engine and version, and the scheduler where it is another's."""
    engine, scheduler = job.plan.engine, job.conf.engine.scheduler
    return f"{engine.name} {engine.version}" + (f", scheduler {scheduler}" if scheduler != engine.name else "")


def _components(job: Job, steps: StepTable, stages: StageTable | None) -> tuple[dict[str, np.ndarray], bool]:
    """Seconds of each step by component, all stages together, and whether the engine used the same prices."""
    first = steps if stages is None else stages
    plan = job.plan
    if plan.shared is not None:
        # ranks of one replica that start at the same time run one step
        replica = np.asarray(steps.replica) // plan.domains.dp_attn
        _, step = np.unique(np.stack([replica, steps.start_ns]), axis=1, return_inverse=True)
        found = lockstep_steps(job.cost, plan.arrays, plan.shared, steps, step)
        used_s = 1e-9 * (steps.end_ns - steps.start_ns)
        return found, bool((abs(used_s - found["total_s"]) <= 1.001e-9).all())
    totals: dict[str, np.ndarray] = {}
    agree = True
    for stage, arrays in enumerate(job.plan.stages):
        found = price_steps(job.cost, arrays, steps)
        used_ns = first.end_ns - first.start_ns
        used_s = 1e-9 * (used_ns if stages is None else used_ns[:, stage])
        agree = agree and bool((abs(used_s - found["total_s"]) <= 1.001e-9).all())
        found["error_s"] = found.pop("rel_error") * found["total_s"]
        found["outside_s"] = found.pop("outside_share") * found["total_s"]
        totals = {name: totals.get(name, 0.0) + value for name, value in found.items()}
    return totals, agree


def simulate(*overrides: str, workload: Workload | None = None) -> SimulationResult:
    """Run `headway simulate OVERRIDES` and return its result: `simulate("model=llama-3.1-8b", "workload.rate=10")`.

    **Raises:** `ValueError` for bad input, `Infeasible` for a deployment that does not fit.
    """
    return run(build(compose(overrides), workload))


def _claim(job: Job, components: dict[str, np.ndarray]) -> Claim:
    """Error and share outside calibration of all steps together, by time."""
    total_s = float(components["total_s"].sum())
    if not total_s:
        return Claim(0.0, 0.0, job.estimated)
    return Claim(
        float(components["error_s"].sum()) / total_s, float(components["outside_s"].sum()) / total_s, job.estimated
    )


def _price_rows(device: DeviceConf) -> list[tuple[str, str, str]]:
    if not device.usd_per_hour:
        return [("price", "none: usd_per_hour of the device is 0", "device file")]
    price = f"{device.usd_per_hour:.2f} USD per GPU-hour"
    return [("price", price, device.sources.get("usd_per_hour", "device file, no source given"))]


def _workload_rows(job: Job) -> list[tuple[str, str, str]]:
    workload = job.workload
    rows = [("workload", text, "workload configuration") for text in workload.provenance]
    rows += [("workload", text, "while reading it") for text in workload.notes]
    engine = job.conf.engine
    if engine.kv_cache_memory_bytes is None and engine.num_gpu_blocks_override is None:
        low, high = job.budget.blocks_low, job.budget.blocks_high
        rows.append(("KV blocks", f"{low:,} to {high:,} are plausible", "memory sum"))
    return rows


def _left_out(job: Job) -> list[str]:
    """What the first form of the exact engine does not do."""
    missing = []
    scheduler = job.conf.engine.scheduler
    if job.plan.engine.prefix_caching and not has_content(job.workload):
        missing.append("prefix hits: the workload has lengths only, no content")
    elif job.plan.engine.prefix_caching and not reuses_prefixes(scheduler):
        missing.append(f"prefix reuse: the scheduler {scheduler} computes every prompt, though requests have content")
    if len(job.budget.layout.groups) > 1 and not knows_groups(scheduler):
        missing.append("blocks that sliding windows give back: every group of layers holds the whole context")
    missing += not_modelled(scheduler)
    return missing

"""The facade: from a configuration to a result, in three steps that can be taken apart.

`build` checks everything and compiles a job; `run` simulates it with the exact engine; `simulate` does both from the
overrides of the command line. Bad input is a `ValueError` of one sentence; a deployment that does not fit its
memory is an `Infeasible`, whose sentence says what would.
"""

import dataclasses
import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conf.compose import compose
from conf.schema import SimulateConf
from sim.cost.analytic import AnalyticCost
from sim.cost.model import CostModel
from sim.cost.table import PriceTable, price_steps, price_table
from sim.deployment.compile import compile_plan
from sim.deployment.plan import Plan
from sim.deployment.settings import resolve_engine
from sim.event.content import has_content
from sim.event.run import ExactRun, run_exact
from sim.hardware.check import device_from
from sim.memory.budget import memory_budget
from sim.memory.report import memory_report
from sim.memory.terms import MemoryBudget
from sim.model.read import model_from_conf
from sim.report.result import SimulationResult
from sim.workload.build import build_workload
from sim.workload.trace import Workload


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

    @property
    def pool_blocks(self) -> int:
        """KV blocks one table can hold: where several groups of layers share the pool, each gets its part."""
        return self.budget.num_blocks // len(self.budget.layout.groups)

    def price_table(self) -> PriceTable:
        """The plan's prices for every padded token count and row count of these settings."""
        engine = self.plan.engine
        largest = max(engine.max_num_batched_tokens, *engine.graph_sizes, 0)
        return price_table(self.cost, self.plan.arrays, largest, engine.max_num_seqs)


def memory(conf: SimulateConf) -> MemoryBudget:
    """The KV budget of a deployment, whether it fits or not, pipeline stages included."""
    model = model_from_conf(conf.model)
    device = device_from(dataclasses.asdict(conf.hardware), conf.hardware.name)
    engine = resolve_engine(conf.engine, model, device, conf.deployment)
    return memory_budget(model, device, engine, conf.deployment)


def build(conf: SimulateConf, workload: Workload | None = None) -> Job:
    """Check a configuration and compile it. `workload` replaces the one that `conf.workload` describes.

    **Raises:** `ValueError` for bad input, `Infeasible` for a deployment that does not fit.
    """
    model = model_from_conf(conf.model)
    device = device_from(dataclasses.asdict(conf.hardware), conf.hardware.name)
    plan = compile_plan(model, device, conf.engine, conf.deployment)
    budget = memory_budget(model, device, plan.engine, conf.deployment)
    if not budget.fits:
        raise Infeasible(budget.verdict)
    if workload is None:
        workload = build_workload(conf.workload, conf.seed)
    job = Job(conf, plan, budget, workload, AnalyticCost())
    if job.pool_blocks < 2:
        raise Infeasible(f"does not fit: {job.pool_blocks} KV blocks, of which the engine keeps one for itself.")
    return job


def run(job: Job, on_progress: Callable[[int], None] | None = None) -> SimulationResult:
    """Simulate a job with the exact engine. `on_progress` is called now and then with the requests sent so far."""
    started = time.perf_counter()
    table = job.price_table()
    priced = time.perf_counter()
    deployment = job.conf.deployment
    exact = run_exact(
        job.workload,
        job.plan.engine,
        table,
        num_gpu_blocks=job.pool_blocks,
        replicas=deployment.replicas,
        scheduler=job.conf.engine.scheduler,
        router=deployment.router,
        seed=job.conf.seed,
        on_progress=on_progress,
    )
    simulated = time.perf_counter()
    result = assemble(job, exact, "exact")
    result.timing = {
        "price_table_s": priced - started,
        "simulate_s": simulated - priced,
        "simulate_cpu_s": exact.cpu_s,
        "components_s": time.perf_counter() - simulated,
        "events": float(exact.events),
        "steps_per_cpu_s": len(exact.steps) / exact.cpu_s if exact.cpu_s > 0 else 0.0,
    }
    return result


def assemble(job: Job, found: ExactRun, engine: str) -> SimulationResult:
    """Everything a report needs: the tables of a run, its steps priced by component, and what was assumed.

    The step prices the engine used are compared with the cost model's own, to 1 ns.
    """
    components = price_steps(job.cost, job.plan.arrays, found.steps)
    checks: dict[str, Any] = dict(found.checks)
    if len(found.steps):
        used_s = (found.steps.end_ns - found.steps.start_ns) * 1e-9
        checks["step prices equal the cost model's (1 ns)"] = bool(abs(used_s - components["total_s"]).max() <= 1.001e-9)
    plan, conf = job.plan, job.conf
    settings = {
        field.name: getattr(plan.engine, field.name)
        for field in dataclasses.fields(plan.engine)
        if field.name not in ("profile", "origin", "notes")
    }
    return SimulationResult(
        requests=found.requests,
        steps=found.steps,
        itl_ns=found.itl_ns,
        itl_count=found.itl_count,
        components_s={name: value for name, value in components.items() if name.endswith("_s") and name != "total_s"},
        engine=engine,
        model=plan.model.name,
        device=plan.device.name,
        engine_label=f"{plan.engine.name} {plan.engine.version}",
        gpus=plan.gpus,
        num_gpu_blocks=job.pool_blocks,
        block_size=plan.engine.block_size,
        usd_per_gpu_hour=plan.device.usd_per_hour,
        memory=memory_report(job.budget),
        workload=job.workload,
        seed=conf.seed,
        assumptions=[*plan.assumptions, *_workload_rows(job)],
        not_modelled=[*plan.not_modelled, *_left_out(job)],
        config=dataclasses.asdict(conf),
        checks=checks,
        settings=settings,
        slo_ms={key.removesuffix("_ms"): value for key, value in vars(conf.slo).items() if value is not None},
        versions={name: importlib.metadata.version(name) for name in ("headway", "jax", "numpy")},
        replicas=conf.deployment.replicas,
    )


def simulate(*overrides: str, workload: Workload | None = None) -> SimulationResult:
    """Run `headway simulate OVERRIDES` and return its result, e.g. `simulate("model=llama-3.1-8b", "workload.rate=10")`.

    **Raises:** `ValueError` for bad input, `Infeasible` for a deployment that does not fit.
    """
    return run(build(compose(overrides), workload))


def _workload_rows(job: Job) -> list[tuple[str, str, str]]:
    workload = job.workload
    rows = [("workload", text, "workload configuration") for text in workload.provenance]
    rows += [("workload", text, "while reading it") for text in workload.notes]
    rows.append(("KV blocks", f"{job.budget.blocks_low:,} to {job.budget.blocks_high:,} are plausible", "memory sum"))
    return rows


def _left_out(job: Job) -> list[str]:
    """What the first form of the exact engine does not do."""
    missing = []
    if job.plan.engine.prefix_caching and not has_content(job.workload):
        missing.append("prefix hits: the workload has lengths only, no content")
    if len(job.budget.layout.groups) > 1:
        missing.append("blocks that sliding windows give back: every group of layers holds the whole context")
    return missing

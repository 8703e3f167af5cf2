"""From what an engine hands over to a result that a report can be made of."""

import dataclasses
import importlib.metadata
import time

import numpy as np

from sim.api.attention_ffn import attention_ffn_use, sent_bytes
from sim.api.job import Job, bounds_ms
from sim.api.layer_kinds import layer_kinds
from sim.cost.attention_ffn_steps import SideTimes, attention_ffn_steps
from sim.cost.drafting import with_drafts
from sim.cost.experts.draw import step_draws
from sim.cost.experts.prices import SUMS
from sim.cost.experts.waits import rank_waits
from sim.cost.lockstep import lockstep_steps
from sim.cost.step_cost import SECONDS
from sim.cost.table import price_steps, with_routing
from sim.deployment.plan import Plan
from sim.event.elastic import elastic_rows
from sim.event.pooling import pooling_left_out
from sim.event.run import ExactRun
from sim.hardware.spec import DeviceConf
from sim.memory.report import memory_report
from sim.report.result import Claim, ExpertTable, SimulationResult, StageTable, StepTable
from sim.scan.recover import LaneRun
from sim.scheduler.find import knows_groups, not_modelled, reuses_prefixes
from sim.workload.experts import EVEN, described


def timing(exact: ExactRun, started: float, priced: float, simulated: float) -> dict[str, float]:
    """Where the time of an exact run went, from readings of `time.perf_counter` at its start and after each part."""
    return {
        "price_table_s": priced - started,
        "simulate_s": simulated - priced,
        "simulate_cpu_s": exact.cpu_s,
        "components_s": time.perf_counter() - simulated,
        "events": float(exact.events),
        "steps_per_cpu_s": len(exact.steps) / exact.cpu_s if exact.cpu_s > 0 else 0.0,
    }


def assemble(
    job: Job, found: ExactRun | LaneRun, steps: StepTable, checks: dict[str, bool], engine: str
) -> SimulationResult:
    """Everything a report needs: the tables of a run, its steps priced by component, and what was assumed.

    The step prices the engine used are compared with the cost model's own, to 1 ns.
    """
    stages = found.stages if isinstance(found, ExactRun) else None
    components, agree, sides = _components(job, steps, stages)
    checks = checks | {"step prices equal the cost model's (1 ns)": agree}
    used = None if sides is None else attention_ffn_use(job.plan, sides)
    if used is not None:
        checks |= {"activations sent = activations received": used.there_bytes == sent_bytes(job.plan, steps)}
    plan, conf = job.plan, job.conf
    settings = {
        field.name: getattr(plan.engine, field.name)
        for field in dataclasses.fields(plan.engine)
        if field.name not in ("profile", "origin", "notes", "speculation")
    }
    return SimulationResult(
        requests=found.requests,
        steps=steps,
        itl_ns=found.itl_ns,
        itl_count=found.itl_count,
        components_s={name: components[name] for name in (*SECONDS, "wait_s", "draft_s") if name in components},
        claim=_claim(job, components),
        engine=engine,
        model=plan.model.name,
        device=" + ".join(device.name for device in (plan.device, *_ffn_devices(job))),
        engine_label=_engine_label(job),
        gpus=plan.gpus,
        num_gpu_blocks=job.pool_blocks,
        block_size=plan.engine.block_size,
        usd_per_gpu_hour=plan.usd_per_gpu_hour,
        memory=memory_report(job.budget),
        workload=job.workload,
        seed=conf.seed,
        assumptions=[
            *job.cost_rows,
            *plan.assumptions,
            *_expert_rows(job),
            *_price_rows(plan.device),
            *(row for device in _ffn_devices(job) for row in _price_rows(device, f" of {device.name}")),
            *_workload_rows(job),
            *elastic_rows(conf.deployment),
        ],
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
        retries=found.retries if isinstance(found, ExactRun) else {},
        unserved_ns=found.unserved_ns if isinstance(found, ExactRun) else {},
        moments=found.moments if isinstance(found, ExactRun) else (),
        experts=_expert_table(job, steps),
        attention_ffn=used,
        speculation=found.speculation if isinstance(found, ExactRun) else None,
        cache_tiers=found.cache_tiers if isinstance(found, ExactRun) else (),
        swap=found.swap if isinstance(found, ExactRun) else None,
        layers=layer_kinds(plan),
    )


def _ffn_devices(job: Job) -> list[DeviceConf]:
    """The kind of device of the feed-forward parts, where it is another than that of the ranks."""
    ffn = job.plan.ffn
    return [] if ffn is None or ffn.device.name == job.plan.device.name else [ffn.device]


def _engine_label(job: Job) -> str:
    """Engine and version, and the scheduler where it is another's."""
    engine, scheduler = job.plan.engine, job.conf.engine.scheduler
    return f"{engine.name} {engine.version}" + (f", scheduler {scheduler}" if scheduler != engine.name else "")


def _components(
    job: Job, steps: StepTable, stages: StageTable | None
) -> tuple[dict[str, np.ndarray], bool, SideTimes | None]:
    """Seconds of each step by component, all stages together, whether the engine used the same prices, and the sides.

    The sides are those of a plan with FFN devices.
    """
    first = steps if stages is None else stages
    plan = job.plan
    sides = None
    if plan.shared is not None or plan.ffn is not None:
        step = _shared_steps(plan, steps)
        if plan.ffn is not None:
            found, sides = attention_ffn_steps(job.cost, job.ffn_cost, plan.arrays, plan.ffn, steps, step)
        elif plan.shared is not None:
            found = lockstep_steps(job.cost, plan.arrays, plan.shared, steps, step, plan.exchange, job.routed[0])
        used_s = 1e-9 * (steps.end_ns - steps.start_ns)
        return found, bool((abs(used_s - found["total_s"]) <= 1.001e-9).all()), sides
    totals: dict[str, np.ndarray] = {}
    agree = True
    for stage, arrays in enumerate(job.plan.stages):
        found = price_steps(job.cost, arrays, steps)
        routed = job.routed[stage]
        if routed is not None:
            found = with_routing(found, arrays, routed, steps)
        if plan.engine.speculation is not None:
            found = with_drafts(found, job.cost, plan.draft, plan.engine, steps)
        used_ns = first.end_ns - first.start_ns
        used_s = 1e-9 * (used_ns if stages is None else used_ns[:, stage])
        agree = agree and bool((abs(used_s - found["total_s"]) <= 1.001e-9).all())
        found["error_s"] = found.pop("rel_error") * found["total_s"]
        found["outside_s"] = found.pop("outside_share") * found["total_s"]
        totals = {name: totals.get(name, 0.0) + value for name, value in found.items()}
    return totals, agree, sides


def _claim(job: Job, components: dict[str, np.ndarray]) -> Claim:
    """Error and share outside calibration of all steps together, by time."""
    total_s = float(components["total_s"].sum())
    if not total_s:
        return Claim(0.0, 0.0, job.estimated)
    return Claim(
        float(components["error_s"].sum()) / total_s, float(components["outside_s"].sum()) / total_s, job.estimated
    )


def _price_rows(device: DeviceConf, of: str = "") -> list[tuple[str, str, str]]:
    if not device.usd_per_hour:
        return [(f"price{of}", "none: usd_per_hour of the device is 0", "device file")]
    price = f"{device.usd_per_hour:.2f} USD per GPU-hour"
    return [(f"price{of}", price, device.sources.get("usd_per_hour", "device file, no source given"))]


def _expert_table(job: Job, steps: StepTable) -> ExpertTable | None:
    """What the ranks of the first stage with experts did; None where they were priced as evenly spread."""
    experts = next((routed for routed in job.routed if routed is not None), None)
    if experts is None:
        return None
    columns = [np.asarray(getattr(steps, name), np.float64) for name in ("padded_tokens", *SUMS)]
    if job.plan.shared is not None:
        step = _shared_steps(job.plan, steps)
        columns = [np.bincount(step, values) for values in columns]
    some = columns[0] > 0
    tokens, *sums = (values[some] for values in columns)
    found = rank_waits(experts, tokens, step_draws(experts.seed, *sums))
    return ExpertTable(job.conf.experts.law, job.conf.experts.detail, *found)


def _shared_steps(plan: Plan, steps: StepTable) -> np.ndarray:
    """A number for each step that several data-parallel ranks run together: those that start at the same time."""
    replica = np.asarray(steps.replica) // plan.deployment.data_parallel
    _, step = np.unique(np.stack([replica, steps.start_ns]), axis=1, return_inverse=True)
    return step


def _expert_rows(job: Job) -> list[tuple[str, str, str]]:
    """How tokens are spread over experts, if the model has some."""
    conf, deployment = job.conf.experts, job.plan.deployment
    if not job.plan.model.is_moe:
        return []
    if conf.law == EVEN:
        return [("expert load", "even over experts and ranks", "assumed: routing depends on the text")]
    detail = "every layer and rank of each step" if conf.detail == "layers" else "one draw a step"
    rows = [("expert load", described(conf), f"experts.law; {detail}")]
    if job.plan.domains.ep_ffn > 1:
        copies = f", {deployment.redundant_experts} copies" if deployment.redundant_experts else ""
        how = f"{deployment.expert_placement}{copies}, {job.plan.domains.ep_ffn} ranks"
        rows.append(("expert placement", how, "deployment.expert_placement, redundant_experts"))
    return rows


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
    if job.plan.model.is_moe and job.conf.experts.law == EVEN:
        missing.append("uneven expert load: see experts.law")
    elif job.plan.model.is_moe:
        missing.append("experts that move while the engine runs: they stay where the mean popularity puts them")
    scheduler = job.conf.engine.scheduler
    if job.plan.engine.prefix_caching and not job.workload.has_content:
        missing.append("prefix hits: the workload has lengths only, no content")
    elif job.plan.engine.prefix_caching and not reuses_prefixes(scheduler):
        missing.append(f"prefix reuse: the scheduler {scheduler} computes every prompt, though requests have content")
    if len(job.budget.layout.groups) > 1 and not knows_groups(scheduler):
        missing.append("blocks that sliding windows give back: every group of layers holds the whole context")
    missing += not_modelled(scheduler)
    missing += pooling_left_out(job.plan.engine, job.workload)
    return missing

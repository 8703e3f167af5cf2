"""A deployment described without a workload: its tree, and how KV gets from one pool to another."""

import dataclasses
from dataclasses import dataclass

from conf.schema import SimulateConf
from sim.api.transfers import costs_of
from sim.deployment.compile import compile_plan
from sim.deployment.plan import Plan
from sim.deployment.pools import PoolSpec, pools_of
from sim.deployment.topology import Topology, lay_out
from sim.deployment.traffic import traffic
from sim.event.asked import KVSide, check_asked, check_kv
from sim.hardware.check import device_from
from sim.memory.budget import memory_budget
from sim.memory.describe import with_fitting_length
from sim.memory.plan_tree import Branch, pool_branch
from sim.memory.terms import MemoryBudget
from sim.model.read import model_from_conf


@dataclass(frozen=True)
class Described:
    """The pools' branches in order, how KV moves between them, whether all of them start, and all devices."""

    branches: list[Branch]
    fits: bool
    gpus: int


def describe_plan(conf: SimulateConf) -> Described:
    """Compile every pool and lay it out. `ValueError` for bad input, naming the pool."""
    specs = pools_of(conf.deployment, conf.hardware, conf.engine)
    check_asked(conf.deployment, specs, conf.seed)
    compiled = [_compile(conf, spec) for spec in specs]
    sides = [KVSide(spec, plan.engine, budget) for spec, (plan, budget) in zip(specs, compiled, strict=True)]
    check_kv(sides, conf.deployment.transfer)
    side = next((spec for spec in specs if spec.role != "both"), specs[0])
    _, efficiency = costs_of(conf, side.engine.scheduler, 0)
    topology = lay_out(
        [
            (
                spec.name,
                plan.device,
                spec.deployment.replicas * spec.deployment.data_parallel,
                spec.deployment.rank_devices,
            )
            for spec, (plan, _) in zip(specs, compiled, strict=True)
        ],
        conf.deployment.transfer,
        efficiency,
    )
    branches: list[Branch] = []
    firsts: list[int] = []
    for spec, (plan, budget) in zip(specs, compiled, strict=True):
        firsts.append(sum(_ranks(before) for before in specs[: len(firsts)]))
        branches.append(pool_branch(spec.name, spec.role, plan, budget, topology, firsts[-1]))
    branches += _ways(specs, firsts, topology)
    fits = all(budget.fits for _, budget in compiled)
    return Described(branches, fits, sum(plan.gpus for plan, _ in compiled))


def _compile(conf: SimulateConf, spec: PoolSpec) -> tuple[Plan, MemoryBudget]:
    try:
        model = model_from_conf(conf.model)
        device = device_from(dataclasses.asdict(spec.device), spec.device.name)
        engine = with_fitting_length(spec.engine, model, device, spec.deployment)
        plan = compile_plan(model, device, engine, spec.deployment)
        budget = memory_budget(model, device, plan.engine, spec.deployment)
        return plan, dataclasses.replace(budget, verdict=spec.own_keys(budget.verdict))
    except ValueError as error:
        raise ValueError(spec.refusal(error)) from error


def _ranks(spec: PoolSpec) -> int:
    return spec.deployment.replicas * spec.deployment.data_parallel


def _ways(specs: list[PoolSpec], firsts: list[int], topology: Topology) -> list[Branch]:
    """The way of KV from each prefill pool to each decode pool, between their first replicas."""
    found = []
    for source, first in zip(specs, firsts, strict=True):
        for target, other in zip(specs, firsts, strict=True):
            if source.role == "prefill" and target.role == "decode":
                links = topology.path(first, other)
                rate = min(topology.bytes_per_s[link] for link in links)
                names = ", ".join(topology.names[link] for link in links)
                most = f"{rate / 1e9:.0f} GB/s at most for one transfer"
                ends = (range(at, at + _ranks(spec)) for at, spec in ((first, source), (other, target)))
                together = traffic(topology, *ends).most_bytes_per_s
                all_of_them = f", {together / 1e9:.0f} GB/s for all together" if together > rate else ""
                text = f"KV from {source.name} to {target.name}: {most} ({names}){all_of_them}"
                facts = {"bytes_per_s": rate, "together_bytes_per_s": together}
                found.append(Branch(text, {"source": source.name, "target": target.name, **facts}))
    return found

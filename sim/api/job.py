"""From a configuration to a checked job: nothing in it can fail for a reason the user could have been told."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from conf.schema import SimulateConf
from predictors.learned import artifact_for, cost_rows, families_of, learned_cost
from predictors.served import taught_plan
from sim.cost.analytic import analytic_cost
from sim.cost.attention_ffn import attention_ffn_prices
from sim.cost.drafting import drafted_prices
from sim.cost.experts.build import routed_experts
from sim.cost.experts.times import RoutedExperts
from sim.cost.lockstep import lockstep_prices
from sim.cost.model import CostModel
from sim.cost.stages import stage_prices
from sim.cost.table import PriceTable, price_table
from sim.deployment.compile import bounded, compile_plan
from sim.deployment.plan import Plan
from sim.deployment.pools import pools_of
from sim.deployment.tiers import Tier, tiers_of
from sim.event.asked import check_asked
from sim.event.holds import check_holds
from sim.event.pool import Prices
from sim.event.pooling import check_pooling
from sim.event.swap import check_swap, swap_blocks
from sim.event.tier_checks import check_tiers
from sim.hardware.check import device_from
from sim.hardware.spec import DeviceConf
from sim.memory.budget import memory_budget
from sim.memory.cache import cache_shape
from sim.memory.describe import with_fitting_length
from sim.memory.shape import GroupShape
from sim.memory.terms import MemoryBudget
from sim.model.read import model_from_conf
from sim.report.engine_log import check_interval
from sim.report.metrics import check_slo
from sim.report.timeline.layers import steps_wanted
from sim.scan.jobs import LaneJob, lane_job
from sim.scheduler.find import knows_groups, most_batch_tokens, most_running
from sim.workload.build import build_workload
from sim.workload.experts import EVEN, check_experts, names, popularity
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
    ffn_cost: CostModel
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

    @property
    def block_bytes(self) -> tuple[float, ...]:
        """Bytes of one KV block of each group on all devices of a rank.

        A block is as large as the largest group's needs; it holds the layers of its own. Where another stage divides
        its layers into more or fewer groups, its blocks count as full.
        """
        ranks = self.conf.deployment.tensor_parallel
        found = [0.0] * len(self.groups)
        for stage in self.budget.stages:
            layers = [group.layers for group in stage.layout.groups]
            for number in range(len(found)):
                held = layers[number] / max(layers) if len(layers) == len(found) else 1.0
                found[number] += held * stage.layout.bytes_per_block * ranks
        return tuple(found)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """What lies behind the cache of each rank."""
        return tiers_of(self.conf.deployment.cache_tiers, self.plan.engine.block_size, self.block_bytes[0])

    @property
    def swap_blocks(self) -> int:
        """KV blocks of preempted requests that the host of a rank has room for; 0: they are computed again."""
        return swap_blocks(self.conf.deployment, self.block_bytes[0])

    @property
    def host_bytes_per_s(self) -> float:
        """Of the links between a rank's devices and their host, one way."""
        return self.plan.device.pcie.bytes_per_s * self.conf.deployment.rank_devices

    def price_table(self) -> PriceTable:
        """The plan's prices for every padded token count and row count of these settings (of its first stage)."""
        return price_table(self.cost, self.plan.arrays, *self._most(), self.routed[0])

    def prices(self) -> Prices:
        """The plan's prices: one table, one per pipeline stage, or those of data-parallel ranks that run together."""
        plan, routed = self.plan, self.routed
        if plan.engine.speculation is not None:
            drafts = plan.engine.speculation.tokens
            return drafted_prices(self.cost, plan.arrays, plan.draft, plan.engine, *self._most(), drafts)
        if plan.ffn is not None:
            return attention_ffn_prices(self.cost, self.ffn_cost, plan.arrays, plan.ffn, *self._most())
        if plan.shared is not None:
            ranks = plan.domains.dp_attn
            return lockstep_prices(self.cost, plan.arrays, plan.shared, ranks, *self._most(), plan.exchange, routed[0])
        if plan.hand_over is None or plan.tokens_back is None:
            return self.price_table()
        return stage_prices(self.cost, plan.stages, plan.hand_over, plan.tokens_back, *self._most(), routed)

    @cached_property
    def routed(self) -> tuple[RoutedExperts | None, ...]:
        """How unevenly the experts of each stage are spread; None where they are not, or there are none."""
        plan, conf = self.plan, self.conf.experts
        parts = plan.stages if plan.shared is None else (plan.shared,)
        if conf.law == EVEN:
            return (None,) * len(parts)
        layers = [int(np.sum(part.moe.count)) for part in parts]
        most, _ = self._most()
        found: list[RoutedExperts | None] = []
        for number, part in enumerate(parts):
            if not layers[number]:
                found.append(None)
                continue
            found.append(
                routed_experts(
                    self.cost,
                    part,
                    conf,
                    self.conf.seed,
                    ranks=plan.domains.ep_ffn,
                    redundant=plan.domains.redundant,
                    rule=plan.deployment.expert_placement,
                    tokens=most * (plan.domains.dp_attn if plan.shared is not None else 1),
                    first=sum(layers[:number]),
                    of_model=sum(layers),
                    exchange=plan.exchange if plan.shared is not None else None,
                )
            )
        return tuple(found)

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
            ffn_devices=self.conf.deployment.ffn.devices,
        )

    def price_key(self) -> bytes:
        """Equal for jobs whose prices are equal."""
        plan = self.plan
        ffn = plan.ffn
        of_ffn = None if ffn is None else (ffn.layers, ffn.instances, ffn.micro_batches)
        shape = repr(
            (self._most(), plan.domains, plan.engine.speculation, plan.exchange.decides, len(plan.stages), of_ffn)
        ).encode()
        parts: tuple[Any, ...] = (plan.stages, plan.shared, plan.exchange, plan.hand_over, plan.tokens_back)
        parts = (self.cost, *parts) if ffn is None else (self.cost, self.ffn_cost, *parts, *ffn.priced)
        if self.conf.experts.law != EVEN:
            shape += repr((self.conf.experts, self.conf.seed, plan.deployment.expert_placement)).encode()
        return shape + b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(parts))


def build(conf: SimulateConf, workload: Workload | None = None) -> Job:
    """Check a configuration and compile it. `workload` replaces the one that `conf.workload` describes.

    **Raises:** `ValueError` for bad input, `Infeasible` for a deployment that does not fit.
    """
    specs = pools_of(conf.deployment, conf.hardware, conf.engine)
    if conf.deployment.pools:
        raise ValueError("this takes a deployment of one kind of replicas: leave out deployment.pools.")
    check_asked(conf.deployment, specs, conf.seed)
    check_interval(conf.log_interval_s)
    steps_wanted(conf.timeline_layers)
    check_slo(bounds_ms(conf))
    check_experts(conf.experts)
    model = model_from_conf(conf.model)
    device = device_from(dataclasses.asdict(conf.hardware), conf.hardware.name)
    engine = with_fitting_length(conf.engine, model, device, conf.deployment)
    plan = compile_plan(model, device, engine, conf.deployment)
    budget = memory_budget(model, device, plan.engine, conf.deployment)
    if not budget.fits:
        raise Infeasible(budget.verdict)
    if workload is None:
        workload = build_workload(conf.workload, conf.seed)
    _check_experts(conf, plan)
    check_pooling(plan, workload)
    compiled = plan
    predictor, plan = taught_plan(conf.predictor, compiled)
    cost, rows, estimated = _cost(plan, device, predictor)
    ffn_cost, ffn_rows, ffn_estimated = cost, rows, estimated
    if plan.ffn is not None and plan.ffn.device.name != device.name:
        ffn_cost, ffn_rows, ffn_estimated = _cost(plan, plan.ffn.device, predictor)
        rows += tuple((f"{what} of {plan.ffn.device.name}", value, source) for what, value, source in ffn_rows)
    both = estimated and ffn_estimated
    job = Job(conf, plan, budget, workload, cost, ffn_cost, rows, both, plan is not compiled)
    check_holds(conf.deployment, plan.engine, conf.engine.scheduler, job.groups, workload)
    check_tiers(conf.deployment, plan.engine, conf.engine.scheduler, job.groups, workload)
    check_swap(conf.deployment, plan.engine, conf.engine.scheduler, job.groups)
    _ = job.tiers, job.swap_blocks  # made here, so that sizes that cannot be are told before anything runs
    running = most_running(conf.engine.scheduler, plan.engine, job.pool_blocks - 1)
    return dataclasses.replace(job, plan=bounded(plan, running))


def _check_experts(conf: SimulateConf, plan: Plan) -> None:
    """Raise `ValueError` where a law of popularity, or a placement by it, can do nothing, or does not fit the model."""
    law = conf.experts.law
    if law != EVEN and plan.ffn is not None:
        raise ValueError(
            f"experts.law={law} is not simulated on FFN devices, whose experts are alike: leave it out, or leave out "
            "deployment.ffn."
        )
    if law != EVEN and plan.engine.speculation is not None:
        raise ValueError(
            f"experts.law={law} is not simulated with speculative decoding: leave it out, or leave out "
            "engine.speculation.method."
        )
    if law != EVEN and plan.deployment.prefill_context_parallel > 1:
        raise ValueError(
            f"experts.law={law} is not simulated where ranks divide the tokens of a prefill: leave it out, or set "
            "deployment.prefill_context_parallel=1."
        )
    if law != EVEN and not plan.model.is_moe:
        raise ValueError(f"experts.law={law} is set, but {plan.model.name} has no experts; leave it out.")
    if law == EVEN and conf.deployment.expert_placement != "linear":
        raise ValueError(
            f"deployment.expert_placement={conf.deployment.expert_placement} has no effect while experts are alike: "
            f"set experts.law ({', '.join(names())}), or leave it out."
        )
    if law != EVEN:
        parts = plan.stages if plan.shared is None else (plan.shared,)
        layers = sum(int(np.sum(part.moe.count)) for part in parts)
        experts = max(int(np.max(part.moe.experts * (part.moe.count > 0))) for part in parts)
        popularity(conf.experts, layers, experts - plan.domains.redundant, conf.seed)


def _cost(plan: Plan, device: DeviceConf, predictor: str) -> tuple[CostModel, tuple[tuple[str, str, str], ...], bool]:
    """What prices a device's kernels, rows that say so, and whether nothing of it was measured."""
    artifact = artifact_for(device, predictor)
    cost = analytic_cost() if artifact is None else learned_cost(artifact, device, plan.engine.name)
    return cost, cost_rows(artifact, families_of(plan.model)), artifact is None


def bounds_ms(conf: SimulateConf) -> dict[str, float]:
    """The bounds of `conf.slo` that are set, by metric."""
    return {key.removesuffix("_ms"): value for key, value in vars(conf.slo).items() if value is not None}

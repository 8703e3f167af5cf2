"""The analytic cost model: tiles, waves and rooflines from datasheets and published ceilings, no calibration."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sim.cost.attention import (
    AttentionConstants,
    RecurrentConstants,
    WorkTerms,
    attention_terms,
    attention_work,
    recurrent_terms,
    used_terms,
    work_terms,
)
from sim.cost.collective import CollectiveTerms, collective_s, collective_terms
from sim.cost.elementwise import ElementwiseConstants, ElementwiseTerms, elementwise_s, elementwise_terms
from sim.cost.gemm import GemmConstants, GemmTerms, gemm_s, gemm_stream_s, gemm_terms
from sim.cost.head import SamplerTerms, sampler_s, sampler_terms
from sim.cost.launch import LaunchTerms, exposed_launch_s, launch_terms
from sim.cost.lengths import AttentionTerms, LengthTerms, RecurrentTerms, lengths_s
from sim.cost.model import CostModel
from sim.cost.moe import MoeConstants, MoeTerms, moe_s, moe_stream_s, moe_terms
from sim.cost.stats import LENGTHS, BatchStats
from sim.cost.step_cost import StepCost
from sim.deployment.plan import PlanArrays


@cache
def constants() -> dict[str, dict[str, float | list[float]]]:
    """The numbers of `analytic.toml`, by group."""
    return tomllib.loads((files("sim.cost") / "analytic.toml").read_text())


class StepTerms(NamedTuple):
    """A plan's share of the price, by kernel: leaves with slots first and the plan's `config` axes last."""

    gemm: GemmTerms
    attention: AttentionTerms
    recurrent: RecurrentTerms
    moe: MoeTerms
    elementwise: ElementwiseTerms
    collective: CollectiveTerms
    sampler: SamplerTerms
    work: WorkTerms
    launch: LaunchTerms
    host_s: Float[Array, "*config"]
    stream_bytes_per_s: Float[Array, "*config"]


class _Claim(eqx.Module):
    """What the model says of its own error."""

    rel_error: Float[Array, ""]
    outside_share: Float[Array, ""]


class AnalyticCost(CostModel):
    """Sum of the kernels of one step on one rank. `AnalyticCost()` has the published constants.

    Every constant is an array leaf, so that `jax.grad` reaches it and a calibration may replace it (`eqx.tree_at`).
    `rel_error` is the error claimed for a total, `outside_share` what of it lies outside calibration: all, by default.
    """

    gemm: GemmConstants
    attention: AttentionConstants
    elementwise: ElementwiseConstants
    moe: MoeConstants
    recurrent: RecurrentConstants
    rel_error: Float[Array, ""]
    outside_share: Float[Array, ""]

    def __init__(self, dtype=np.float64):
        """The published constants as numpy leaves of `dtype`."""

        def group(kind, name: str):
            return kind(**{field: np.asarray(constants()[name][field], dtype) for field in kind.__dataclass_fields__})

        self.gemm = group(GemmConstants, "gemm")
        self.attention = group(AttentionConstants, "attention")
        self.elementwise = group(ElementwiseConstants, "elementwise")
        self.moe = group(MoeConstants, "moe")
        self.recurrent = group(RecurrentConstants, "recurrent")
        claim = group(_Claim, "claim")
        self.rel_error, self.outside_share = claim.rel_error, claim.outside_share

    def __call__(self, plan: PlanArrays, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats`, by component; an empty batch costs nothing.

        Shapes: `stats` has the plan's `config` axes, and perhaps more in front.
        """
        price = self.price
        for _ in range(jnp.ndim(stats.decodes) - jnp.ndim(plan.device.host_s)):
            price = jax.vmap(price, (None, 0))
        return price(self.terms(plan), stats)

    def terms(self, plan: PlanArrays) -> StepTerms:
        """What of a step's price does not depend on the batch. Whoever prices many batches computes it once."""
        device, elementwise = plan.device, self.elementwise
        return StepTerms(
            gemm=gemm_terms(plan.gemm, device, self.gemm),
            attention=attention_terms(jnp, plan.attention, device, self.attention),
            recurrent=recurrent_terms(jnp, plan.recurrent, device, self.recurrent, elementwise.floor_s),
            moe=moe_terms(plan.moe, device, self.moe, elementwise),
            elementwise=elementwise_terms(plan.elementwise, device, elementwise),
            collective=collective_terms(plan.collective),
            sampler=sampler_terms(device, elementwise),
            work=work_terms(jnp, plan.attention, plan.recurrent),
            launch=launch_terms(device),
            host_s=device.host_s,
            stream_bytes_per_s=device.memory_bytes_per_s,
        )

    def price(self, terms: StepTerms, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats` from the plan's `terms`. Shapes: the same `config` axes."""
        tokens, emitting = stats.padded_tokens, stats.emitting

        logits = terms.gemm.emitting
        rows = logits * emitting + (1.0 - logits) * tokens
        products_s = terms.gemm.times * gemm_s(terms.gemm, rows)
        gemm_total_s = jnp.sum(products_s * (1.0 - logits), axis=0)
        moe_total_s = jnp.sum(moe_s(terms.moe, tokens), axis=0)
        elementwise_total_s = jnp.sum(elementwise_s(terms.elementwise, tokens), axis=0)

        gathers = terms.collective.emitting
        moving = gathers * emitting + (1.0 - gathers) * tokens > 0.0
        collectives_s = jnp.where(moving, collective_s(terms.collective, tokens, emitting), 0.0)
        collective_total_s = jnp.sum(collectives_s * (1.0 - gathers), axis=0)
        head_s = jnp.sum(products_s * logits, axis=0) + jnp.sum(collectives_s * gathers, axis=0)
        device_s = gemm_total_s + moe_total_s + elementwise_total_s + collective_total_s

        attention_bytes, attention_flops = attention_work(jnp, terms.work, stats)
        weights_s = jnp.sum(terms.gemm.times * gemm_stream_s(terms.gemm, rows), axis=0)
        experts_s = jnp.sum(terms.moe.times * moe_stream_s(terms.moe, tokens), axis=0)
        flops = jnp.sum(terms.gemm.times * rows * terms.gemm.row_flops, axis=0)
        expert_rows = terms.moe.times * terms.moe.rows_per_token * tokens
        like = jnp.zeros_like(device_s)
        return StepCost(
            gemm_s=gemm_total_s,
            attention_s=self._attention_s(terms, stats),
            moe_s=moe_total_s,
            elementwise_s=elementwise_total_s,
            head_s=head_s + sampler_s(terms.sampler, emitting),
            collective_s=collective_total_s,
            launch_s=exposed_launch_s(terms.launch, tokens, stats.graph_mode, device_s),
            host_s=jnp.where(tokens > 0.0, terms.host_s, 0.0),
            memory_bytes=(weights_s + experts_s) * terms.stream_bytes_per_s + attention_bytes,
            flops=flops + jnp.sum(expert_rows * terms.moe.row_flops, axis=0) + attention_flops,
            rel_error=like + self.rel_error,
            outside_share=like + self.outside_share,
        )

    def _attention_s(self, terms: StepTerms, stats: BatchStats) -> Float[Array, "*config"]:
        batch = [getattr(stats, name) for name in LENGTHS]
        per_kind = lengths_s(jnp, LengthTerms(attention=(terms.attention,)), *batch)
        per_state = lengths_s(jnp, LengthTerms(recurrent=(terms.recurrent,)), *batch)
        return jnp.sum(per_kind, axis=0) + jnp.sum(per_state, axis=0)

    def length_terms(self, plan: PlanArrays) -> LengthTerms:
        """Constants of the lengths' closed form, Python floats; see `CostModel`."""
        return used_terms(
            attention_terms(np, plan.attention, plan.device, self.attention),
            recurrent_terms(np, plan.recurrent, plan.device, self.recurrent, self.elementwise.floor_s),
        )

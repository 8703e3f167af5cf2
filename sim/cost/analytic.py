"""The analytic cost model: tiles, waves and rooflines from datasheets and published ceilings, no calibration."""

import tomllib
from functools import cache
from importlib.resources import files

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sim.cost.attention import (
    AttentionConstants,
    RecurrentConstants,
    attention_terms,
    attention_work,
    recurrent_terms,
    used_terms,
)
from sim.cost.collective import collective_s
from sim.cost.elementwise import ElementwiseConstants, elementwise_s
from sim.cost.gemm import GemmConstants, gemm_bytes, gemm_s
from sim.cost.head import sampler_s
from sim.cost.launch import exposed_launch_s
from sim.cost.lengths import LengthTerms, lengths_s
from sim.cost.model import CostModel
from sim.cost.moe import MoeConstants, moe_bytes, moe_s
from sim.cost.stats import BatchStats
from sim.cost.step_cost import StepCost
from sim.deployment.plan import PlanArrays


@cache
def constants() -> dict[str, dict[str, float | list[float]]]:
    """The numbers of `analytic.toml`, by group."""
    return tomllib.loads((files("sim.cost") / "analytic.toml").read_text())


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
        """Cost of the batch `stats`, by component. Shapes: any common leading axes; an empty batch costs nothing."""
        tokens, emitting = stats.padded_tokens, stats.emitting
        slots, device = plan.gemm, plan.device

        rows = slots.emitting * emitting[..., None] + (1.0 - slots.emitting) * tokens[..., None]
        products_s = slots.count * gemm_s(rows, slots, device, self.gemm)
        head_gemm_s = jnp.sum(products_s * slots.emitting, axis=-1)
        gemm_total_s = jnp.sum(products_s * (1.0 - slots.emitting), axis=-1)
        moe_total_s = jnp.sum(moe_s(tokens, plan.moe, device, self.moe, self.elementwise), axis=-1)
        elementwise_total_s = jnp.sum(elementwise_s(tokens, plan.elementwise, device, self.elementwise), axis=-1)
        collectives_s = collective_s(plan.collective, tokens, emitting)
        logits = plan.collective.emitting
        collectives_s = jnp.where(
            logits * emitting[..., None] + (1.0 - logits) * tokens[..., None] > 0.0, collectives_s, 0.0
        )
        collective_total_s = jnp.sum(collectives_s * (1.0 - logits), axis=-1)
        head_s = head_gemm_s + sampler_s(emitting, device, self.elementwise) + jnp.sum(collectives_s * logits, axis=-1)
        device_s = gemm_total_s + moe_total_s + elementwise_total_s + collective_total_s

        attention_bytes, attention_flops = attention_work(jnp, plan, stats)
        moved = jnp.sum(slots.count * jnp.where(rows > 0.0, gemm_bytes(rows, slots), 0.0), axis=-1)
        moved = moved + jnp.sum(plan.moe.count * moe_bytes(tokens, plan.moe), axis=-1) + attention_bytes
        routed = plan.moe.top_k * plan.moe.local_experts / jnp.maximum(plan.moe.experts, 1.0)
        expert_flops = 2.0 * plan.moe.count * routed * plan.moe.matrices * plan.moe.hidden * plan.moe.inter
        flops = 2.0 * jnp.sum(slots.count * rows * slots.n * slots.k, axis=-1)
        flops = flops + jnp.sum(expert_flops, axis=-1) * tokens + attention_flops
        like = jnp.zeros_like(device_s)
        return StepCost(
            gemm_s=gemm_total_s,
            attention_s=self._attention_s(plan, stats),
            moe_s=moe_total_s,
            elementwise_s=elementwise_total_s,
            head_s=head_s,
            collective_s=collective_total_s,
            launch_s=exposed_launch_s(tokens, stats.graph_mode, device_s, device),
            host_s=jnp.where(tokens > 0.0, device.host_s, 0.0),
            memory_bytes=moved,
            flops=flops,
            rel_error=like + self.rel_error,
            outside_share=like + self.outside_share,
        )

    def _attention_s(self, plan: PlanArrays, stats: BatchStats) -> Float[Array, "*config"]:
        batch = [
            getattr(stats, name)[..., None]
            for name in (
                "prefill_tokens",
                "prefill_chunks",
                "prefill_area",
                "prefill_kv_tokens",
                "prefill_max_tokens",
                "decodes",
                "decode_sum",
                "decode_max",
                "decode_sumsq",
            )
        ]
        kinds = attention_terms(jnp, plan.attention, plan.device, self.attention)
        states = recurrent_terms(jnp, plan.recurrent, plan.device, self.recurrent, self.elementwise.floor_s)
        per_kind = lengths_s(jnp, LengthTerms(attention=(kinds,)), *batch)
        per_state = lengths_s(jnp, LengthTerms(recurrent=(states,)), *batch)
        return jnp.sum(per_kind, axis=-1) + jnp.sum(per_state, axis=-1)

    def length_terms(self, plan: PlanArrays) -> LengthTerms:
        """Constants of the lengths' closed form, Python floats; see `CostModel`."""
        return used_terms(
            attention_terms(np, plan.attention, plan.device, self.attention),
            recurrent_terms(np, plan.recurrent, plan.device, self.recurrent, self.elementwise.floor_s),
        )

"""The cost of a step as the sum of its kernels, each analytic or learned."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.attention import attention_terms, used_terms
from sim.cost.beside import BesideTerms, beside_experts, beside_terms
from sim.cost.collective import CollectiveTerms, collective_price, collective_terms
from sim.cost.context import ContextPrices, context_prices, moved_price
from sim.cost.decode import DecodeTerms
from sim.cost.head import SamplerConstants, SamplerTerms
from sim.cost.kernel import ExpertKernel, LengthKernel, TokenKernel
from sim.cost.launch import LaunchTerms, exposed_launch_s, launch_terms
from sim.cost.lengths import AttentionTerms, LengthTerms, lengths_s
from sim.cost.model import CostModel
from sim.cost.prefill import PrefillTerms
from sim.cost.priced import Priced, claims
from sim.cost.recurrent import RecurrentTerms
from sim.cost.service import attention_in_service, in_service, states_in_service
from sim.cost.slots import slots_first
from sim.cost.stats import LENGTHS, BatchStats
from sim.cost.step_cost import StepCost
from sim.cost.work import WorkTerms, step_work, work_terms
from sim.deployment.plan import AttentionSlots, DeviceArrays, PlanArrays, RecurrentSlots


class StepTerms(NamedTuple):
    """A plan's share of the price, by kernel: leaves with slots first and the plan's `config` axes last.

    `emitting`: 1 for products of the emitting rows. `kinds`, `states`: the plan's slots, for their kernels' doubt.
    `query_tokens`: of a decode row that verifies drafts; None without drafts.
    """

    gemm: Any
    beside: BesideTerms
    emitting: Float[Array, "gemm *config"]
    attention: AttentionTerms
    recurrent: RecurrentTerms
    moe: Any
    elementwise: Any
    collective: CollectiveTerms
    sampler: SamplerTerms
    work: WorkTerms
    launch: LaunchTerms
    kinds: AttentionSlots
    states: RecurrentSlots
    context: ContextPrices | None
    device: DeviceArrays
    query_tokens: Any


class KernelCost(CostModel):
    """Sum of the kernels of one step on one rank.

    Every constant is an array leaf, so that `jax.grad` reaches it and a calibration may replace it (`eqx.tree_at`).
    `rel_error` is the error claimed of launches and host.
    """

    gemm: TokenKernel
    decode: LengthKernel[DecodeTerms]
    prefill: LengthKernel[PrefillTerms]
    elementwise: TokenKernel
    sampler: SamplerConstants
    moe: ExpertKernel
    recurrent: LengthKernel[RecurrentTerms]
    rel_error: Float[Array, ""]

    def terms(self, plan: PlanArrays) -> StepTerms:
        """What of a step's price does not depend on the batch. Whoever prices many batches computes it once."""
        work = work_terms(plan)
        plan, device = in_service(plan), plan.device
        states = slots_first(plan.recurrent)
        attention = attention_terms(
            jnp, plan.attention, device, self.decode, self.prefill, plan.context, plan.query_tokens
        )
        return StepTerms(
            gemm=self.gemm.terms(plan.gemm, device),
            beside=beside_terms(plan.gemm, device),
            emitting=slots_first(plan.gemm.emitting),
            attention=attention_in_service(attention, device),
            recurrent=states_in_service(self.recurrent.terms(jnp, states, device), device),
            moe=self.moe.terms(plan.moe, device),
            elementwise=self.elementwise.terms(plan.elementwise, device),
            collective=collective_terms(plan.collective),
            sampler=self.sampler.terms(device),
            work=work,
            launch=launch_terms(device),
            kinds=slots_first(plan.attention),
            states=states,
            context=context_prices(plan.context),
            device=device,
            query_tokens=plan.query_tokens,
        )

    def price(self, terms: StepTerms, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats` from the plan's `terms`. Shapes: the same `config` axes."""
        tokens, emitting = stats.padded_tokens, stats.emitting + stats.draft_tokens

        logits = terms.emitting
        products = self.gemm.price(terms.gemm, logits * emitting + (1.0 - logits) * tokens)
        products = beside_experts(terms.beside, products, tokens)
        body, head = products.times(1.0 - logits).total(), products.times(logits).total()
        ranks = 1.0 if terms.context is None else terms.context.terms.query_ranks
        moe = self.moe.price(terms.moe, tokens * ranks).total()
        elementwise = self.elementwise.price(terms.elementwise, tokens).total()

        gathers = terms.collective.emitting
        moved = collective_price(terms.collective, tokens, emitting)
        collective, gather = moved.times(1.0 - gathers).total(), moved.times(gathers).total()
        sampler = self.sampler.price(terms.sampler, emitting)

        device_s = body.seconds + moe.seconds + elementwise.seconds + collective.seconds
        launch_s = exposed_launch_s(terms.launch, tokens, stats.graph_mode, device_s)
        host_s = jnp.where(tokens > 0.0, terms.device.host_s, 0.0)
        attention = self.attention(terms, stats)
        kernels = [body, head, moe, elementwise, collective, gather, sampler, attention]
        error, outside = claims(kernels, [launch_s, host_s], self.rel_error)
        memory_bytes, flops = step_work(terms.work, stats)
        return StepCost(
            gemm_s=body.seconds,
            attention_s=attention.seconds,
            moe_s=moe.seconds,
            elementwise_s=elementwise.seconds,
            head_s=head.seconds + gather.seconds + sampler.seconds,
            collective_s=collective.seconds,
            launch_s=launch_s,
            host_s=host_s,
            memory_bytes=memory_bytes,
            flops=flops,
            rel_error=error,
            outside_share=outside,
        )

    def attention(self, terms: StepTerms, stats: BatchStats) -> Priced:
        """Attention and state layers of all kinds; see `CostModel`."""
        batch = {name: getattr(stats, name) for name in LENGTHS}
        split = None if terms.context is None else terms.context.terms
        kinds = LengthTerms((terms.attention,), context=split, query_tokens=terms.query_tokens)
        kinds_s: Any = lengths_s(jnp, kinds, **batch, draft_tokens=stats.draft_tokens)
        states_s: Any = lengths_s(jnp, LengthTerms(recurrent=(terms.recurrent,)), **batch)
        prefills = stats.prefill_tokens > 0.0
        decode = self.decode.doubt(terms.kinds, terms.device, stats)
        prefill = self.prefill.doubt(terms.kinds, terms.device, stats)
        error, outside = (jnp.where(prefills, one, other) for one, other in zip(prefill, decode, strict=True))
        kinds_priced = Priced(kinds_s, kinds_s * error, kinds_s * outside).total()
        error, outside = self.recurrent.doubt(terms.states, terms.device, stats)
        states = Priced(states_s, states_s * error, states_s * outside).total()
        parts = [kinds_priced, states]
        if terms.context is not None:
            prior = stats.prefill_kv_tokens - stats.prefill_tokens
            parts.append(moved_price(terms.context, stats.prefill_tokens, stats.decodes, prior).total())
        return Priced(*(sum(part[1:], part[0]) for part in zip(*parts, strict=True)))

    def experts(
        self,
        terms: StepTerms,
        tokens: Float[Array, "*config"],
        rows: Float[Array, "*config"],
        active: Float[Array, "*config"],
    ) -> Priced:
        """Routed experts of every slot under given loads; see `CostModel`."""
        return self.moe.price_loads(terms.moe, tokens, rows, active)

    def lengths(self, terms: StepTerms) -> LengthTerms:
        """Constants of the lengths' closed form, Python floats; see `CostModel`."""
        return used_terms(terms.attention, terms.recurrent, terms.context, terms.query_tokens)

"""What a step moves and computes, whatever its kernels take for it: bytes of memory and FLOPs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.context import pieces
from sim.cost.decode import windowed_rows
from sim.cost.prefill import windowed_chunk
from sim.cost.slots import slots_first
from sim.cost.stats import BatchStats
from sim.deployment.plan import AttentionSlots, ContextArrays, GemmSlots, MoeSlots, PlanArrays, RecurrentSlots


OUTPUT_BYTES = 2.0


class ProductWork(NamedTuple):
    """Weight products, all of a slot together: bytes of their weights, bytes and FLOPs of one row."""

    emitting: Float[Array, "gemm *config"]
    weight_bytes: Float[Array, "gemm *config"]
    row_bytes: Float[Array, "gemm *config"]
    row_flops: Float[Array, "gemm *config"]


class ExpertWork(NamedTuple):
    """Routed experts, all layers together: bytes of one expert, bytes and FLOPs of one token, log(1 - k/E)."""

    local_experts: Float[Array, "moe *config"]
    log_missed: Float[Array, "moe *config"]
    expert_bytes: Float[Array, "moe *config"]
    token_bytes: Float[Array, "moe *config"]
    token_flops: Float[Array, "moe *config"]


class AttentionWork(NamedTuple):
    """What attention and states read and compute, by kind: all layers together. Leaves `[kind, *config]`."""

    kv_bytes: Float[Array, "kind *config"]
    key_flops: Float[Array, "kind *config"]
    pair_flops: Float[Array, "kind *config"]
    window: Float[Array, "kind *config"]
    chunked: Float[Array, "kind *config"]
    state_bytes: Float[Array, "*config"]
    state_flops: Float[Array, "*config"]


class WorkTerms(NamedTuple):
    """A plan's share of the work of a step; `context`: how its ranks divide attention, if they do."""

    products: ProductWork
    experts: ExpertWork
    attention: AttentionWork
    context: ContextArrays | None = None


def work_terms(plan: PlanArrays) -> WorkTerms:
    """What of a step's work does not depend on the batch; leaves `[slot, *config]`."""
    return WorkTerms(
        product_work(plan.gemm),
        expert_work(plan.moe),
        attention_work_terms(plan.attention, plan.recurrent),
        plan.context,
    )


def product_work(slots: GemmSlots) -> ProductWork:
    """Weights, input and output moved once, two FLOPs per weight and row."""
    slots = slots_first(slots)
    return ProductWork(
        emitting=slots.emitting,
        weight_bytes=slots.count * slots.n * slots.k * slots.weight_bytes_per_param,
        row_bytes=slots.count * (slots.k * slots.input_bytes + slots.n * OUTPUT_BYTES),
        row_flops=2.0 * slots.count * slots.n * slots.k,
    )


def expert_work(slots: MoeSlots) -> ExpertWork:
    """Weights of the active experts, activations of the rank's rows between their matrices."""
    slots = slots_first(slots)
    visited = slots.top_k / jnp.maximum(slots.experts, 1.0)
    weights = slots.matrices * slots.hidden * slots.inter
    rows = slots.count * visited * slots.local_experts
    return ExpertWork(
        local_experts=slots.local_experts,
        log_missed=jnp.log(jnp.clip(1.0 - visited, 1e-9, 1.0)),
        expert_bytes=slots.count * weights * slots.weight_bytes_per_param,
        token_bytes=rows * OUTPUT_BYTES * (2.0 * slots.hidden + (slots.matrices + 1.0) * slots.inter),
        token_flops=2.0 * rows * weights,
    )


def active_experts(
    local_experts: Float[Array, "*axes"], log_missed: Float[Array, "*axes"], tokens: Float[Array, "*config"]
) -> Float[Array, "*axes"]:
    """Expected local experts that at least one of `tokens` tokens visits: `local (1 - (1 - k/E)^T)`."""
    return local_experts * -jnp.expm1(tokens * log_missed)


def attention_work_terms(attention: AttentionSlots, recurrent: RecurrentSlots) -> AttentionWork:
    """Bytes per key, FLOPs per key of a decode row and per pair of a chunk; states per sequence and per token."""
    kinds, states = slots_first(attention), slots_first(recurrent)
    heads = 2.0 * kinds.count * kinds.q_heads
    return AttentionWork(
        kv_bytes=kinds.count * kinds.kv_bytes_per_token,
        key_flops=heads * (kinds.qk_dim + kinds.v_dim),
        pair_flops=heads * kinds.prefill_dim,
        window=kinds.window,
        chunked=kinds.chunked,
        state_bytes=jnp.sum(2.0 * states.count * states.state_bytes, axis=0),
        state_flops=jnp.sum(states.count * states.flops_per_token, axis=0),
    )


def step_work(terms: WorkTerms, stats: BatchStats) -> tuple[Float[Array, "*config"], Float[Array, "*config"]]:
    """Bytes of memory moved and FLOPs of one step."""
    products, experts = terms.products, terms.experts
    tokens = stats.padded_tokens
    rows = products.emitting * (stats.emitting + stats.draft_tokens) + (1.0 - products.emitting) * tokens
    product_bytes = jnp.where(rows > 0.0, products.weight_bytes + rows * products.row_bytes, 0.0)
    together = tokens if terms.context is None else tokens * terms.context.query_ranks
    active = active_experts(experts.local_experts, experts.log_missed, together)
    expert_bytes = active * experts.expert_bytes + together * experts.token_bytes
    read, flops = attention_work(terms.attention, stats, terms.context)
    moved = jnp.sum(product_bytes, axis=0) + jnp.sum(expert_bytes, axis=0) + read
    flops = flops + jnp.sum(rows * products.row_flops, axis=0) + jnp.sum(together * experts.token_flops, axis=0)
    return moved, flops


def attention_work(
    terms: AttentionWork, stats: BatchStats, split: ContextArrays | None = None
) -> tuple[Float[Array, "*config"], Float[Array, "*config"]]:
    """Cache and state bytes read, and FLOPs, of one step over all layers."""
    rows = jnp.maximum(stats.decodes, 1.0)
    mean = stats.decode_sum / rows
    variance = jnp.maximum(stats.decode_sumsq / rows - mean * mean, 0.0)
    reach: Any
    reach, _, _ = windowed_rows(jnp, mean, variance, stats.decode_max, terms.window, terms.chunked)
    tokens, chunks = jnp.maximum(stats.prefill_tokens, 1.0), jnp.maximum(stats.prefill_chunks, 1.0)
    seen, context, _ = windowed_chunk(
        jnp,
        stats.prefill_area / tokens,
        tokens / chunks,
        chunks,
        stats.prefill_kv_tokens,
        stats.prefill_max_tokens,
        terms.window,
        terms.chunked,
    )
    keys, pairs = reach * (stats.decodes + stats.draft_tokens), seen * stats.prefill_tokens
    streamed = reach * stats.decodes
    if split is not None:
        streamed, pairs = streamed / split.key_ranks, pairs / split.query_ranks
        _, _, context, _ = pieces(jnp, split.query_ranks, stats.prefill_tokens, chunks, context, 0.0)
    read = jnp.sum(terms.kv_bytes * (streamed + context), axis=0)
    flops = jnp.sum(terms.key_flops * keys + terms.pair_flops * pairs, axis=0)
    read = read + terms.state_bytes * (stats.decodes + stats.prefill_chunks)
    return read, flops + terms.state_flops * (stats.decodes + stats.draft_tokens + stats.prefill_tokens)

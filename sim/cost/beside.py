"""Shared experts of small batches: products on a stream of their own, beside the routed experts.

Engines run them while the routed experts wait for their weights, or fuse them into the same grouped product (SGLang
up to 1,024 tokens, vLLM since 0.11 up to 256, TensorRT-LLM in captured graphs). Then only what they move and compute
shows, `max(bytes/memory rate, FLOPs/matrix rate)`: no floor, no waves. Larger batches run them in line.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.priced import Priced
from sim.cost.slots import slots_first
from sim.cost.work import product_work
from sim.deployment.plan import DeviceArrays, GemmSlots


BESIDE_TOKENS = 1024.0


class BesideTerms(NamedTuple):
    """`beside`: 1 for such products. Seconds of all of a slot's: of its weights, and of one row to move and compute."""

    beside: Float[Array, "gemm *config"]
    weight_s: Float[Array, "gemm *config"]
    row_s: Float[Array, "gemm *config"]
    compute_s: Float[Array, "gemm *config"]


def beside_terms(slots: GemmSlots, device: DeviceArrays) -> BesideTerms:
    """Constants of each configuration."""
    work = product_work(slots)
    return BesideTerms(
        beside=slots_first(slots.beside),
        weight_s=work.weight_bytes / device.memory_bytes_per_s,
        row_s=work.row_bytes / device.memory_bytes_per_s,
        compute_s=work.row_flops / slots_first(slots.flops_per_s),
    )


def beside_experts(terms: BesideTerms, products: Priced, tokens: Float[Array, "*config"]) -> Priced:
    """`products` with those beside the experts at what shows of them."""
    shows_s = jnp.maximum(terms.weight_s + tokens * terms.row_s, tokens * terms.compute_s)
    hidden = (terms.beside > 0.5) & (tokens > 0.0) & (tokens <= BESIDE_TOKENS)
    some_s = jnp.where(products.seconds > 0.0, products.seconds, 1.0)
    return products.times(jnp.where(hidden, jnp.minimum(shows_s / some_s, 1.0), 1.0))

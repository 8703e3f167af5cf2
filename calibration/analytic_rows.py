"""The analytic model on rows of operator tables: what a device that nobody measured may expect.

Each row becomes the plan slots of one such kernel, so that the very kernels of `sim.cost.analytic` price it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from predictors.attention.decode_kernels import is_latent
from predictors.family import Predicted
from predictors.gemm.rows import products_of
from predictors.moe.rows import experts_of
from predictors.table import OperatorTable
from sim.cost.analytic import analytic_cost
from sim.cost.attention import attention_terms
from sim.cost.lengths import LengthTerms, lengths_s
from sim.cost.stats import LENGTHS
from sim.deployment.lower import attention_family, attention_flops_per_s, lower
from sim.deployment.plan import UNLIMITED, AttentionSlots, DeviceArrays, ElementwiseSlots, GemmSlots, MoeSlots
from sim.hardware.spec import DeviceConf
from sim.model.read import load_model


ANY_MODEL = "llama-3.1-8b"
"""The rates of a device's plan are the same for every model."""


def analytic_rows(name: str, table: OperatorTable, device: DeviceConf) -> Predicted | None:
    """Every row of family `name` by the analytic model; None for a family whose rows it has no slots for."""
    price = PRICED.get(name)
    if price is None:
        return None
    with jax.enable_x64(True):
        seconds = np.asarray(price(table, device, lower(load_model(ANY_MODEL), device).device), np.float64)
    return Predicted(seconds, np.full(len(table), float(analytic_cost().rel_error)), np.ones(len(table)))


def _gemm(table: OperatorTable, device: DeviceConf, rates: DeviceArrays) -> Any:
    product: Any = products_of(table, device)
    one: Any = np.ones((len(table), 1))
    columns: dict[str, Any] = {
        "n": product.n,
        "k": product.k,
        "weight_bytes_per_param": product.weight_bytes,
        "input_bytes": product.input_bytes,
        "flops_per_s": product.flops_per_s,
    }
    none = dict.fromkeys(("emitting", "format", "beside"), 0.0 * one)
    slots = GemmSlots(count=one, **none, **{key: value[:, None] for key, value in columns.items()})
    kernel = analytic_cost().gemm
    return kernel.price(kernel.terms(slots, rates), jnp.asarray(table["m"])[None]).seconds[0]


def _moe(table: OperatorTable, device: DeviceConf, rates: DeviceArrays) -> Any:
    experts = experts_of(table, device)
    one: Any = np.ones((len(table), 1))
    names = ("experts", "local_experts", "top_k", "hidden", "inter", "matrices", "flops_per_s")
    columns: dict[str, Any] = {name: getattr(experts, name)[:, None] for name in names}
    weights: Any = experts.weight_bytes[:, None]
    slots = MoeSlots(count=one, weight_bytes_per_param=weights, format=0.0 * one, **columns)
    kernel = analytic_cost().moe
    return kernel.price(kernel.terms(slots, rates), jnp.asarray(table["tokens"])[None]).seconds[0]


def _elementwise(table: OperatorTable, device: DeviceConf, rates: DeviceArrays) -> Any:
    one, width = np.ones((len(table), 1)), table["bytes_per_token"][:, None]
    columns: dict[str, Any] = {"count": one, "bytes_per_token": width, "kind": 0.0 * one}
    slots, kernel = ElementwiseSlots(**columns), analytic_cost().elementwise
    return kernel.price(kernel.terms(slots, rates), jnp.asarray(table["tokens"])[None]).seconds[0]


def _attention(table: OperatorTable, device: DeviceConf, rates: DeviceArrays) -> Any:
    family, one = attention_family(device), np.ones(len(table))
    dims = table["qk_dim"] + table["v_dim"]
    latent = is_latent(table)
    columns: dict[str, Any] = {
        "count": one,
        "q_heads": table["q_heads"],
        "kv_heads": table["kv_heads"],
        "qk_dim": table["qk_dim"],
        "v_dim": table["v_dim"],
        "prefill_dim": dims,
        "kv_bytes_per_token": table["kv_heads"]
        * np.where(latent, table["qk_dim"], dims)
        * table["kv_bytes_per_element"],
        "context_flops": 0.0 * one,
        "window": np.minimum(table["window"], UNLIMITED),
        "chunked": 0.0 * one,
        "flops_per_s": attention_flops_per_s(device) * one,
        "tile_rows": family["tile_rows"] * one,
        "packed": family["packed"] * one,
        "wave": family["wave"] * one,
        "joint": one,
    }
    slots = AttentionSlots(**{name: value[:, None] for name, value in columns.items()})
    cost = analytic_cost()
    terms: Any = attention_terms(jnp, slots, rates, cost.decode, cost.prefill)
    terms = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0] if jnp.ndim(leaf) > 1 else jnp.asarray(leaf), terms)
    return lengths_s(jnp, LengthTerms(attention=(terms,)), *(jnp.asarray(table[name]) for name in LENGTHS))


PRICED: dict[str, Callable[[OperatorTable, DeviceConf, DeviceArrays], Any]] = {
    "gemm": _gemm,
    "decode": _attention,
    "mixed": _attention,
    "moe": _moe,
    "elementwise": _elementwise,
}

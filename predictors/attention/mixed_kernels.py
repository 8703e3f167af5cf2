"""The prefill kernels that tables tell apart, how each may cut its work, and which one runs a layer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from predictors.attention.mixed_form import Cut, Heads, Lengths
from predictors.table import OperatorTable


CUTS = (
    (64.0, 0.0, 1.0),
    (64.0, 0.0, 2.0),
    (128.0, 0.0, 1.0),
    (128.0, 1.0, 1.0),
    (64.0, 1.0, 1.0),
    (32.0, 1.0, 2.0),
)
"""Ways to cut work that are tried: query rows of a block, whether heads of a KV head share it, blocks on a unit."""
APART = ("flashinfer", "trtllm")
"""Kernels of vLLM that leave decodes to one of their own, by parts of the name; other engines always do."""
LATENT_DIMS = 320.0
"""Score and value dims of latent attention in prefill."""
ABSORBED = {("sglang", "flash_attention")}
"""Rows of the other formulation, over the compressed cache: 3.4 times the products, three times as long as the same
shapes in TensorRT-LLM. SGLang prefills with expanded keys."""
RANGES = ("tokens", "chunks", "prior", "decodes", "mean", "q_heads", "group", "dim")


class Known(NamedTuple):
    """What is known of each kernel, axis `kernel`.

    - `tile_rows`, `packed`, `resident`, `joint`: see `mixed_form.Cut`; `mixed`: 1 where the tables hold decodes.
    - `element_bytes`, `dim`, `count`: of the cache, of score and value products; rows in the tables.
    - `error`: median relative error on shapes the fit did not see.
    - `low`, `high`: logarithms of the ranges of `RANGES`, `[kernel, range]`; 1 is added to those that may be 0.
    """

    tile_rows: Any
    packed: Any
    resident: Any
    joint: Any
    mixed: Any
    element_bytes: Any
    dim: Any
    count: Any
    error: Any
    low: Any
    high: Any


def known_of(
    table: OperatorTable, names: np.ndarray, kernels: tuple[str, ...], lengths: Lengths, heads: Heads
) -> Known:
    """What the rows say of each kernel; cuts and errors are still to be found."""
    where = np.asarray(coordinates(lengths, heads))
    columns: dict[str, list] = {field: [] for field in Known._fields}
    for kernel in kernels:
        mine = names == kernel
        engine, _, label, _, element, dim = kernel.split("|")
        columns["tile_rows"].append(64.0)
        columns["packed"].append(0.0)
        columns["resident"].append(1.0)
        columns["joint"].append(float(engine in ("", "vllm") and not any(part in label for part in APART)))
        columns["mixed"].append(float((table["decodes"][mine] > 0.0).any()))
        columns["element_bytes"].append(float(element))
        columns["dim"].append(float(dim))
        columns["count"].append(float(mine.sum()))
        columns["error"].append(0.0)
        columns["low"].append(where[mine].min(axis=0))
        columns["high"].append(where[mine].max(axis=0))
    return Known(**{field: np.array(values, np.float64) for field, values in columns.items()})


def coordinates(lengths: Lengths, heads: Heads) -> Any:
    """Where a batch lies, `[..., range]`: logarithms of `RANGES`."""
    group = heads.q_heads / jnp.maximum(heads.kv_heads, 1.0)
    mean = jnp.where(lengths.decodes > 0.0, lengths.mean, 0.0)
    plus = (lengths.prior / lengths.chunks, lengths.decodes, mean)
    numbers = [
        jnp.log(jnp.maximum(lengths.tokens, 1.0)),
        jnp.log(jnp.maximum(lengths.chunks, 1.0)),
        *(jnp.log(1.0 + number) for number in plus),
        jnp.log(heads.q_heads),
        jnp.log(group),
        jnp.log(heads.dim),
    ]
    return jnp.stack(jnp.broadcast_arrays(*numbers), axis=-1)


def beyond(known: Known, code: Any, lengths: Lengths, heads: Heads) -> Any:
    """1 where a batch lies outside the ranges that its kernel was measured in, else 0.

    A kernel that decodes do not ride in does not care how many there are.
    """
    where = coordinates(lengths, heads)
    low, high, joint = (jnp.asarray(leaf)[code] for leaf in (known.low, known.high, known.joint))
    cares = jnp.stack([joint if name in ("decodes", "mean") else jnp.ones_like(joint) for name in RANGES], axis=-1)
    out = ((where < low - SLACK) | (where > high + SLACK)) & (cares > 0.0)
    return jnp.any(out, axis=-1).astype(where.dtype)


SLACK = 0.05
"""In logarithms."""


def cuts_of(known: Known, code: Any) -> Cut:
    """How the kernels of index `code` cut their work."""
    return Cut(*(jnp.asarray(leaf)[code] for leaf in (known.tile_rows, known.packed, known.resident, known.joint)))


def allowed_for(kernels: tuple[str, ...], engine: str) -> np.ndarray:
    """1 for kernels of `engine`; those of no named engine where it has none, else all.

    Where an engine has no kernel of latent attention's prefill (`ABSORBED` ones are none), those of others are allowed.
    """
    parts = [kernel.split("|") for kernel in kernels]
    engines = np.array([part[0] for part in parts])
    absorbed = np.array([(part[0], part[2]) in ABSORBED for part in parts])
    latent = np.array([float(part[5]) == LATENT_DIMS for part in parts]) & ~absorbed
    for wanted in (engine, ""):
        own = engines == wanted
        if own.any():
            return ((own & ~absorbed) | (latent & ~(latent & own).any())).astype(float)
    return np.ones(len(kernels))


def nearest(known: Known, allowed: Any, *, element_bytes: Any, dim: Any, latent: Any) -> Any:
    """Index of the kernel among `allowed` that was measured with what is nearest to each layer; traceable."""
    k = Known(*(jnp.asarray(leaf) for leaf in known))
    element_bytes, dim, latent = (jnp.asarray(value)[..., None] for value in (element_bytes, dim, latent))
    cost = (
        jnp.where(jnp.asarray(allowed) > 0.5, 0.0, 1e6)
        + jnp.where((latent > 0.5) == (k.dim == LATENT_DIMS), 0.0, 1e3)
        + 1e2 * jnp.abs(jnp.log2(element_bytes / k.element_bytes))
        + 1e1 * jnp.abs(jnp.log2(dim / k.dim))
        - 5.0 * k.mixed
        - 0.1 * jnp.log(k.count)
    )
    return jnp.argmin(cost, axis=-1)


def as_arrays(known: Known) -> Mapping[str, np.ndarray]:
    """For an artifact."""
    return known._asdict()

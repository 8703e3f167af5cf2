"""The decode kernels that tables tell apart, how each cuts its work, and which one runs a layer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from predictors.attention.decode_form import Rates, Rows
from predictors.table import OperatorTable
from sim.deployment.lower import attention_flops_per_s
from sim.hardware.spec import DeviceConf


OPS = ("decode", "decode_skewed", "decode_uniform", "mla_decode")
"""Of the rows that are decode kernels alone; modules hold projections, too."""
PACKED_ROWS = 64.0
IDLE, WAVES, NEVER = 0.0, 1.0, 2.0
LATENT_DIMS = (576.0, 512.0)


class Style(NamedTuple):
    """How a kernel cuts its work: query rows of a block (0: one query head each), blocks of a unit that it counts on when it
    splits, and by what rule; `lone`: the rule where each query head has a KV head of its own."""

    packed: float = PACKED_ROWS
    slots: float = 1.0
    rule: float = IDLE
    lone: float = IDLE


FLASH_2 = Style(slots=2.0, rule=WAVES, lone=NEVER)
STYLES = {
    "vllm||": FLASH_2,
    "vllm|vllm_flash_attn|": FLASH_2,
    "vllm|vllm_flash_attn_fa2|": FLASH_2,
    "vllm|vllm_flash_attn_fa3|": Style(rule=WAVES, lone=WAVES),
    "sglang|fa3|": Style(rule=WAVES, lone=WAVES),
}
"""By engine and kernel, as tables name them; the vLLM profiles that name none are FlashAttention-2."""
GROUPS = {"trtllm|torch_flow|": ((1.0, 1.0), (2.0, 32.0), (33.0, np.inf))}
"""Query heads per KV head that different kernels under one name take: those outside the middle give each head a block."""
ANY_GROUP = ((1.0, np.inf),)


class Kernels(NamedTuple):
    """What is known of each kernel, axis `kernel`: see `Style`, and what it was measured with.

    `heads_low`, `heads_high`: query heads per KV head; `dims`: score and value dims, `[kernel, shape]`, 0 to pad;
    `work`: most tokens times KV heads; `warm`: 1 where the cache held what fits.
    """

    packed: Any
    slots: Any
    rule: Any
    lone: Any
    heads_low: Any
    heads_high: Any
    kv_element_bytes: Any
    latent: Any
    warm: Any
    work: Any
    count: Any
    dims: Any


def is_decode(table: OperatorTable) -> np.ndarray:
    """The rows that this family is about."""
    return np.isin(table["op"], OPS) & (table["decodes"] > 0.0) & (table["prefill_tokens"] == 0.0)


def names_of(table: OperatorTable) -> np.ndarray:
    """The kernel of each row: `engine|kernel|version|bytes of a cache element`, and the range of heads if one matters."""
    group = table["q_heads"] / table["kv_heads"]
    labels = (table[name].tolist() for name in ("engine", "kernel", "engine_version", "kv_bytes_per_element"))
    found = []
    for engine, kernel, version, element, heads in zip(*labels, group.tolist(), strict=True):
        ranges = GROUPS.get(f"{engine}|{kernel}|", ANY_GROUP)
        low = next(low for low, high in ranges if heads <= high)
        found.append(f"{engine}|{kernel}|{version}|{element:g}" + (f"|{low:g}" if len(ranges) > 1 else ""))
    return np.array(found, object)


def engine_of(name: str) -> str:
    """The engine in a kernel's name."""
    return name.split("|")[0]


def kernels_of(table: OperatorTable, names: np.ndarray, known: tuple[str, ...]) -> Kernels:
    """What the rows say of each kernel in `known`."""
    columns: dict[str, list] = {field: [] for field in Kernels._fields}
    dims = table["qk_dim"] + table["v_dim"]
    for name in known:
        mine = names == name
        engine, kernel, _, element, *range_low = name.split("|")
        style = STYLES.get(f"{engine}|{kernel}|", Style())
        low, high = ANY_GROUP[0]
        if range_low:
            low, high = next(pair for pair in GROUPS[f"{engine}|{kernel}|"] if pair[0] == float(range_low[0]))
            style = style._replace(packed=0.0 if low != 2.0 else style.packed)
        columns["packed"].append(style.packed)
        columns["slots"].append(style.slots)
        columns["rule"].append(style.rule)
        columns["lone"].append(style.lone)
        columns["heads_low"].append(low)
        columns["heads_high"].append(min(high, 1e9))
        columns["kv_element_bytes"].append(float(element))
        columns["latent"].append(float(np.mean(table["qk_dim"][mine] != table["v_dim"][mine]) > 0.5))
        columns["warm"].append(float(np.mean(table["warm"][mine]) > 0.5))
        columns["work"].append(float(np.max(table["decode_sum"][mine] * table["kv_heads"][mine])))
        columns["count"].append(float(mine.sum()))
        columns["dims"].append(sorted(set(dims[mine].tolist())))
    width = max(len(shapes) for shapes in columns["dims"])
    columns["dims"] = [shapes + [0.0] * (width - len(shapes)) for shapes in columns["dims"]]
    return Kernels(**{field: np.array(values, np.float64) for field, values in columns.items()})


def rates_of(device: DeviceConf) -> Rates:
    """As a plan on the device has them."""
    return Rates(
        memory_bytes_per_s=device.memory_bytes_per_s * device.memory_efficiency,
        cache_bytes=device.cache_bytes,
        units=float(device.compute_units),
        flops_per_s=attention_flops_per_s(device),
    )


def rows_of(table: OperatorTable, kernels: Kernels, code: np.ndarray) -> Rows:
    """The batches of a table. A window cuts equal lengths; skewed batches have none."""
    rows, window = table["decodes"], table["window"]
    mean = table["decode_sum"] / rows
    variance = np.maximum(table["decode_sumsq"] / rows - mean**2, 0.0)
    longest = np.minimum(table["decode_max"], window)
    latent = table["qk_dim"] != table["v_dim"]
    read_dims = np.where(latent, table["qk_dim"], table["qk_dim"] + table["v_dim"])
    return rows_with(
        kernels,
        code,
        rows=rows,
        mean=np.minimum(mean, window),
        variance=np.where(variance > 1e-9 * mean**2, variance, 0.0),
        longest=longest,
        reach=table["decode_max"] / longest,
        q_heads=table["q_heads"],
        kv_heads=table["kv_heads"],
        dims=table["qk_dim"] + table["v_dim"],
        kv_bytes=table["kv_heads"] * read_dims * table["kv_bytes_per_element"],
        windowed=np.isfinite(window).astype(float),
        latent=latent.astype(float),
        warm=table["warm"],
    )


def rows_with(kernels: Kernels, code: Any, *, q_heads: Any, kv_heads: Any, **batch: Any) -> Rows:
    """The batches as the kernels of index `code` cut them."""
    packed, slots, rule, lone = (
        jnp.asarray(getattr(kernels, name))[code] for name in ("packed", "slots", "rule", "lone")
    )
    rule = jnp.where(q_heads <= kv_heads, lone, rule)
    return Rows(q_heads=q_heads, kv_heads=kv_heads, packed=packed, slots=slots, rule=rule, **batch)


def nearest(kernels: Kernels, allowed: np.ndarray, *, group: Any, element_bytes: Any, latent: Any, dims: Any) -> Any:
    """Index of the kernel among `allowed` that was measured with what is nearest to each layer; traceable."""
    k = Kernels(*(jnp.asarray(leaf) for leaf in kernels))
    group, element_bytes, latent, dims = (jnp.asarray(value)[..., None] for value in (group, element_bytes, latent, dims))
    known = jnp.where(k.dims > 0.0, k.dims, jnp.inf)
    away = jnp.min(jnp.abs(jnp.log2(dims[..., None] / known)), axis=-1)
    cost = (
        jnp.where(jnp.asarray(allowed), 0.0, 1e6)
        + 1e4 * jnp.abs(latent - k.latent)
        + 1e3 * jnp.abs(jnp.log2(element_bytes / k.kv_element_bytes))
        + 1e2 * ((group < k.heads_low) | (group > k.heads_high))
        + 1e1 * away
        + 2.0 * k.warm
        - 0.01 * jnp.log(k.count)
    )
    return jnp.argmin(cost, axis=-1)


def as_arrays(kernels: Kernels) -> Mapping[str, np.ndarray]:
    """For an artifact."""
    return kernels._asdict()

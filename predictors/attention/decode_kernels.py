"""The decode kernels that tables tell apart, how each cuts its work, and which one runs a layer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from predictors.attention.decode_form import Rates, Rows
from predictors.family import none_of
from predictors.table import OperatorTable
from sim.deployment.lower import attention_flops_per_s
from sim.hardware.spec import DeviceConf


OPS = ("decode", "decode_skewed", "decode_uniform", "mla_decode")
"""Of the rows that are decode kernels alone; modules hold projections, too."""
PACKED_ROWS = 64.0
IDLE, WAVES, NEVER = 0.0, 1.0, 2.0
LATENT_DIMS = (576.0, 512.0)


RULES = ((IDLE, 1.0), (WAVES, 1.0), (WAVES, 2.0), (NEVER, 1.0))
"""How a kernel may split rows: rule, and blocks per unit that it counts on."""
STYLES = {
    "vllm||": (2.0, 3.0),
    "vllm|vllm_flash_attn|": (2.0, 3.0),
    "vllm|vllm_flash_attn_fa2|": (2.0, 3.0),
    "vllm|vllm_flash_attn_fa3|": (1.0, 1.0),
    "sglang|fa3|": (1.0, 1.0),
}
"""Rules of kernels whose source is known, by engine and kernel: FlashAttention-2 (vLLM profiles that name none, too)
and -3. Those of others are found by trying."""
UNPACKED = ("vllm||", "vllm|vllm_flash_attn|", "vllm|vllm_flash_attn_fa2|")
"""Kernels that, where a layer has a window, give each query head its own block and never split: FlashAttention-2 packs
and splits only without one, whatever the length."""
WINDOW_KERNELS = (*UNPACKED, "sglang|fa3|")
"""Kernels of which another runs where a layer has a window, whatever the length; of all others where a context passes
it."""
UNCUT = ("sglang|triton|8192",)
"""Engine, kernel and window that the kernel does not apply: local layers that should see a chunk read everything."""
PLAIN, PAST, WINDOW = 0.0, 1.0, 2.0
"""Kernels that run without a window or within it, past it, or wherever there is one."""
STATES = {"": PLAIN, "past window": PAST, "window": WINDOW}
NO_WINDOW, WITHIN, BEYOND = 0, 1, 2
"""What a layer asks for: the row of `MISFIT`."""
MISFIT = ((0.0, 1.0, 1.0), (0.1, 1.0, 0.0), (1.0, 0.0, 0.0))
"""How badly a kernel (`PLAIN`, `PAST`, `WINDOW`) stands for what a layer asks for."""
GROUPS = {
    "trtllm|torch_flow|": ((1.0, 1.0), (2.0, 32.0), (33.0, np.inf)),
    "sglang|triton|": ((1.0, 1.0), (2.0, np.inf)),
    "sglang|flashinfer|": ((1.0, 3.0), (4.0, np.inf)),
}
"""Query heads per KV head that different kernels under one name take: TensorRT-LLM's outside the middle give each head
a block, SGLang's Triton kernel packs heads where there are several, its FlashInfer takes tensor cores from 4 on."""
ANY_GROUP = ((1.0, np.inf),)


class Kernels(NamedTuple):
    """What is known of each kernel, axis `kernel`.

    `packed`: query rows that share a block, 0 if each query head has its own; `rule`, `lone`: index in `RULES`, and
    that for layers with a KV head per query head; `heads_low`, `heads_high`: query heads per KV head; `dims`: score and
    value dims; `work`: most tokens, after the window, times KV heads; `warm`: 1 where the cache held what fits.
    """

    packed: Any
    rule: Any
    lone: Any
    heads_low: Any
    heads_high: Any
    kv_element_bytes: Any
    past: Any
    latent: Any
    warm: Any
    work: Any
    count: Any
    dims: Any


def is_decode(table: OperatorTable) -> np.ndarray:
    """The rows that this family is about."""
    return none_of(unused(table), len(table))


def unused(table: OperatorTable) -> Mapping[str, np.ndarray]:
    """See `predictors.family.Family.unused`."""
    return {
        "of batches that prefill": (table["decodes"] <= 0.0) | (table["prefill_tokens"] != 0.0),
        f"whose op is none of {', '.join(OPS)}": ~np.isin(table["op"], OPS),
    }


def is_latent(table: OperatorTable) -> np.ndarray:
    """Rows of latent attention, whose values are a part of their keys."""
    return (table["kv_heads"] == 1.0) & (table["qk_dim"] == LATENT_DIMS[0]) & (table["v_dim"] == LATENT_DIMS[1])


def names_of(table: OperatorTable) -> np.ndarray:
    """The kernel of each row: `engine|kernel|version|bytes of a cache element|head dim|fewest heads|window`.

    Kernels are compiled by head dim, and others run where heads per KV head or a window make a difference; the window
    is "", "past window" or, for `WINDOW_KERNELS`, "window".
    """
    group = table["q_heads"] / table["kv_heads"]
    window = window_of(table)
    past = table["decode_max"] > window
    within = np.isfinite(window)
    labels = (table[name].tolist() for name in ("engine", "kernel", "engine_version", "kv_bytes_per_element", "qk_dim"))
    found = []
    asked = (group.tolist(), within.tolist(), past.tolist())
    for engine, kernel, version, element, dim, heads, any_window, cut in zip(*labels, *asked, strict=True):
        which = f"{engine}|{kernel}|"
        low = next(low for low, high in GROUPS.get(which, ANY_GROUP) if heads <= high)
        state = "past window" if cut else ""
        if which in WINDOW_KERNELS:
            state = "window" if any_window else ""
        found.append(f"{which}{version}|{element:g}|{dim:g}|{low:g}|{state}")
    return np.array(found, object)


def window_of(table: OperatorTable) -> np.ndarray:
    """The window that each row's kernel applies."""
    labels = zip(table["engine"].tolist(), table["kernel"].tolist(), table["window"].tolist(), strict=True)
    uncut = np.array([f"{engine}|{kernel}|{window:g}" in UNCUT for engine, kernel, window in labels], bool)
    return np.where(uncut, np.inf, table["window"])


def window_state(table: OperatorTable) -> np.ndarray:
    """`NO_WINDOW`, `WITHIN` or `BEYOND` of each row."""
    window = window_of(table)
    inside = np.where(np.isfinite(window), WITHIN, NO_WINDOW)
    return np.where(table["decode_max"] > window, BEYOND, inside)


def style_of(name: str) -> tuple[float, float] | None:
    """The rules of a kernel whose source is known, by its name."""
    return (3.0, 3.0) if _unpacked(name) else STYLES.get(_which(name))


def _which(name: str) -> str:
    engine, kernel, *_ = name.split("|")
    return f"{engine}|{kernel}|"


def _unpacked(name: str) -> bool:
    return _which(name) in UNPACKED and name.endswith("|window")


def cut_of(name: str) -> str:
    """Which kernels cut their work alike: those that differ by the window alone."""
    return name.rpartition("|")[0]


def engine_of(name: str) -> str:
    """The engine in a kernel's name."""
    return name.split("|")[0]


def kernels_of(table: OperatorTable, names: np.ndarray, known: tuple[str, ...]) -> Kernels:
    """What the rows say of each kernel in `known`."""
    columns: dict[str, list] = {field: [] for field in Kernels._fields}
    dims = table["qk_dim"] + table["v_dim"]
    keys = np.minimum(table["decode_sum"], table["decodes"] * window_of(table))
    for name in known:
        mine = names == name
        engine, kernel, _, element, _, least, past = name.split("|")
        low, high = next(pair for pair in GROUPS.get(f"{engine}|{kernel}|", ANY_GROUP) if pair[0] == float(least))
        columns["packed"].append(0.0 if _unpacked(name) else PACKED_ROWS)
        rule, lone = style_of(name) or (0.0, 0.0)
        columns["rule"].append(rule)
        columns["lone"].append(lone)
        columns["heads_low"].append(low)
        columns["heads_high"].append(min(high, 1e9))
        columns["kv_element_bytes"].append(float(element))
        columns["past"].append(STATES[past])
        columns["latent"].append(float(is_latent(table)[mine][0]))
        columns["warm"].append(float(np.mean(table["warm"][mine]) > 0.5))
        columns["work"].append(float(np.max(keys[mine] * table["kv_heads"][mine])))
        columns["count"].append(float(mine.sum()))
        columns["dims"].append(float(dims[mine][0]))
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
    rows, window = table["decodes"], window_of(table)
    mean = table["decode_sum"] / rows
    variance = np.maximum(table["decode_sumsq"] / rows - mean**2, 0.0)
    longest = np.minimum(table["decode_max"], window)
    latent = is_latent(table)
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
    alone = jnp.asarray(q_heads) <= kv_heads
    choice = jnp.where(alone, jnp.asarray(kernels.lone)[code], jnp.asarray(kernels.rule)[code]).astype(jnp.int32)
    cut = jnp.asarray(RULES)[choice]
    rule, slots = cut[..., 0], cut[..., 1]
    packed = jnp.asarray(kernels.packed)[code]
    return Rows(q_heads=q_heads, kv_heads=kv_heads, packed=packed, slots=slots, rule=rule, **batch)


def nearest(
    kernels: Kernels, allowed: np.ndarray, *, group: Any, element_bytes: Any, latent: Any, past: Any, dims: Any
) -> Any:
    """Index of the kernel among `allowed` that was measured with what is nearest to each layer; traceable.

    `past`: `NO_WINDOW`, `WITHIN` or `BEYOND`.
    """
    k = Kernels(*(jnp.asarray(leaf) for leaf in kernels))
    group, element_bytes, latent, past, dims = (
        jnp.asarray(value)[..., None] for value in (group, element_bytes, latent, past, dims)
    )
    cost = (
        jnp.where(jnp.asarray(allowed), 0.0, 1e6)
        + 1e4 * jnp.abs(latent - k.latent)
        + 1e3 * jnp.abs(jnp.log2(element_bytes / k.kv_element_bytes))
        + jnp.where((group < k.heads_low) | (group > k.heads_high), 1e2, 0.0)
        + 1e1 * jnp.abs(jnp.log2(dims / k.dims))
        + 1e1 * jnp.asarray(MISFIT)[past, k.past.astype(jnp.int32)]
        + 2.0 * k.warm
        - 0.01 * jnp.log(k.count)
        - 1e-4 * jnp.arange(float(len(k.count)))
    )
    return jnp.argmin(cost, axis=-1)


def as_arrays(kernels: Kernels) -> Mapping[str, np.ndarray]:
    """For an artifact."""
    return kernels._asdict()

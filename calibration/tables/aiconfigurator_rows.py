"""Tables of single kernels in `aiconfigurator-core`: products, attention, quantising, state layers.

Latencies are milliseconds. `step` of a decode table counts the tokens before the one that is computed; the module
tables count it in (their grid is the same plus one).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from calibration.tables.rows import dtypes, equal_lengths, renamed, words


MS = 1e-3
KV_BYTES = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
MLA_HEAD = {"qk_dim": 192.0, "v_dim": 128.0}
"""Per head, as prefill computes it: 128 values without and 64 with position, 128 out (DeepSeek V2 and V3)."""
MLA_LATENT = {"qk_dim": 576.0, "v_dim": 512.0}
"""As decode reads it: one latent of 512 values and 64 with position for all heads; the output is a latent too."""
HOST_BOUND_FLOOR_S = 30e-6
"""A matrix product whose smallest shapes take longer waited for its launch: no graph was replayed."""
ALWAYS_IGNORED = ("framework", "version", "device", "power", "power_limit")

Rows = tuple[dict[str, Any], dict[str, Any], Float[np.ndarray, " row"]]
"""Columns, labels and seconds of a table."""


class Origin(NamedTuple):
    """Where a table comes from: the package, and the engine and version of its folder."""

    source: str
    engine: str
    version: str
    devices_per_node: int


class Convert(NamedTuple):
    """How one table is read: its family, its columns, and rows from them."""

    family: str
    needed: tuple[str, ...]
    ignored: tuple[str, ...]
    rows: Callable[[pa.Table, Origin], Rows]


def number(stored: pa.Table, name: str) -> Float[np.ndarray, " row"]:
    """A column as float64."""
    return stored[name].to_numpy().astype(np.float64)


def timings(kernel: np.ndarray, seconds: np.ndarray, floor_s: float) -> np.ndarray:
    """The label `timing`: "launch" for kernels that never run shorter than `floor_s`, else "kernel"."""
    timing = np.full(len(seconds), "kernel", object)
    for one in set(kernel.tolist()):
        if np.quantile(seconds[kernel == one], 0.01) > floor_s:
            timing[kernel == one] = "launch"
    return timing


def gemm(stored: pa.Table, origin: Origin) -> Rows:
    """[m, k] x [k, n]."""
    kernel, dtype = words(stored["kernel_source"]), dtypes(words(stored["gemm_dtype"]))
    seconds = number(stored, "latency") * MS
    timing = timings(kernel + dtype, seconds, HOST_BOUND_FLOOR_S)
    columns = {name: number(stored, name) for name in ("m", "n", "k")}
    return columns, {"kernel": kernel, "dtype": dtype, "op": "linear", "timing": timing}, seconds


def attention(stored: pa.Table, origin: Origin) -> Rows:
    """One layer's attention over equal lengths; `window_size` 0 is none."""
    decode = stored["op_name"][0].as_py() == "generation_attention"
    batch = number(stored, "batch_size")
    if decode:
        lengths = equal_lengths(decodes=batch, context=number(stored, "step") + number(stored, "isl"))
    else:
        lengths = equal_lengths(batch, number(stored, "isl"), number(stored, "step"))
    window = number(stored, "window_size") if "window_size" in stored.column_names else np.zeros(len(batch))
    columns = lengths | {
        "q_heads": number(stored, "num_heads"),
        "kv_heads": number(stored, "num_key_value_heads"),
        "qk_dim": number(stored, "head_dim"),
        "v_dim": number(stored, "head_dim"),
        "kv_bytes_per_element": _kv_bytes(stored),
        "window": np.where(window > 0.0, window, np.inf),
        "warm": 1.0,
    }
    labels = labels_of(stored, "attn_dtype", "decode" if decode else "prefill")
    return columns, labels, number(stored, "latency") * MS


def mla(stored: pa.Table, origin: Origin) -> Rows:
    """One layer's latent attention, the kernel alone or (op `..._module`) with its projections."""
    op = stored["op_name"][0].as_py()
    decode, module = "generation" in op, "module" in op or "gemm_type" in stored.column_names or origin_is_wide(stored)
    batch, heads = number(stored, "batch_size"), number(stored, "num_heads")
    isl, step = number(stored, "isl"), number(stored, "step")
    # Wide-EP tables put the context into isl; module tables count the computed token in step, kernel tables do not.
    context = np.where(step == 0.0, isl, step + np.where("module" in op, 0.0, isl))
    lengths = equal_lengths(decodes=batch, context=context) if decode else equal_lengths(batch, isl, step)
    columns = (
        lengths
        | {"q_heads": heads, "kv_heads": np.ones(len(batch)) if decode else heads}
        | (MLA_LATENT if decode else MLA_HEAD)
        | {"kv_bytes_per_element": _kv_bytes(stored), "window": np.inf, "warm": 1.0}
    )
    labels = labels_of(stored, "mla_dtype", f"mla_{'decode' if decode else 'prefill'}{'_module' if module else ''}")
    if "gemm_type" in stored.column_names:
        labels |= {"dtype": dtypes(words(stored["gemm_type"]))}
    if "model" in stored.column_names:
        labels |= {"model": words(stored["model"])}
    return columns, labels, number(stored, "latency") * MS


def origin_is_wide(stored: pa.Table) -> bool:
    """Whether these are the whole modules that SGLang runs under wide expert parallelism."""
    return stored["mla_dtype"][0].as_py() == "fp8_block"


def quantise(stored: pa.Table, origin: Origin) -> Rows:
    """Activations to fp8: `scale_matrix` reads 2 bytes and writes 1 per value; `compute_scale` reads them."""
    op = stored["op_name"][0].as_py()
    columns = {
        "tokens": number(stored, "m"),
        "bytes_per_token": number(stored, "k") * (2.0 if "compute" in op else 3.0),
    }
    return columns, labels_of(stored, "quant_dtype", f"quantise_{op}"), number(stored, "latency") * MS


def gated_delta(stored: pa.Table, origin: Origin) -> Rows:
    """Kernels of gated delta networks (GDN, KDA); `op` tells context, decode and verify, `kernel` which kernel."""
    keys = 2.0 * number(stored, "num_k_heads") * number(stored, "head_k_dim")
    return _recurrent(stored, "num_v_heads", "head_v_dim", "head_k_dim", keys)


def mamba2(stored: pa.Table, origin: Origin) -> Rows:
    """Kernels of Mamba 2 layers."""
    shared = 2.0 * number(stored, "n_groups") * number(stored, "d_state")
    return _recurrent(stored, "nheads", "head_dim", "d_state", shared)


def _recurrent(
    stored: pa.Table, heads: str, head_dim: str, state_dim: str, other_channels: Float[np.ndarray, " row"]
) -> Rows:
    """`other_channels`: of the convolution, beside those of the heads' values: queries and keys, or B and C."""
    phase = renamed(words(stored["phase"]), lambda name: "decode" if name == "generation" else name)
    batch, tokens = number(stored, "batch_size"), number(stored, "num_tokens")
    columns = {
        "tokens": tokens,
        "sequences": batch,
        "heads": number(stored, heads),
        "head_dim": number(stored, head_dim),
        "state_dim": number(stored, state_dim),
        "channels": number(stored, heads) * number(stored, head_dim) + other_channels,
        "hidden": number(stored, "d_model"),
    }
    labels = {
        "kernel": words(stored["kernel_source"]),
        "dtype": "bf16",
        "model": words(stored["model_name"]),
        "op": phase,
        "timing": "kernel",
    }
    return columns, labels, number(stored, "latency") * MS


def labels_of(stored: pa.Table, dtype: str, op: str) -> dict[str, Any]:
    """Labels of rows that were replayed as graphs; `dtype`: the column that names it."""
    return {
        "kernel": words(stored["kernel_source"]),
        "dtype": dtypes(words(stored[dtype])),
        "op": op,
        "timing": "kernel",
    }


def _kv_bytes(stored: pa.Table) -> np.ndarray:
    return renamed(words(stored["kv_cache_dtype"]), lambda name: str(KV_BYTES[name])).astype(np.float64)


_LENGTHS = ("op_name", "kernel_source", "batch_size", "isl", "step", "num_heads", "kv_cache_dtype", "latency")
_ATTENTION = Convert(
    "attention",
    (*_LENGTHS, "num_key_value_heads", "head_dim", "attn_dtype"),
    (*ALWAYS_IGNORED, "beam_width", "window_size"),
    attention,
)
_MLA = Convert(
    "attention",
    (*_LENGTHS, "mla_dtype"),
    (*ALWAYS_IGNORED, "model", "architecture", "gemm_type", "tp_size"),
    mla,
)
_QUANTISE = Convert(
    "elementwise", ("op_name", "kernel_source", "m", "k", "quant_dtype", "latency"), ALWAYS_IGNORED, quantise
)
_STATE = ("kernel_source", "phase", "batch_size", "num_tokens", "d_model", "model_name", "latency")
_DELTA = Convert(
    "recurrent",
    (*_STATE, "head_k_dim", "num_k_heads", "num_v_heads", "head_v_dim"),
    (*ALWAYS_IGNORED, "op_name", "seq_len", "d_conv"),
    gated_delta,
)
KERNELS: dict[str, Convert] = {
    "gemm_perf": Convert(
        "gemm", ("kernel_source", "gemm_dtype", "m", "n", "k", "latency"), (*ALWAYS_IGNORED, "op_name"), gemm
    ),
    "context_attention_perf": _ATTENTION,
    "generation_attention_perf": _ATTENTION,
    "context_mla_perf": _MLA,
    "generation_mla_perf": _MLA,
    "mla_context_module_perf": _MLA,
    "mla_generation_module_perf": _MLA,
    "wideep_context_mla_perf": _MLA,
    "wideep_generation_mla_perf": _MLA,
    "computescale_perf": _QUANTISE,
    "scale_matrix_perf": _QUANTISE,
    "gdn_perf": _DELTA,
    "kda_perf": _DELTA,
    "mamba2_perf": Convert(
        "recurrent",
        (*_STATE, "nheads", "head_dim", "d_state", "n_groups"),
        (*ALWAYS_IGNORED, "op_name", "seq_len", "d_conv", "chunk_size"),
        mamba2,
    ),
}
"""How each table of the package is read, by file name."""

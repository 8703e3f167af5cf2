"""Profiles of Vidur: `profiling/compute/<device>/<model>/{mlp,attention}.csv`, `profiling/network/<node>/*.csv`.

Medians in milliseconds of kernels traced on the device, resolution 1 us; sizes in bytes. One kernel was called again
and again. A context is the one before the computed token.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from calibration.tables import layers
from calibration.tables.dimensions import Dimensions
from calibration.tables.layers import Columns, Profile, read_csv
from calibration.tables.rows import COPY, Part, device_of, equal_lengths, renamed, table
from predictors.table import OperatorTable, concatenated


SOURCE = "Vidur"
MS = 1e-3
DEVICES = {"a100": "a100-sxm-80gb", "h100": "h100-sxm", "a40": "a40", "a800": "a800", "h800": "h800"}
NODES = {
    "a100_dgx": "a100-sxm-80gb",
    "h100_dgx": "h100-sxm",
    "a100_pairwise_nvlink": "a100-pcie-80gb",
    "h100_pairwise_nvlink": "h100-pcie",
    "a40_pairwise_nvlink": "a40",
    "a800_pairwise_nvlink": "a800",
}
OPS = {
    "emb": "embedding_shard",
    "input_layernorm": "norm_only",
    "post_attention_layernorm": "norm_only",
    "attn_pre_proj": "qkv_proj",
    "attn_rope": "rotary",
    "attn_post_proj": "o_proj",
    "mlp_up_proj": "gate_up_proj",
    "mlp_act": "activation",
    "mlp_down_proj": "down_proj",
    "add": "add",
}
OPERATIONS = {"all_reduce": "all_reduce", "send_recv": "send"}
UNKNOWN = Dimensions(hidden=0, inter=0, q_heads=1, kv_heads=1, head_dim=0, vocab=0)
"""Where the rows of a file carry their own shapes."""
STATISTICS = ("min", "max", "mean", "std", "count")
MLP = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "use_gated_mlp", "num_tokens")
SPLIT = "num_tensor_parallel_workers"
ATTENTION_TIMES = ("attn_prefill", "attn_decode")
ATTENTION_OTHER = ("attn_input_reshape", "attn_kv_cache_save", "attn_output_reshape")
ATTENTION = ("prefill_chunk_size", "kv_cache_size", "batch_size", "is_prefill")
ATTENTION_SHAPE = ("n_q_head", "n_kv_head", "n_embd", SPLIT)
ATTENTION_IGNORED = ("max_model_len", "block_size", "attention_backend")


def matches(path: Path) -> bool:
    """Whether the folder holds profiles of Vidur, and none that Frontier added."""
    root = profiling(path)
    return root is not None and not any(root.glob("compute/**/linear_op*.csv"))


def profiling(path: Path) -> Path | None:
    """The folder above `compute` and `network`."""
    below = (path / "data/profiling", path / "profiling", path)
    return next((folder for folder in below if (folder / "compute").is_dir() or (folder / "network").is_dir()), None)


def parts(path: Path) -> Iterator[Part]:
    """One part per family of each file."""
    root = profiling(path)
    assert root is not None
    for file in sorted(root.glob("compute/**/*.csv")):
        hardware, *model = file.relative_to(root / "compute").parent.parts
        device = device_of(hardware, DEVICES, file)
        yield from compute_parts(file, SOURCE, device, "/".join(model))
    yield from network_parts(root, SOURCE)


def compute_parts(file: Path, source: str, device: str, model: str) -> Iterator[Part]:
    """Parts of one mlp.csv or attention.csv."""
    if file.stem == "mlp":
        for family in ("gemm", "elementwise"):
            yield Part(source, device, family, "", file, partial(_mlp, file, source, device, model, family))
    elif file.stem == "attention":
        profile = Profile(source, device, model, 1, UNKNOWN, dtype="fp16")
        yield Part(source, device, "attention", "", file, partial(attention, file, profile))


def _mlp(path: Path, source: str, device: str, model: str, family: str) -> OperatorTable:
    stored = read_csv(path, (*MLP, SPLIT), (*medians(OPS), *other_statistics(OPS)))
    profile = Profile(source, device, model, 1, dimensions_of(stored), dtype="fp16")
    return linear_rows(stored, present(OPS, stored), profile, family)


def present(ops: Mapping[str, str], stored: Columns) -> dict[str, str]:
    """The layers that a file has."""
    return {name: op for name, op in ops.items() if medians([name])[0] in stored}


def medians(ops: Iterable[str]) -> tuple[str, ...]:
    """Columns of the medians of `ops`."""
    return tuple(f"time_stats.{op}.median" for op in ops)


def other_statistics(ops: Iterable[str]) -> tuple[str, ...]:
    """Columns of `ops` that are not read."""
    return tuple(f"time_stats.{op}.{statistic}" for op in ops for statistic in STATISTICS)


def dimensions_of(stored: Columns, head_dim: float | None = None) -> Dimensions:
    """Dimensions from the columns of a profile, which has one model."""
    first = {name: stored[name][0] for name in MLP}
    return Dimensions(
        hidden=int(first["n_embd"]),
        inter=int(first["n_expanded_embd"]),
        q_heads=int(first["n_head"]),
        kv_heads=int(first["n_kv_head"]),
        head_dim=int(head_dim or first["n_embd"] // first["n_head"]),
        vocab=int(first["vocab_size"]),
        gated=bool(first["use_gated_mlp"]),
    )


def linear_rows(stored: Columns, ops: Mapping[str, str], profile: Profile, family: str) -> OperatorTable:
    """Rows of one family from a column per layer; `ops` names the layers as this project does."""
    read = {"gemm": layers.gemm, "elementwise": layers.elementwise, "sequence": layers.sequence}[family]
    found = [read(np.array([], object), np.array([]), np.array([]), profile)]
    for split in np.unique(stored[SPLIT]).tolist():
        for name, op in ops.items():
            chosen = (stored[SPLIT] == split) & ~np.isnan(stored[f"time_stats.{name}.median"])
            seconds = stored[f"time_stats.{name}.median"][chosen] * MS
            mine = profile._replace(tp=int(split))
            found.append(read(np.full(len(seconds), op, object), stored["num_tokens"][chosen], seconds, mine))
    return concatenated(found)


def lengths(
    chunk: np.ndarray, context: np.ndarray, batch: np.ndarray, prefill: np.ndarray
) -> tuple[Columns, np.ndarray]:
    """Length columns and `op` of rows that are a chunk on a context, or `batch` decodes on one each."""
    is_prefill = prefill > 0.0
    chunks, decodes = np.where(is_prefill, batch, 0.0), np.where(is_prefill, 0.0, batch)
    op = np.where(is_prefill, "prefill", "decode").astype(object)
    return equal_lengths(chunks, chunk, np.where(is_prefill, context, 0.0), decodes, context + 1.0), op


def attention(path: Path, profile: Profile) -> OperatorTable:
    """Prefill rows take the prefill kernel's time, decode rows the decode kernel's."""
    needed = (*ATTENTION, *ATTENTION_SHAPE, *medians(ATTENTION_TIMES))
    ignored = (*ATTENTION_IGNORED, *medians(ATTENTION_OTHER), *other_statistics((*ATTENTION_TIMES, *ATTENTION_OTHER)))
    stored = read_csv(path, needed, ignored)
    columns, op = lengths(*(stored[name] for name in ATTENTION))
    prefill, decode = (stored[name] * MS for name in medians(ATTENTION_TIMES))
    labels = profile.labels(op=op, kernel=backend(stored))
    heads = profile.heads() | {"warm": 1.0} | split_heads(stored)
    return table("attention", profile.device, np.where(op == "prefill", prefill, decode), columns | heads, labels)


def split_heads(stored: Columns, head_dim: float | None = None) -> Columns:
    """Heads of one rank, row by row, and their width."""
    width = head_dim or stored["n_embd"] // stored["n_q_head"]
    return {
        "q_heads": stored["n_q_head"] / stored[SPLIT],
        "kv_heads": np.maximum(stored["n_kv_head"] / stored[SPLIT], 1.0),
        "qk_dim": width,
        "v_dim": width,
    }


def backend(stored: Columns) -> np.ndarray:
    """The attention kernel's name."""
    return renamed(stored["attention_backend"], lambda name: name.removeprefix("AttentionBackend.").lower())


def network_parts(root: Path, source: str) -> Iterator[Part]:
    """Parts of all_reduce.csv and send_recv.csv; a file that repeats another node's says so in its source."""
    seen: dict[bytes, str] = {}
    for file in sorted(root.glob("network/*/*.csv")):
        if file.stem in OPERATIONS:
            device = device_of(file.parent.name, NODES, file)
            digest = hashlib.sha256(file.read_bytes()).digest()
            first = seen.setdefault(digest, file.parent.name)
            told = source if first == file.parent.name else f"{source} ({COPY} {first})"
            yield Part(source, device, "collective", "nccl", file, partial(_network, file, told, device))


def _network(path: Path, source: str, device: str) -> OperatorTable:
    needed = ("num_workers", "size", "devices_per_node", *medians([path.stem]))
    ignored = ("", "Unnamed: 0", "rank", "collective", "max_devices_per_node", *other_statistics([path.stem]))
    stored = read_csv(path, needed, ignored)
    columns = {
        "bytes": stored["size"],
        "ranks": stored["num_workers"],
        "nodes": np.ceil(stored["num_workers"] / stored["devices_per_node"]),
    }
    labels = {"source": source, "engine": "nccl", "kernel": path.parent.name, "op": OPERATIONS[path.stem]}
    seconds = stored[medians([path.stem])[0]] * MS
    return table("collective", device, seconds, columns, labels)

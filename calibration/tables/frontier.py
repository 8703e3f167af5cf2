"""Profiles of Frontier: Vidur's folders and columns with more of them: mixed batches, experts, two ways of timing.

`*_kernel_only.csv` has the device's time alone, the others the time between two events around the launch (some tens of
microseconds more); files of neither mark are Vidur's. Contexts are those before the computed token; experts' tables
count the rows that one rank got.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from calibration.tables import vidur
from calibration.tables.layers import Columns, Profile, read_csv
from calibration.tables.rows import Part, batch_lengths, device_of, table
from calibration.tables.vidur import MLP, MS, SPLIT, linear_rows, medians, other_statistics, profiling
from predictors.table import LENGTH_COLUMNS, OperatorTable


SOURCE = "Frontier"
DEVICES = vidur.DEVICES | {"rtx_pro_6000": "rtx-pro-6000"}
TIMINGS = {"KERNEL_ONLY": "kernel", "CUDA_EVENT": "launch"}
OPS = vidur.OPS | {
    "post_attention_layernorm": "norm",
    "mtp_fusion_proj": "mtp_proj",
    "lm_head_linear": "lm_head",
}
OTHER_ARCHITECTURES = {"attn_inter_norm": "", "attn_wq_proj": "", "attn_pre_proj_wq": ""}
"""Layers that only models with another attention have: their slices follow no shape that is known here."""
NOT_READ = (
    "attn_pre_proj_q_norm",
    "attn_pre_proj_qkv",
    "share_expert_act",
    "share_expert_down_proj",
    "share_expert_up_proj",
)
PADDED = ("padded_n_embd", "padded_n_expanded_embd")
MARKS = ("measurement_type", "model_arch", "model_architecture_profile", "profiling_precision", "quant_signature")
LINEAR_IGNORED = (*PADDED, "attn_output_gate", "is_step2_mini", "share_expert_dim", "share_q_dim", "use_qk_norm")
LISTS = ("prefill_seq_lens", "prefill_kv_cache_sizes", "decode_kv_cache_sizes")
ATTENTION_IGNORED = (
    *vidur.ATTENTION_IGNORED,
    *LISTS,
    "is_true_mixed_batch",
    "is_mixed_batch",
    "seq_lens",
    "avg_seq_len",
    "batch_composition_ratio",
    "chunk_end_token",
    "chunk_start_token",
    "decode_avg_kv_cache_size",
    "decode_batch_size",
    "equal_seq_len",
    "is_chunked_prefill_sample",
    "max_seq_len",
    "min_seq_len",
    "mode",
    "num_decode_seqs",
    "num_prefill_seqs",
    "seq_len_cv",
    "seq_len_std",
    "seq_len_variance",
    "total_batch_size",
    "total_decode_tokens",
    "total_prefill_tokens",
    "total_tokens",
)
MOE = ("num_tokens", "num_experts", "num_experts_per_device", "expert_parallel_size", "router_topk", "hidden_dim")
MOE_SHAPE = (*MOE, "expert_hidden_dim", "use_gated", SPLIT)
MOE_OPS = ("moe_gating_linear", "moe_gating_routing_topk", "moe_shuffling", "moe_gating")
MOE_IGNORED = (
    "total_routed_tokens",
    "expert_utilization",
    "max_load_ratio",
    "routing_assignment_policy",
    "gating_runtime_context",
    "gating_runtime_context_impl",
    "load_distribution",
    "load_entropy",
    "load_gini_coefficient",
    "load_imbalance_cv",
    "min_load_ratio",
    "model_expansion_ratio",
    "moe_grouped_gemm_backend",
    "profiling_patch_tag",
    "routing_runtime_path",
    "routing_uses_router_logits",
    "routing_weight_policy",
    "seed",
    "tokens_per_expert_avg",
    "tokens_to_experts_ratio",
)


def matches(path: Path) -> bool:
    """Whether the folder holds profiles in Vidur's folders with files that only Frontier has."""
    root = profiling(path)
    return root is not None and any(root.glob("compute/**/linear_op*.csv"))


def parts(path: Path) -> Iterator[Part]:
    """One part per family of each file."""
    root = profiling(path)
    assert root is not None
    for file in sorted(root.glob("compute/**/*.csv")):
        hardware, *model = file.relative_to(root / "compute").parent.parts
        device = device_of(hardware, DEVICES, file)
        head_dim = _head_dim(root.parent / "config/models" / f"{model[-1]}.json")
        for prefix, family, read in FILES:
            if file.stem.startswith(prefix):
                rest = (file, device, "/".join(model), head_dim)
                yield Part(SOURCE, device, family, "", file, partial(read, *rest))
        if file.stem == "mlp":
            yield from vidur.compute_parts(file, SOURCE, device, "/".join(model))
    yield from vidur.network_parts(root, SOURCE)


def _head_dim(config: Path) -> float | None:
    """Of the model's configuration, where it is beside the profiles; else hidden size over heads."""
    return json.loads(config.read_text(encoding="utf-8")).get("head_dim") if config.is_file() else None


def _profile(stored: Columns, device: str, model: str, head_dim: float | None) -> Profile:
    marks = {name: str(stored[name][0]) if name in stored else "" for name in MARKS}
    fp8 = "method=fp8" in marks["quant_signature"]
    return Profile(
        source=SOURCE,
        device=device,
        model=model,
        tp=1,
        dimensions=vidur.dimensions_of(stored, head_dim) if set(MLP) <= set(stored) else vidur.UNKNOWN,
        dtype="fp8" if fp8 else marks["profiling_precision"].lower() or "fp16",
        timing=TIMINGS.get(marks["measurement_type"], "kernel" if not marks["measurement_type"] else ""),
        warm=1.0,
    )


def linear(family: str, path: Path, device: str, model: str, head_dim: float | None) -> OperatorTable:
    """Projections and elementwise kernels of plain decoders; other architectures' slices follow no known shape."""
    every = (*OPS, *OTHER_ARCHITECTURES, *NOT_READ)
    ignored = (*LINEAR_IGNORED, *MARKS, *medians(every), *other_statistics(every))
    stored = read_csv(path, (*MLP, SPLIT), ignored)
    profile = _profile(stored, device, model, head_dim)
    gated = np.any(stored.get("attn_output_gate", np.zeros(1)) > 0.0)
    plain = stored["model_arch"][0] == "generic" and not gated and not vidur.present(OTHER_ARCHITECTURES, stored)
    ops = vidur.present(OPS, stored) if plain else {}
    if ops and np.any(stored.get("use_qk_norm", np.zeros(1)) > 0.0):
        ops |= {"attn_pre_proj": "qkv_norm_proj"}
    return linear_rows(stored, ops, profile, family)


def attention(path: Path, device: str, model: str, head_dim: float | None) -> OperatorTable:
    """Chunks, decodes, several chunks at once, and both in one batch: then the two kernels' times together."""
    needed = (*vidur.ATTENTION, *vidur.ATTENTION_SHAPE, *medians(vidur.ATTENTION_TIMES))
    every = (*vidur.ATTENTION_TIMES, *vidur.ATTENTION_OTHER)
    stored = read_csv(path, needed, (*ATTENTION_IGNORED, *MARKS, *medians(every), *other_statistics(every)))
    profile = _profile(stored, device, model, head_dim)
    columns, op = vidur.lengths(*(stored[name] for name in vidur.ATTENTION))
    prefill, decode = (stored[name] * MS for name in medians(vidur.ATTENTION_TIMES))
    seconds = np.where(op == "prefill", prefill, decode)
    for row in np.flatnonzero(_flag(stored, "is_mixed_batch") | _flag(stored, "is_true_mixed_batch")).tolist():
        if _flag(stored, "is_true_mixed_batch")[row]:
            chunks, prior, contexts = (json.loads(stored[name][row]) for name in LISTS)
            batch = batch_lengths(list(zip(chunks, prior, strict=True)), [context + 1.0 for context in contexts])
            op[row], seconds[row] = "mixed", prefill[row] + decode[row]
        else:
            prior = stored["kv_cache_size"][row]
            batch = batch_lengths([(chunk, prior) for chunk in json.loads(stored["seq_lens"][row])], [])
        for name in LENGTH_COLUMNS:
            columns[name][row] = batch[name]
    heads = profile.heads() | vidur.split_heads(stored, head_dim)
    labels = profile.labels(
        op=op, kernel=vidur.backend(stored), dtype="bf16" if profile.dtype == "fp8" else profile.dtype
    )
    return table("attention", device, seconds, columns | heads, labels)


def _flag(stored: Columns, name: str) -> np.ndarray:
    return np.nan_to_num(stored[name]) > 0.0 if name in stored else np.zeros(len(stored[SPLIT]), bool)


def moe(path: Path, device: str, model: str, head_dim: float | None) -> OperatorTable:
    """The grouped products of one rank; its own rows, times the ranks, are the tokens of the whole group."""
    every = (*MOE_OPS, "moe_expert_up_proj", "moe_expert_down_proj", "moe_grouped_gemm")
    stored = read_csv(
        path,
        (*MOE_SHAPE, *medians(["moe_grouped_gemm"])),
        (*MOE_IGNORED, *MARKS, *medians(every), *other_statistics(every)),
    )
    profile = _profile(stored, device, model, head_dim)
    ranks, top_k = stored["expert_parallel_size"], stored["router_topk"]
    local = stored.get("total_routed_tokens", stored["num_tokens"] * top_k)
    policy = stored.get("routing_assignment_policy", np.full(len(top_k), "", object))
    share = stored.get("expert_utilization", np.full(len(top_k), np.nan))
    columns = {
        "tokens": local * ranks / top_k,
        "experts": stored["num_experts"],
        "top_k": top_k,
        "hidden": stored["hidden_dim"],
        "inter": stored["expert_hidden_dim"],
        "tp": stored[SPLIT],
        "ep": ranks,
        "matrices": np.where(stored["use_gated"] > 0.0, 3.0, 2.0),
        "active": share * stored["num_experts_per_device"],
        "max_load": stored.get("max_load_ratio", np.full(len(top_k), np.nan)),
        "skew": np.where(policy == "round_robin_uniform", 0.0, np.nan),
    }
    labels = profile.labels(op="experts", timing=profile.timing if "measurement_type" in stored else "")
    return table("moe", device, stored[medians(["moe_grouped_gemm"])[0]] * MS, columns, labels)


FILES: tuple[tuple[str, str, Callable[..., OperatorTable]], ...] = (
    ("linear_op", "gemm", partial(linear, "gemm")),
    ("linear_op", "elementwise", partial(linear, "elementwise")),
    ("linear_op", "sequence", partial(linear, "sequence")),
    ("attention", "attention", attention),
    ("moe", "moe", moe),
)
"""Prefix of a file's name, the family that is read from it, and how."""

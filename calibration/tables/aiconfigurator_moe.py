"""Tables of experts in `aiconfigurator-core`: one rank's grouped products, router and exchange left out.

Tokens are those of the whole expert-parallel group. `balanced` and `uniform` deal rows to the experts in turn.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from calibration.tables.aiconfigurator_rows import ALWAYS_IGNORED, MS, Convert, Origin, Rows, labels_of, number
from calibration.tables.rows import renamed, words
from predictors.table import GROUP_LIMITED


EXPERT_SHAPE = ("hidden_size", "inter_size", "num_experts", "topk")
TWO_MATRIX_EXPERTS = frozenset(
    {(1024, 2688, 512, 22), (2048, 5120, 512, 22), (2688, 1856, 128, 6), (4096, 2688, 512, 22), (8192, 5120, 512, 22)}
)
"""(hidden, inter, experts, top_k) of models without a gate; the package itself says so of its TensorRT-LLM rows."""
GATED_VERSIONS = {("vllm", "0.14.0"), ("vllm", "0.19.0"), ("vllm", "0.22.0"), ("sglang", "0.5.10")}
"""Profiled those models with three matrices all the same: with two they would reach 0.6 of the rate of gated ones."""
PHASES = {"moe_context": ", context", "moe_generation": ", generation"}
"""Two layouts that share a kernel's name."""
GROUP_LIMITED_MODEL = (7168, 2048, 256, 8)
GROUP_LIMITED_VERSIONS = {("vllm", "0.24.0"), ("sglang", "0.5.14")}
"""These chose 4 of 8 groups of experts first, as DeepSeek V3 does; their even rows reach half the experts, and take
0.51 of the time per expert size that other models' rows take. Real tokens choose different groups."""
GATED_STAND_INS = {("sglang_fused_moe_triton", (1024, 2688, 512, 22))}
"""As well, by kernel and shape, in newer versions."""


def moe(stored: pa.Table, origin: Origin) -> Rows:
    """One rank's experts, router left out; tokens of all ranks of the expert group together."""
    kernel = words(stored["kernel_source"])
    columns: dict[str, Any] = {
        name: number(stored, column)
        for name, column in (
            ("tokens", "num_tokens"),
            ("experts", "num_experts"),
            ("top_k", "topk"),
            ("hidden", "hidden_size"),
            ("inter", "inter_size"),
            ("tp", "moe_tp_size"),
            ("ep", "moe_ep_size"),
        )
    }
    sizes = (number(stored, name).astype(int).tolist() for name in EXPERT_SHAPE)
    shapes = list(zip(*sizes, kernel.tolist(), strict=True))
    columns |= {
        "matrices": np.array([_matrices(tuple(shape), name, origin) for *shape, name in shapes]),
        "active": np.nan,
        "max_load": np.nan,
        "skew": renamed(words(stored["distribution"]), lambda law: str(routing_skew(law))).astype(np.float64),
    }
    op = renamed(words(stored["distribution"]), lambda law: "experts_eplb" if law.endswith("_eplb") else "experts")
    if (origin.engine, origin.version) in GROUP_LIMITED_VERSIONS:
        op[np.array([shape[:-1] == GROUP_LIMITED_MODEL for shape in shapes], bool)] = GROUP_LIMITED
    labels = labels_of(stored, "moe_dtype", "experts") | {"kernel": kernel + _moe_kind(stored), "op": op}
    return columns, labels, number(stored, "latency") * MS


def _moe_kind(stored: pa.Table) -> np.ndarray:
    """What tells kernels apart that share a name: the layout by phase, the slots of replicated experts."""
    kind = renamed(words(stored["op_name"]), lambda op: PHASES.get(op, ""))
    if "num_slots" in stored.column_names:
        kind = kind + renamed(words(stored["num_slots"].cast(pa.string())), ", {} slots".format)
    return kind


def _matrices(shape: tuple[int, ...], kernel: str, origin: Origin) -> float:
    """Three of a gated expert, two of one without; a table that does not tell was profiled as the stream rate shows."""
    if "nongated" in kernel:
        return 2.0
    stand_in = (kernel, shape) in GATED_STAND_INS
    told = origin.engine == "trtllm"
    old = (origin.engine, origin.version) in GATED_VERSIONS
    return 3.0 if shape not in TWO_MATRIX_EXPERTS or told or old or stand_in else 2.0


def routing_skew(law: str) -> float:
    """Exponent of the bounded power law: `power_law_1.2`, `power_law_1.01_eplb`; 0 for `balanced` and `uniform`."""
    if law in ("balanced", "uniform"):
        return 0.0
    return float(law.removeprefix("power_law_").removesuffix("_eplb"))


_MOE = Convert(
    "moe",
    (
        *("op_name", "kernel_source", "moe_dtype", "num_tokens", *EXPERT_SHAPE, "moe_tp_size", "moe_ep_size"),
        *("distribution", "latency"),
    ),
    (*ALWAYS_IGNORED, "moe_kernel", "dp_num_tokens", "rank0_num_tokens", "num_slots", "simulation_mode"),
    moe,
)
MOE: dict[str, Convert] = {
    name: _MOE for name in ("moe_perf", "wideep_context_moe_perf", "wideep_generation_moe_perf", "wideep_moe_perf")
}
"""How each table is read, by file name."""

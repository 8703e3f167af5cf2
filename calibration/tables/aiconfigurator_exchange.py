"""Tables between devices in `aiconfigurator-core`: NCCL, engines' own all-reduce, dispatch and combine of experts."""

from typing import Any

import numpy as np
import pyarrow as pa

from calibration.tables.aiconfigurator_rows import ALWAYS_IGNORED, MS, Convert, Origin, Rows, number, timings
from calibration.tables.rows import dtypes, renamed, words


US = 1e-6
ELEMENT_BYTES = {"half": 2.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "fp8": 1.0}
HOST_BOUND_EXCHANGE_S = 1e-4
"""An exchange inside a node that never takes less waited for the host."""
OPERATIONS = {"alltoall": "all_to_all"}


def collective(stored: pa.Table, origin: Origin) -> Rows:
    """`message_size` counts elements; an engine's rows may be another engine's, which their own columns say."""
    own = "allreduce_dtype" in stored.column_names
    dtype = words(stored["allreduce_dtype" if own else "nccl_dtype"])
    ranks = number(stored, "num_gpus")
    element = renamed(dtype, lambda name: str(ELEMENT_BYTES[name])).astype(np.float64)
    columns = {
        "bytes": number(stored, "message_size") * element,
        "ranks": ranks,
        "nodes": np.ceil(ranks / origin.devices_per_node),
    }
    kernel = words(stored["kernel_source"])
    labels: dict[str, Any] = {
        "kernel": renamed(kernel, lambda name: name.removesuffix("_graph").removesuffix("_eager")),
        "dtype": dtypes(dtype),
        "op": renamed(words(stored["op_name"]), lambda name: OPERATIONS.get(name, name)),
        "timing": renamed(kernel, lambda name: "launch" if name.endswith("_eager") else "kernel"),
    }
    if own:
        labels |= {
            "engine": renamed(words(stored["framework"]), str.lower),
            "engine_version": words(stored["version"]),
        }
    else:
        labels |= {"engine": "nccl"}
    return columns, labels, number(stored, "latency") * MS


def deepep(stored: pa.Table, origin: Origin) -> Rows:
    """DeepEP in SGLang: a row for the dispatch and one for the combine; tokens of one rank, microseconds."""
    low_latency = "dispatch_avg_t_us" in stored.column_names
    nodes = number(stored, "node_num")
    columns = {
        "tokens": number(stored, "num_token"),
        "hidden": number(stored, "hidden_size"),
        "top_k": number(stored, "num_topk"),
        "experts": number(stored, "num_experts"),
        "ranks": nodes * origin.devices_per_node,
        "nodes": nodes,
    }
    seconds, kernels = [], []
    for op in ("dispatch", "combine"):
        if low_latency:
            seconds.append(number(stored, f"{op}_avg_t_us") * US)
            kernels.append(np.full(len(nodes), "deepep low latency", object))
        else:
            seconds.append((number(stored, f"{op}_transmit_us") + number(stored, f"{op}_notify_us")) * US)
            kernels.append(renamed(words(stored[f"{op}_sms"].cast(pa.string())), "deepep normal, {} units".format))
    labels: dict[str, Any] = {
        "kernel": np.concatenate(kernels),
        "op": np.repeat(np.array(["dispatch", "combine"], object), len(nodes)),
        "timing": "kernel",
    }
    return {name: np.tile(column, 2) for name, column in columns.items()}, labels, np.concatenate(seconds)


def expert_exchange(stored: pa.Table, origin: Origin) -> Rows:
    """DeepEP behind vLLM and TensorRT-LLM; `latency` is microseconds."""
    columns = {
        "tokens": number(stored, "num_tokens"),
        "hidden": number(stored, "hidden_size"),
        "top_k": number(stored, "topk"),
        "experts": number(stored, "num_experts"),
        "ranks": number(stored, "ep_size"),
        "nodes": number(stored, "node_num"),
    }
    units = words(stored["sms"].cast(pa.string()))
    kernel = words(stored["comm_backend"]) + renamed(units, lambda sms: "" if sms == "0" else f", {sms} units")
    op, seconds = words(stored["phase"]), number(stored, "latency") * US
    labels: dict[str, Any] = {
        "kernel": kernel,
        "dtype": renamed(dtypes(words(stored["comm_dtype"])), lambda name: "" if name == "default" else name),
        "op": op,
        "timing": timings(kernel + op, seconds, HOST_BOUND_EXCHANGE_S),
    }
    return columns, labels, seconds


def all_to_all(stored: pa.Table, origin: Origin) -> Rows:
    """TensorRT-LLM's exchange over NVLink, evenly routed; tokens of one rank, milliseconds."""
    ranks = number(stored, "moe_ep_size")
    columns = {
        "tokens": number(stored, "num_tokens"),
        "hidden": number(stored, "hidden_size"),
        "top_k": number(stored, "topk"),
        "experts": number(stored, "num_experts"),
        "ranks": ranks,
        "nodes": np.ceil(ranks / origin.devices_per_node),
    }
    labels: dict[str, Any] = {
        "kernel": words(stored["kernel_source"]),
        "dtype": dtypes(words(stored["moe_dtype"])),
        "op": renamed(words(stored["op_name"]), lambda name: name.removeprefix("alltoall_")),
        "timing": "kernel",
    }
    return columns, labels, number(stored, "latency") * MS


_SHAPE = ("num_experts", "hidden_size")
_DEEPEP = ("node_num", "num_token", "num_topk", *_SHAPE)
EXCHANGE: dict[str, Convert] = {
    "nccl_perf": Convert(
        "collective",
        ("nccl_dtype", "num_gpus", "message_size", "kernel_source", "op_name", "latency"),
        ALWAYS_IGNORED,
        collective,
    ),
    "custom_allreduce_perf": Convert(
        "collective",
        (
            "framework",
            "version",
            "op_name",
            "kernel_source",
            "allreduce_dtype",
            "num_gpus",
            "message_size",
            "latency",
        ),
        ("device", "backend", "implementation"),
        collective,
    ),
    "wideep_deepep_ll_perf": Convert(
        "exchange",
        (*_DEEPEP, "dispatch_avg_t_us", "combine_avg_t_us"),
        (*ALWAYS_IGNORED, "op_name", "kernel_source", "combine_bandwidth_gbps", "dispatch_bandwidth_gbps"),
        deepep,
    ),
    "wideep_deepep_normal_perf": Convert(
        "exchange",
        (*_DEEPEP, *(f"{op}_{what}" for op in ("dispatch", "combine") for what in ("sms", "transmit_us", "notify_us"))),
        (*ALWAYS_IGNORED, "op_name", "kernel_source"),
        deepep,
    ),
    "moe_a2a_perf": Convert(
        "exchange",
        ("comm_backend", "phase", "comm_dtype", "ep_size", "node_num", *_SHAPE, "topk", "num_tokens", "sms", "latency"),
        (*ALWAYS_IGNORED, "op_name", "kernel_source", "transmit_us", "notify_us"),
        expert_exchange,
    ),
    "trtllm_alltoall_perf": Convert(
        "exchange",
        ("op_name", "kernel_source", "moe_dtype", "num_tokens", *_SHAPE, "topk", "moe_ep_size", "latency"),
        (*ALWAYS_IGNORED, "distribution"),
        all_to_all,
    ),
}

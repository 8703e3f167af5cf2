"""What a kernel cannot beat: the datasheet's arithmetic, its memory once the cache is full, its links."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from predictors.table import GROUP_LIMITED, OperatorTable
from sim.hardware.spec import DeviceConf


ARITHMETIC = {"fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
"""Peak that a dtype's products run at, where it is not its own; weight-only formats compute in 16 bits."""
WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int8_wo": 1.0}
LEAST_WEIGHT_BYTES = 0.5
"""Of any other dtype: 4 bits, scales left out."""


class Limits(NamedTuple):
    """Seconds of each row: of its arithmetic at the peak, of its traffic beyond the cache, of all its traffic.

    0 where the columns do not tell. The third is no limit: a cache may hold everything.
    """

    arithmetic_s: Float[np.ndarray, " row"]
    beyond_cache_s: Float[np.ndarray, " row"]
    traffic_s: Float[np.ndarray, " row"]


def limits(table: OperatorTable, device: DeviceConf) -> Limits:
    """The limits of every row of a table."""
    flops, moved_bytes, rate = np.zeros(len(table)), np.zeros(len(table)), device.memory_bytes_per_s
    cache = float(device.cache_bytes)
    if table.family == "gemm":
        flops = 2.0 * table["m"] * table["n"] * table["k"]
        moved_bytes = table["n"] * table["k"] * weight_bytes(table)
    elif table.family == "attention":
        flops, moved_bytes = _attention(table)
    elif table.family == "moe":
        flops, moved_bytes = _moe(table)
    elif table.family == "elementwise":
        moved_bytes = table["tokens"] * table["bytes_per_token"]
    elif table.family == "collective":
        moved_bytes, rate, cache = _collective(table), _link(device), 0.0
    return Limits(flops / _peak(table, device), np.maximum(moved_bytes - cache, 0.0) / rate, moved_bytes / rate)


def weight_bytes(table: OperatorTable) -> Float[np.ndarray, " row"]:
    """Bytes of one weight."""
    return _by_word(table["dtype"], lambda dtype: WEIGHT_BYTES.get(dtype, LEAST_WEIGHT_BYTES))


def _by_word(label: np.ndarray, value: Callable[[str], float]) -> np.ndarray:
    known = {word: value(word) for word in set(label.tolist())}
    return np.array([known[word] for word in label.tolist()], np.float64)


def _peak(table: OperatorTable, device: DeviceConf) -> np.ndarray:
    """Peak of each row's dtype; of the fastest where it has none. Attention over 8-bit keys may compute in 8 bits."""
    peaks = device.peak_flops_per_s

    def of(dtype: str) -> float:
        name = "bf16" if "_wo" in dtype or dtype.startswith("w4a16") else ARITHMETIC.get(dtype, dtype)
        return peaks.get(name, max(peaks.values()))

    rate = _by_word(table["dtype"], of)
    if table.family == "attention":
        return np.where(table["kv_bytes_per_element"] < 2.0, np.maximum(rate, of("fp8")), rate)
    return rate


def _attention(table: OperatorTable) -> tuple[np.ndarray, np.ndarray]:
    """Query-key pairs of a window's prefill are not known from the sums, and left out."""
    bounded = np.where(np.isinf(table["window"]), table["decode_max"], table["window"])
    seen = np.minimum(table["decode_sum"], table["decodes"] * bounded)
    pairs = seen + np.where(np.isinf(table["window"]), table["prefill_area"], 0.0)
    dims = table["qk_dim"] + table["v_dim"]
    latent = np.array([op.startswith("mla_decode") for op in table["op"].tolist()], bool)
    row = table["kv_heads"] * np.where(latent, table["qk_dim"], dims) * table["kv_bytes_per_element"]
    return 2.0 * table["q_heads"] * dims * pairs, seen * row


def _moe(table: OperatorTable) -> tuple[np.ndarray, np.ndarray]:
    """Even routing only: rows go round all experts, so that min(E, T k) have any, if nobody counted them."""
    grouped = np.array([op == GROUP_LIMITED for op in table["op"].tolist()], bool)
    even, local = (table["skew"] == 0.0) & ~grouped, table["experts"] / table["ep"]
    share = np.minimum(1.0, table["tokens"] * table["top_k"] / table["experts"])
    active = np.where(np.isnan(table["active"]), np.where(even, local * share, 0.0), np.nan_to_num(table["active"]))
    parameters = table["matrices"] * table["hidden"] * table["inter"] / table["tp"]
    routed = table["tokens"] * table["top_k"] / table["ep"]
    return np.where(even, 2.0 * routed * parameters, 0.0), active * parameters * weight_bytes(table)


def _collective(table: OperatorTable) -> np.ndarray:
    """The least that one rank sends over a link inside a node; bridged pairs have a link the device lacks."""
    inside = (table["nodes"] <= 1.0) & np.array(["nvlink" not in name for name in table["kernel"].tolist()], bool)
    share = np.where(table["op"] == "send", 1.0, (table["ranks"] - 1.0) / table["ranks"])
    return np.where(inside, table["bytes"] * share, 0.0)


def _link(device: DeviceConf) -> float:
    return device.scale_up.bytes_per_s if device.scale_up.exists else device.pcie.bytes_per_s

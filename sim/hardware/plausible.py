"""Which values a device's numbers may have: wide enough for any accelerator, narrow enough for 64-bit nanoseconds."""

from typing import NamedTuple


class Range(NamedTuple):
    """Smallest and largest value, both included; `none`: 0 is allowed too and means that there is none."""

    low: float
    high: float
    none: bool = False


RANGES = {
    "peak_flops_per_s": Range(1e9, 1e18),
    "matmul_efficiency": Range(1e-3, 1.0),
    "memory_bytes": Range(1e6, 1e15),
    "memory_nominal_bytes": Range(1e6, 1e15),
    "memory_bytes_per_s": Range(1e7, 1e16),
    "memory_efficiency": Range(1e-3, 1.0),
    "cache_bytes": Range(0.0, 1e15),
    "cache_bytes_per_s": Range(1e7, 1e17),
    "compute_units": Range(1, 1e6),
    "attention_efficiency": Range(1e-3, 1.0, none=True),
    "unit_stream_bytes_per_s": Range(10.0, 1e17),
    "kernel_floor_s": Range(1e-9, 1.0),
    "kernel_launch_s": Range(0.0, 1.0),
    "graph_launch_s": Range(0.0, 1.0),
    "host_step_s": Range(0.0, 1.0),
    "devices_per_node": Range(1, 1e6),
    "tdp_w": Range(0.0, 1e6),
    "idle_w": Range(0.0, 1e6),
    "usd_per_hour": Range(0.0, 1e6),
    # of each link
    "bytes_per_s": Range(1e6, 1e15, none=True),
    "latency_s": Range(0.0, 1.0),
    "max_group": Range(0, 1e6),
    "ports": Range(1, 1e6),
}
"""By the key of `DeviceConf` (of every dtype, where it is keyed by dtype) or of `LinkConf`."""


def range_of(key: str) -> Range:
    """The range of a dotted key such as `memory_bytes`, `matmul_efficiency.bf16` or `scale_up.bytes_per_s`."""
    head, _, tail = key.partition(".")
    return RANGES[head] if head in RANGES else RANGES[tail]


def why_implausible(key: str, value: float) -> str:
    """`between LOW and HIGH`, what a value out of its key's range should have been; empty if it is in it."""
    low, high, none = range_of(key)
    if low <= value <= high or (none and value == 0):
        return ""
    return f"between {low:g} and {high:g}{', or 0 for none' if none else ''}"

"""What a verdict may advise: keys to change, without those that are so already or at their end.

What the result does not tell (a run that was made elsewhere) counts as changeable.
"""

import math
from collections.abc import Sequence
from typing import Any

from sim.report.graphs import sizes_to_add
from sim.report.result import SimulationResult


FULL_MEMORY = 0.98
"""From this share of the device's memory on, giving the engine more of it is no advice."""

FULL_SEATS = 0.9
"""From this mean share of `max_num_seqs` on, more load makes no larger batch."""


def any_of(parts: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def more_blocks(result: SimulationResult) -> str:
    """Settings that give a replica more KV blocks: the one that decides their number now among them."""
    settings = result.settings
    if settings.get("num_gpu_blocks_override") is not None:
        return "engine.num_gpu_blocks_override (--num-gpu-blocks-override): more KV blocks per replica."
    parts = ["engine.kv_cache_dtype=fp8 (--kv-cache-dtype)"] if wide_cache(result) else []
    if settings.get("kv_cache_memory_bytes") is not None:
        parts.append("engine.kv_cache_memory_bytes (--kv-cache-memory-bytes)")
    elif settings.get("gpu_memory_utilization", 0.0) < FULL_MEMORY:
        parts.append("engine.gpu_memory_utilization (--gpu-memory-utilization)")
    parts.append("deployment.tensor_parallel (--tensor-parallel-size)")
    return f"{any_of(parts)}: more KV blocks per replica."


def fewer_bytes(result: SimulationResult) -> str:
    """What makes a decode step read less per device."""
    parts = ["model.quantization=fp8"] if result.quantisation == "none" else []
    parts += ["engine.kv_cache_dtype=fp8"] if wide_cache(result) else []
    bandwidth = "deployment.tensor_parallel (more bandwidth per request)."
    return f"{any_of(parts)} (fewer bytes per step), or {bandwidth}" if parts else bandwidth


def less_launching(result: SimulationResult) -> str:
    """What takes host work out of the steps."""
    settings = result.settings
    eager = not len(settings.get("graph_sizes", ()))
    # not every engine schedules ahead of a pipeline's stages
    ahead = not settings.get("async_scheduling", False) and settings.get("pipeline_parallel", 1) == 1
    forced = (result.config.get("engine") or {}).get("enforce_eager") is not False
    parts = ["engine.enforce_eager=false" if forced else "engine.cudagraph_mode"] if eager else []
    parts += ["engine.async_scheduling=true"] if ahead else []
    load = f"more load per replica ({load_key(result)})."
    return f"{' and '.join(parts)}, or {load}" if parts else load


def larger_batch(result: SimulationResult, requests_mean: float) -> str:
    """What lets more requests share the weights that a step reads: load, or seats where these are taken."""
    seats = result.settings.get("max_num_seqs", math.inf)
    key = "engine.max_num_seqs (--max-num-seqs)" if requests_mean >= FULL_SEATS * seats else load_key(result)
    return f"{key}: a larger batch reads the same weights once, so more load costs little TPOT."


def load_key(result: SimulationResult) -> str:
    """The key that brings more requests at a time, by how the workload arrives."""
    workload: dict[str, Any] = result.config.get("workload") or {}
    count, most = workload.get("num_requests"), workload.get("concurrency")
    arrival, clients = workload.get("arrival"), most is not None and (count is None or count > most)
    if arrival == "trace":
        return "workload.time_scale (lower it)" + (" or workload.concurrency" if clients else "")
    if arrival in ("closed_loop", "all_at_once") or math.isinf(workload.get("rate") or 0.0):
        return "workload.concurrency (--max-concurrency)" if clients else "workload.num_requests (--num-prompts)"
    return "workload.rate (--request-rate)" + (" or workload.concurrency" if clients else "")


def capture_more(result: SimulationResult) -> str:
    """What gives decode batches a CUDA graph: a larger largest size, or, where that holds every batch, more sizes."""
    sizes = result.settings.get("graph_sizes", ())
    if max(sizes, default=0) < result.settings.get("max_num_seqs", math.inf):
        key = "engine.max_cudagraph_capture_size (--max-cudagraph-capture-size)"
        largest = max(sizes_to_add(result), default=0)
        needed = f"; this run had batches of up to {largest} tokens" if largest > max(sizes, default=0) else ""
        return f"{key}: capture up to engine.max_num_seqs{needed}."
    return "engine.cudagraph_mode: one that holds decode batches whole, their sizes are captured."


def wide_cache(result: SimulationResult) -> bool:
    """Whether an element of the KV cache takes more than the byte of fp8."""
    return bool(result.settings.get("kv_bytes_per_element", 2.0) > 1)


def could_reuse(result: SimulationResult) -> bool:
    """Whether prefixes could be reused but are not: the workload has content, and the cache is off."""
    return result.workload.has_content and not result.settings.get("prefix_caching", False)

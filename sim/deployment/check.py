"""What a deployment and an engine configuration may ask for: one sentence for each value that no engine could run."""

import math
from collections.abc import Iterable

from sim.deployment.all_to_all import EXCHANGES, GATHERED
from sim.deployment.conf import DeploymentConf, FfnConf
from sim.deployment.engine import EngineConf, EngineProfile
from sim.deployment.graphs import MODES
from sim.deployment.placement import PLACEMENTS
from sim.deployment.speculation import WITH_KV, Speculation
from sim.documents import nearest
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf


MAX_REPLICAS = 10_000
MAX_RANKS = 4096
MAX_TOKENS = 2**24
MAX_SEQS = 2**20
MAX_CAPTURED = 2**20
MAX_BLOCKS = 2**40
MAX_BYTES = 1e15
MAX_HOST_S = 10.0
BALANCES = ("queues", "least_outstanding", "round_robin")
"""Who gets a request among the data-parallel ranks of a replica (`sim.event.balance`)."""
CONTEXT_KINDS = ("mla", "sparse_mla", "gqa")
COMBINES = ("gather_scatter", "all_to_all")
DIVIDED = ("", "all", "any")
"""Values of `sim.deployment.rules.ContextRules`."""
ASIDE = ("none", "all", "loads")
ENDS = ("", "computed", "known")
"""Values of `sim.deployment.rules.ConnectorRules`."""
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def check_deployment(deployment: DeploymentConf, device: DeviceConf) -> None:
    """Raise `ValueError` for sizes out of range, an unknown exchange or placement, and for ranks that no link joins."""
    for key, most in (
        ("replicas", MAX_REPLICAS),
        ("tensor_parallel", MAX_RANKS),
        ("pipeline_parallel", MAX_RANKS),
        ("data_parallel", MAX_RANKS),
        ("prefill_context_parallel", MAX_RANKS),
        ("decode_context_parallel", MAX_RANKS),
    ):
        value = getattr(deployment, key)
        if value < 1:
            raise ValueError(f"deployment.{key} must be at least 1, got {value}.")
        if value > most:
            raise ValueError(f"deployment.{key} must be at most {most:,}, got {value:,}.")
    ffn = deployment.ffn
    if not ffn.devices and ffn != FfnConf():
        raise ValueError("deployment.ffn has no effect without devices: set deployment.ffn.devices, or leave it out.")
    if deployment.all_to_all not in ("auto", *EXCHANGES):
        raise ValueError(
            f"deployment.all_to_all must be one of auto, {', '.join(EXCHANGES)}, got {deployment.all_to_all!r}"
            f"{nearest(deployment.all_to_all, EXCHANGES)}."
        )
    if not 0 <= deployment.redundant_experts <= MAX_RANKS:
        raise ValueError(
            f"deployment.redundant_experts must be from 0 to {MAX_RANKS:,}, got {deployment.redundant_experts}."
        )
    if deployment.expert_placement not in PLACEMENTS:
        raise ValueError(
            f"deployment.expert_placement must be one of {', '.join(PLACEMENTS)}, got {deployment.expert_placement!r}"
            f"{nearest(deployment.expert_placement, PLACEMENTS)}."
        )
    Node(device).check_link(deployment.tensor_parallel)


def check_conf(conf: EngineConf) -> None:
    """Raise `ValueError` for a setting that is out of range whatever the model, the device and the version."""
    for key, most in (
        ("max_num_batched_tokens", MAX_TOKENS),
        ("max_num_seqs", MAX_SEQS),
        ("max_cudagraph_capture_size", MAX_CAPTURED),
        ("num_gpu_blocks_override", MAX_BLOCKS),
    ):
        value = getattr(conf, key)
        if value is not None and value < 1:
            hint = ", or set engine.enforce_eager=true" if key == "max_cudagraph_capture_size" else ""
            raise ValueError(f"{key} must be at least 1, got {value}: change engine.{key}{hint}")
        if value is not None and value > most:
            raise ValueError(f"{key} must be at most {most:,}, got {value:,}: change engine.{key}")
    for key in ("cudagraph_capture_sizes", "cuda_graph_sizes"):
        sizes = getattr(conf, key)
        if sizes is not None and not (sizes and all(1 <= size <= MAX_CAPTURED for size in sizes)):
            raise ValueError(
                f"{key} must be token counts between 1 and {MAX_CAPTURED:,}, at least one, got {list(sizes)}: "
                f"change engine.{key}, or set engine.enforce_eager=true"
            )
    kv = conf.kv_cache_memory_bytes
    if kv is not None and not 0 < kv <= MAX_BYTES:
        raise ValueError(
            f"kv_cache_memory_bytes must be above 0 and at most {MAX_BYTES:g} bytes, got {kv:g}: "
            "change engine.kv_cache_memory_bytes"
        )
    if conf.block_size not in BLOCK_SIZES:
        raise ValueError(
            f"block_size must be one of {', '.join(map(str, BLOCK_SIZES))} tokens, got {conf.block_size}: "
            "change engine.block_size"
        )
    if conf.cudagraph_mode is not None:
        _one_of("cudagraph_mode", conf.cudagraph_mode, MODES, "engine.cudagraph_mode")
    if not 0 <= conf.long_prefill_token_threshold <= MAX_TOKENS:
        raise ValueError(
            f"long_prefill_token_threshold must be between 0 (no bound) and {MAX_TOKENS:,} tokens, got "
            f"{conf.long_prefill_token_threshold:,}: change engine.long_prefill_token_threshold"
        )


def check_utilization(conf: EngineConf, value: float, device: DeviceConf) -> None:
    """Raise `ValueError` for a fraction of memory outside (0, 1]: the user's, or what the engine's rule gives here."""
    if 0 < value <= 1:
        return
    if conf.gpu_memory_utilization is None:
        raise ValueError(
            f"{conf.name} reserves more memory than the {device.memory_bytes / 2**30:.2f} GiB of {device.name}, "
            "so it has no default fraction: set engine.gpu_memory_utilization"
        )
    raise ValueError(
        f"gpu_memory_utilization must be above 0 and at most 1, got {value}: change engine.gpu_memory_utilization"
    )


def check_limits(conf: EngineConf, profile: EngineProfile, tokens: int, seqs: int, length: int, chunked: bool) -> None:
    """Raise `ValueError` for limits that contradict each other; the arguments are the resolved ones.

    SGLang has neither rule: its token budget is that of prefills, and without chunks it does not bound a prompt.
    """
    if profile.memory_rule == "vllm" and tokens < seqs:
        raise ValueError(
            f"max_num_batched_tokens ({tokens:,}) must be at least max_num_seqs ({seqs:,}): "
            "raise engine.max_num_batched_tokens or lower engine.max_num_seqs"
        )
    if profile.memory_rule != "sglang" and not chunked and tokens < length:
        raise ValueError(
            f"without chunked prefill max_num_batched_tokens ({tokens:,}) must be at least max_model_len ({length:,}): "
            "raise engine.max_num_batched_tokens, lower engine.max_model_len or set engine.enable_chunked_prefill=true"
        )


def check_async(conf: EngineConf, profile: EngineProfile, pipeline: int) -> None:
    """Raise `ValueError` where scheduling ahead is asked for and this version cannot do it with pipeline stages."""
    if conf.async_scheduling and pipeline > 1 and not profile.async_with_stages:
        raise ValueError(
            f"{conf.name} {conf.version} refuses async scheduling with pipeline stages, got engine.async_scheduling="
            f"true with deployment.pipeline_parallel={pipeline}: leave out engine.async_scheduling, or choose a "
            "version that has it (vLLM since 0.15.0)"
        )


def check_drafts(conf: EngineConf, profile: EngineProfile, speculation: Speculation | None) -> None:
    """Raise `ValueError` where scheduling ahead is asked for and drafts of this kind, or this version, forbid it."""
    if not conf.async_scheduling or speculation is None:
        return
    label = f"{conf.name} {conf.version}"
    if speculation.method not in WITH_KV:
        raise ValueError(
            f"drafts by {speculation.method} are made on the host, which {label} does not overlap with steps: leave "
            "out engine.async_scheduling=true."
        )
    if not profile.async_by_default:
        raise ValueError(f"{label} does not schedule ahead with drafts: leave out engine.async_scheduling=true.")


def check_profile(profile: EngineProfile, shipped: EngineProfile) -> None:
    """Raise `ValueError` for facts of a version that cannot be; `shipped` has the constants that its rules read."""
    for key in ("host_step_s", "idle_sleep_s", "api_pickup_s", "api_door_s", "pieces_s"):
        _between(f"profile.{key}", getattr(profile, key), 0.0, MAX_HOST_S, "seconds")
    _between("profile.eager_launches", profile.eager_launches, 1.0, 100.0, "bare launches")
    _between("profile.expert_launches", profile.expert_launches, 0.0, 100.0, "launches")
    _between("profile.default_gpu_memory_utilization", profile.default_gpu_memory_utilization, 0.0, 1.0)
    for key, most in (
        ("graph_top", MAX_CAPTURED),
        ("graph_top_blackwell", MAX_CAPTURED),
        ("other_tokens", MAX_TOKENS),
        ("other_seqs", MAX_SEQS),
    ):
        _between(f"profile.{key}", getattr(profile, key), 1, most)
    for index, tier in enumerate(profile.limits):
        where = f"profile.limits.{index}"
        _between(f"{where}.min_memory_gib", tier.min_memory_gib, 0.0, 1e6, "GiB")
        for key, least, most in (
            ("llm_class_tokens", 1, MAX_TOKENS),
            ("api_server_tokens", 1, MAX_TOKENS),
            ("max_num_seqs", 1, MAX_SEQS),
            ("graph_top", 0, MAX_CAPTURED),
            ("graph_top_tp4", 0, MAX_CAPTURED),
        ):
            _between(f"{where}.{key}", getattr(tier, key), least, most)
    _one_of("profile.graph_mode", profile.graph_mode, MODES, "engine.profile.graph_mode")
    rules = profile.parallel
    transfers = profile.connector
    _one_of("profile.connector.aside", transfers.aside, ASIDE, "engine.profile.connector.aside")
    _one_of(
        "profile.connector.leaves_windows", transfers.leaves_windows, ENDS, "engine.profile.connector.leaves_windows"
    )
    for phase in ("prefill", "decode"):
        for kind in getattr(profile.context, phase):
            key = f"profile.context.{phase}"
            _one_of(key, kind, CONTEXT_KINDS, f"engine.{key}")
    _one_of("profile.context.combine", profile.context.combine, COMBINES, "engine.profile.context.combine")
    _one_of("profile.context.transfers", profile.context.transfers, DIVIDED, "engine.profile.context.transfers")
    _one_of("profile.parallel.balance", rules.balance, BALANCES, "engine.profile.parallel.balance")
    for key, limit in (("low_latency_tokens", float(MAX_TOKENS)), ("deepep_buffer_bytes", MAX_BYTES)):
        if not 0 < getattr(rules, key) <= limit:
            raise ValueError(
                f"profile.parallel.{key} must be above 0 and at most {limit:,.0f}, got {getattr(rules, key):g}: "
                f"change engine.profile.parallel.{key}"
            )
    if rules.high_throughput_graphs:
        key = "profile.parallel.high_throughput_graphs"
        _one_of(key, rules.high_throughput_graphs, MODES, f"engine.{key}")
    _one_of("profile.parallel.all_to_all", rules.all_to_all, GATHERED, "engine.profile.parallel.all_to_all")
    _between("profile.parallel.stats_interval_s", rules.stats_interval_s, 0.0, MAX_HOST_S, "seconds")
    for key in profile.memory:
        if key not in shipped.memory:
            raise ValueError(
                f"profile.memory has an unknown constant {key}{nearest(key, shipped.memory)}: correct or remove "
                f"engine.profile.memory.{key}"
            )
    for key in shipped.memory:
        if key not in profile.memory:
            raise ValueError(
                f"profile.memory lacks {key}, which the memory rule {profile.memory_rule} needs: "
                f"add engine.profile.memory.{key}"
            )
        _between(f"profile.memory.{key}", profile.memory[key], 0.0, MAX_BYTES)


def _between(key: str, value: float, low: float, high: float, unit: str = "") -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(
            f"{key} must be between {_plain(low)} and {_plain(high)}{' ' if unit else ''}{unit}, got {value:g}: "
            f"change engine.{key}"
        )


def _plain(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _one_of(name: str, value: str, known: Iterable[str], key: str) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}: change {key}")

"""From a user's engine configuration to settings where every value is filled and says where it came from."""

import math
import re
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml

from sim.deployment.all_to_all import effective_rules
from sim.deployment.check import (
    check_async,
    check_conf,
    check_deployment,
    check_drafts,
    check_limits,
    check_profile,
    check_utilization,
)
from sim.deployment.conf import DeploymentConf
from sim.deployment.context import NEVER, attention_kind, check_context
from sim.deployment.defaults import default_limits, limit_tier, static_fraction
from sim.deployment.domains import Domains, check_domains, domains_of
from sim.deployment.engine import EngineConf, EngineProfile, EngineSettings, LimitTier
from sim.deployment.graphs import capture_sizes, prefill_sizes
from sim.deployment.rules import (
    CacheRules,
    ConnectorRules,
    ContextRules,
    LogRules,
    ParallelRules,
    SchedulingRules,
    SglangRules,
)
from sim.deployment.speculation import WITH_KV, Speculation, resolve_speculation
from sim.hardware.exchange_form import HIGH_THROUGHPUT
from sim.hardware.spec import DeviceConf
from sim.model.attention import MLA
from sim.model.quantisation import KV_DTYPE_NAMES
from sim.model.spec import DTYPE_BYTES, ModelSpec
from sim.units import GIB, MIB


PROFILES = resources.files("conf") / "engine"

MOST_LATENT_PREFILL = 8192
"""SGLang captures no larger prefills of latent attention."""

BLACKWELL = ("B200", "B300", "GB200", "GB300")


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for ordering; a suffix (`rc1`, `.dev3`) is ignored."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", str(version).strip())
    if match is None:
        raise ValueError(f"the engine version must look like 0.19.0, got {version!r}: change engine.version")
    numbers = [int(part) for part in match.group(1).split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def engine_names() -> list[str]:
    """Names of the shipped profiles, `engine-version`, in order of engine and version.

    A file of another name is one of these engines with another scheduler.
    """
    files = (re.fullmatch(r"([a-z]+-\d[\d.]*)\.yaml", file.name) for file in PROFILES.iterdir())
    names = (found[1] for found in files if found)
    return sorted(names, key=lambda name: (name.partition("-")[0], version_key(name.partition("-")[2])))


def load_engine(name: str = "vllm", version: str | None = None) -> EngineConf:
    """The configuration of engine `name`, with the profile of the nearest earlier version that has one.

    Without `version`, the profile that is this engine's newest. ValueError if the engine is unknown.
    """
    versions = [stem.partition("-")[2] for stem in engine_names() if stem.partition("-")[0] == name]
    if not versions:
        known = sorted({stem.partition("-")[0] for stem in engine_names()})
        raise ValueError(f"the engine must be one of {', '.join(known)}, got {name!r}: change engine.name")
    wanted = versions[-1] if version is None else version
    earlier = [known for known in versions if version_key(known) <= version_key(wanted)]
    conf = _read(f"{name}-{(earlier or versions)[-1 if earlier else 0]}")
    return replace(conf, version=str(wanted))


def _read(stem: str) -> EngineConf:
    fields = deepcopy(_fields(stem))
    profile = fields.pop("profile")
    profile["limits"] = [LimitTier(**tier) for tier in profile.get("limits", [])]
    profile["scheduling"] = SchedulingRules(**profile.get("scheduling", {}))
    profile["log"] = LogRules(**profile.get("log", {}))
    profile["connector"] = ConnectorRules(**profile.get("connector", {}))
    profile["cache"] = CacheRules(**profile.get("cache", {}))
    profile["sglang"] = SglangRules(**profile.get("sglang", {}))
    profile["parallel"] = ParallelRules(**profile.get("parallel", {}))
    profile["context"] = ContextRules(**profile.get("context", {}))
    return EngineConf(**fields, profile=EngineProfile(**profile))


@cache
def _fields(stem: str) -> dict[str, Any]:
    """The file's keys over those of the file it names in `defaults` (a profile states only what changed)."""
    content = yaml.safe_load((PROFILES / f"{stem}.yaml").read_text())
    merged: dict[str, Any] = {}
    for base in content.pop("defaults", []):
        if base in engine_names():
            merged = _merge(merged, _fields(base))
    return _merge(merged, content)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        merged[key] = _merge(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


def resolve_engine(
    conf: EngineConf, model: ModelSpec, device: DeviceConf, deployment: DeploymentConf
) -> EngineSettings:
    """Fill every value of `conf` by the rules of its engine version; `origin` says where each came from.

    If `conf.profile` is not that of the version (or none is loaded), the nearest earlier shipped profile is taken,
    with a note. ValueError, one sentence each: a parallel shape that does not divide the model or that no link joins;
    async scheduling with pipeline stages where the version refuses it;
    unknown engine, usage, KV type or graph mode; a scheduler or profile of another engine; limits, lengths, block size,
    fractions or facts of the profile out of range.
    """
    check_deployment(deployment, device)
    check_conf(conf)
    tensor, pipeline = deployment.tensor_parallel, deployment.pipeline_parallel
    profile = _profile(conf)
    profile = replace(profile, parallel=effective_rules(deployment, profile.parallel))
    domains = domains_of(model, deployment, profile)
    check_domains(model, domains, pipeline)
    if deployment.prefill_context_parallel > 1 or deployment.decode_context_parallel > 1:
        since = {phase: _first_with(conf.name, phase, model) for phase in ("prefill", "decode")}
        check_context(model, device, f"{conf.name} {conf.version}", profile.context, since, deployment)
    exact = version_key(profile.version) == version_key(conf.version)
    label = f"{conf.name} {profile.version}"
    notes = []
    if deployment.expert_parallel and domains.ranks == 1:
        notes.append(
            "deployment.expert_parallel spreads experts over tensor- and data-parallel ranks: with one rank it changes "
            "nothing, every replica holds all experts"
        )
    if not exact:
        older = version_key(conf.version) < version_key(profile.version)
        nearest = "the oldest known, so expect larger errors" if older else "the nearest earlier one"
        notes.append(
            f"{conf.name} {conf.version} has no profile of its own: that of {profile.version} is used, {nearest}"
        )
    origin: dict[str, str] = {}

    def choose(key: str, given: Any, default: Any, why: str = "default") -> Any:
        origin[key] = "user" if given is not None else f"{label} {why}"
        return default if given is None else given

    length = _length(conf, model)
    origin["max_model_len"] = "user" if conf.max_model_len is not None else "model"
    tokens, seqs, why = default_limits(
        profile,
        device.memory_bytes / GIB,
        device.name,
        conf.usage,
        length,
        conf.max_num_batched_tokens,
        conf.max_num_seqs,
    )
    chunked = choose("chunked_prefill", conf.enable_chunked_prefill, True)
    if profile.tokens_cover_length and not chunked and conf.max_num_batched_tokens is None and tokens < length:
        tokens, why = length, "default for the longest prompt, which is not cut"
    choose("max_num_batched_tokens", conf.max_num_batched_tokens, tokens, why)
    choose("max_num_seqs", conf.max_num_seqs, seqs, why)
    check_limits(conf, profile, tokens, seqs, length, chunked)
    top = _graph_top(profile, device, domains.ranks)
    latent = any(layer.mixer.cache(1, 2.0).kind == "mla" for layer in model.layers)
    fraction = profile.default_gpu_memory_utilization or static_fraction(
        device.memory_bytes / MIB,
        tokens,
        domains.ranks * pipeline,
        min(top, seqs),
        latent,
        domains.dp_attn,
    )
    utilization = choose("gpu_memory_utilization", conf.gpu_memory_utilization, fraction)
    check_utilization(conf, utilization, device)
    if domains.lockstep and profile.parallel.limits_divided:
        tokens, seqs = max(1, tokens // domains.dp_attn), max(1, seqs // domains.dp_attn)
        for key in ("max_num_batched_tokens", "max_num_seqs"):
            origin[key] += f", divided by {domains.dp_attn} data-parallel ranks"
    check_async(conf, profile, pipeline)
    speculation = resolve_speculation(conf.speculation, model, f"{conf.name} {conf.version}", profile.drafters)
    check_drafts(conf, profile, speculation)
    alone = pipeline == 1 or profile.async_with_stages
    why = "default" if alone or not profile.async_by_default else "default with pipeline stages"
    if speculation is not None and speculation.method not in WITH_KV:
        alone, why = False, f"default with {speculation.method} drafts"
    asynchronous = choose("async_scheduling", conf.async_scheduling, profile.async_by_default and alone, why)
    if domains.lockstep and deployment.all_to_all == HIGH_THROUGHPUT and profile.parallel.high_throughput_graphs:
        conf = replace(conf, cudagraph_mode=profile.parallel.high_throughput_graphs)
        notes.append(f"CUDA graph mode {conf.cudagraph_mode}: what {label} runs with DeepEP's high-throughput kernels")
    mode, sizes = _graphs(conf, profile, top, tokens, seqs, speculation)
    notes += _dropped(conf, mode, sizes, tokens)
    if asynchronous and not profile.async_by_default:
        notes.append(
            f"{label} schedules ahead only if asked to, which no recording of it shows: its other rules are kept, and "
            "the loop is that of later versions"
        )
    for key, given in (("graph_mode", conf.cudagraph_mode), ("graph_sizes", conf.cudagraph_capture_sizes)):
        origin[key] = "user" if given is not None or conf.enforce_eager else f"{label} default"
    if conf.max_cudagraph_capture_size is not None or conf.cuda_graph_sizes is not None:
        origin["graph_sizes"] = "user"
    kv_bytes = _kv_bytes(conf.kv_cache_dtype, model)
    shared_pages = profile.memory_rule == "vllm"
    block_size, origin["block_size"] = _block_size(conf, model, tensor, kv_bytes, shared_pages)
    if deployment.decode_context_parallel > 1:
        origin["block_size"] += f", on each of {deployment.decode_context_parallel} decode-context-parallel ranks"
        block_size *= deployment.decode_context_parallel
    origin["kv_cache_dtype"] = "model" if conf.kv_cache_dtype == "auto" else "user"
    return EngineSettings(
        name=conf.name,
        version=conf.version,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        block_size=block_size,
        gpu_memory_utilization=utilization,
        prefix_caching=choose("prefix_caching", conf.enable_prefix_caching, True),
        chunked_prefill=chunked,
        async_scheduling=asynchronous,
        reserve_full_input=profile.reserve_full_input,
        graph_mode=mode,
        graph_sizes=sizes,
        prefill_graph_sizes=_prefill_graphs(profile, mode, tokens, latent),
        kv_bytes_per_element=kv_bytes,
        profile=profile,
        origin=origin,
        batches_in_flight=_depth(profile, asynchronous, pipeline),
        pipeline_parallel=pipeline,
        prefill_context_parallel=deployment.prefill_context_parallel,
        kv_cache_dtype=conf.kv_cache_dtype,
        kv_cache_memory_bytes=conf.kv_cache_memory_bytes,
        num_gpu_blocks_override=conf.num_gpu_blocks_override,
        hybrid_kv_cache=conf.hybrid_kv_cache,
        scheduling_policy=conf.scheduling_policy,
        long_prefill_token_threshold=conf.long_prefill_token_threshold,
        scheduler_options=_scheduler_options(conf, domains),
        speculation=speculation,
        notes=tuple(notes),
    )


def _first_with(name: str, phase: str, model: ModelSpec) -> str:
    """The first shipped version of an engine with context parallelism of this phase for this model."""
    kinds = {attention_kind(layer) for layer in model.layers}
    for stem in engine_names():
        if stem.partition("-")[0] == name and kinds <= set(getattr(_read(stem).profile.context, phase)):
            return f"engine={stem}"
    return NEVER


def _scheduler_options(conf: EngineConf, domains: Domains) -> dict[str, Any]:
    """The scheduler's options; SGLang reserves less for outputs where attention is data-parallel."""
    options = dict(conf.scheduler_options)
    if domains.lockstep and conf.scheduler == "sglang":
        options["schedule_conservativeness"] = 0.3 * options.get("schedule_conservativeness", 1.0)
    return options


def _profile(conf: EngineConf) -> EngineProfile:
    """The facts to use: the configuration's own if they are of its version, else those shipped for the version.

    ValueError where the configuration mixes engines, or where facts that the user changed would not be used.
    """
    base = load_engine(conf.name, conf.version)
    shipped, own = base.profile, conf.profile
    choose = f"choose engine={conf.name}-{shipped.version}"
    loaded = own != EngineProfile()
    other = next((name for name in _engines() if name != conf.name and _engines()[name] == conf.scheduler), None)
    if other:
        raise ValueError(
            f"engine.name={conf.name} does not go with engine.scheduler={conf.scheduler}, the scheduler of {other}: "
            f"{choose}"
        )
    if not loaded:
        return shipped
    if own.memory_rule != shipped.memory_rule:
        raise ValueError(
            f"engine.name={conf.name} goes with the memory rule {shipped.memory_rule}, "
            f"got engine.profile.memory_rule={own.memory_rule}: {choose}"
        )
    known = [stem.partition("-")[2] for stem in engine_names() if stem.partition("-")[0] == conf.name]
    theirs = own.version.strip()
    if not theirs or theirs not in (*known, str(conf.version)):
        raise ValueError(
            f"engine.profile.version must be the engine.version ({conf.version}) or one of {', '.join(known)}, "
            f"got {own.version!r}: {choose}"
        )
    if theirs in (shipped.version, str(conf.version)):
        check_profile(own, shipped)
        return own
    before = load_engine(conf.name, theirs).profile
    changed = [field.name for field in fields(own) if getattr(own, field.name) != getattr(before, field.name)]
    if changed:
        raise ValueError(
            f"engine.profile.{changed[0]} was changed in the profile of {theirs}, but engine.version={conf.version} "
            f"takes that of {shipped.version}: {choose}"
        )
    return shipped


@cache
def _engines() -> dict[str, str]:
    """Engines by name, and the scheduler of each."""
    return {stem.partition("-")[0]: _fields(stem)["scheduler"] for stem in engine_names()}


def _length(conf: EngineConf, model: ModelSpec) -> int:
    if conf.max_model_len is None:
        return model.max_model_len
    if not 1 <= conf.max_model_len <= model.max_model_len:
        raise ValueError(
            f"max_model_len must be between 1 and the {model.max_model_len:,} tokens of {model.name}, or -1 for the "
            f"longest that fits, got {conf.max_model_len:,}: change engine.max_model_len"
        )
    return conf.max_model_len


def _kv_bytes(dtype: str, model: ModelSpec) -> float:
    if dtype == "auto":
        return model.kv_bytes_per_element
    if dtype not in KV_DTYPE_NAMES:
        raise ValueError(
            f"kv_cache_dtype must be auto or one of {', '.join(KV_DTYPE_NAMES)}, got {dtype!r}: "
            "change engine.kv_cache_dtype"
        )
    # NVFP4 keeps a byte of scale beside 16 values
    return DTYPE_BYTES[KV_DTYPE_NAMES[dtype]] + (1 / 16 if dtype == "nvfp4" else 0.0)


def _block_size(
    conf: EngineConf, model: ModelSpec, tensor_parallel: int, kv_bytes: float, shared_pages: bool
) -> tuple[int, str]:
    """Tokens per block and why: as configured, 64 for sparse latent attention, or as many as a recurrent state needs.

    Where recurrent layers share pages with attention, a page must hold one state: the least multiple of 16 tokens that
    does.
    """
    caches = [layer.mixer.cache(tensor_parallel, kv_bytes) for layer in dict.fromkeys(model.layers)]
    states = max(cache.state_bytes for cache in caches)
    per_token = [cache.bytes_per_token for cache in caches if cache.bytes_per_token]
    if states and per_token and shared_pages:
        needed = 16 * math.ceil(states / (16 * min(per_token)))
        if needed > conf.block_size:
            return needed, "raised so that a page holds a recurrent state"
    sparse = any(isinstance(layer.mixer, MLA) and layer.mixer.indexer for layer in model.layers)
    if sparse and conf.block_size < 64:
        return 64, "raised by sparse latent attention"
    return conf.block_size, "engine configuration"


def _depth(profile: EngineProfile, asynchronous: bool, pipeline: int) -> int:
    """Batches scheduled before the oldest returns: `pp`, and with async scheduling one more or at least two."""
    if not asynchronous:
        return pipeline
    return pipeline + 1 if profile.async_adds_depth else max(pipeline, 2)


def _graph_top(profile: EngineProfile, device: DeviceConf, ranks: int) -> int:
    """Ceiling of the captured sizes on this device, in a group of so many ranks."""
    tier = limit_tier(profile, device.memory_bytes / GIB, device.name)
    if tier is not None and tier.graph_top:
        return tier.graph_top_tp4 if ranks >= 4 and tier.graph_top_tp4 else tier.graph_top
    return profile.graph_top_blackwell if any(part in device.name for part in BLACKWELL) else profile.graph_top


def _graphs(
    conf: EngineConf, profile: EngineProfile, top: int, tokens: int, seqs: int, speculation: Speculation | None
) -> tuple[str, tuple[int, ...]]:
    mode = "NONE" if conf.enforce_eager else conf.cudagraph_mode or profile.graph_mode
    if mode == "NONE":
        return mode, ()
    if conf.cuda_graph_sizes is not None and profile.graph_list != "0.10.2":
        raise ValueError(
            f"cuda_graph_sizes is a setting of vLLM 0.10.2, got it for {conf.name} {conf.version}: "
            "use engine.cudagraph_capture_sizes"
        )
    sizes = capture_sizes(
        profile.graph_list,
        seqs,
        tokens,
        query_len=1 if speculation is None else speculation.query_tokens,
        top=top,
        sizes=conf.cudagraph_capture_sizes,
        max_size=conf.max_cudagraph_capture_size,
        old_sizes=conf.cuda_graph_sizes,
    )
    return (mode, sizes) if sizes else ("NONE", ())


def _prefill_graphs(profile: EngineProfile, mode: str, tokens: int, latent: bool) -> tuple[int, ...]:
    """Captured sizes of batches with a prefill, where the engine has a list for them."""
    if not profile.prefill_graphs or mode not in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        return ()
    return prefill_sizes(min(tokens, MOST_LATENT_PREFILL) if latent else tokens)


def _dropped(conf: EngineConf, mode: str, sizes: tuple[int, ...], tokens: int) -> list[str]:
    """Notes on captured sizes that were asked for and are not captured."""
    if conf.cudagraph_capture_sizes is not None:
        key, asked = "engine.cudagraph_capture_sizes", set(conf.cudagraph_capture_sizes)
    elif conf.cuda_graph_sizes is not None:
        key, asked = "engine.cuda_graph_sizes", set(conf.cuda_graph_sizes)
    elif conf.max_cudagraph_capture_size is not None:
        key, asked = "engine.max_cudagraph_capture_size", {conf.max_cudagraph_capture_size}
    else:
        return []
    if conf.enforce_eager or conf.cudagraph_mode == "NONE":
        return [f"{key} has no effect: CUDA graphs are off"]
    above = sorted(size for size in asked if size > tokens and size not in sizes)
    if not sizes:
        return [f"nothing of {key} is captured (max_num_batched_tokens is {tokens:,}): every step runs eager"]
    if not above:
        return []
    most = f"{', '.join(f'{size:,}' for size in above[:3])}{', ...' if len(above) > 3 else ''}"
    return [f"{most} of {key} exceeds max_num_batched_tokens ({tokens:,}): captured are sizes up to {sizes[-1]:,}"]

"""Plays a vLLM scenario with the row scheduler: what its configuration stands for.

Source: docs/conformance.md describes the files.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from calibration.conformance.keys import Keys
from calibration.conformance.scenario import Scenario, Unsupported, is_count, prompt_tokens, refuse, require
from calibration.conformance.vllm_connector import ScriptedConnector, check_connector
from calibration.conformance.vllm_core import Core, Run, Turns
from calibration.conformance.vllm_requests import RecordedProgress, Timetable, check_requests
from sim.deployment.engine import EngineProfile, EngineSettings
from sim.deployment.settings import load_engine
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.hooks import Drafting
from sim.scheduler.vllm import make_rows


CONFIG = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_gpu_blocks")
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
KEYS = Keys(
    config=(
        *(*CONFIG, *SWITCHES, "policy", "long_prefill_token_threshold", "spec", "watermark", "pp", "depth", "groups"),
        *("retention", "connector", "runner", "inst"),
    ),
    request=(
        *("max_tokens", "abort_step", "abort_mid", "stop_after", "accept", "draft_len"),
        *("kv", "recv", "inst"),
    ),
    inner={"spec": ("method", "k"), "groups": ("type", "bs", "window"), "connector": ("mode", "policy")},
)
"""`runner`, `inst`: recordings have them, for the real engine's driver."""

MOST_BLOCKS = 1 << 24
MOST_IN_FLIGHT = 256
KINDS = ("full", "mla", "swa", "chunk", "mamba")
WINDOWED = ("swa", "chunk")


def play(scenario: Scenario, version: str) -> Iterator[dict[str, Any]]:
    """The steps or calls that Headway makes of a scenario, as they would be recorded, and last `{"summary": ...}`.

    `Unsupported` for what the version does not do; `Malformed` for a scenario without the keys this engine needs.
    """
    if "config_p" in scenario.content:
        return play_pair(scenario, version)
    check(scenario)
    return Run(core_of(scenario, version, scenario.arrivals())).steps()


def play_pair(scenario: Scenario, version: str) -> Iterator[dict[str, Any]]:
    """A prefill and a decode instance in lock step; a request reaches the second `hop` steps after the first ended."""
    hop = scenario.content.get("hop", 0)
    if not is_count(hop):
        raise refuse(scenario, "hop", "a whole number from 0", hop)
    for request in scenario.requests:
        if not is_count(request.get("recv")):
            raise refuse(scenario, f"recv of request {request['id']}", "a whole number from 0", request.get("recv"))
    sides = []
    for place, requests in (
        ("config_p", [{**each, "max_tokens": 1, "kv": {"do": "prefill"}} for each in scenario.arrivals()]),
        ("config_d", []),
    ):
        config = scenario.content.get(place)
        if not isinstance(config, dict) or not (config.get("connector") or {}).get("mode") == "pull":
            raise refuse(scenario, place, "an object with a connector of mode pull", config)
        side = replace(scenario, config=config)
        check(side)
        sides.append(core_of(side, version, requests))
    prefill, decode = sides
    return Turns(prefill, decode, scenario.arrivals(), hop).steps()


def core_of(scenario: Scenario, version: str, requests: list[dict[str, Any]]) -> Core:
    """One instance with the configuration of a scenario; more `requests` may be put in that list later."""
    config = scenario.config
    spec = config.get("spec") or None
    settings = settings_of(config, profile_of(config, version))
    if settings.async_scheduling and not settings.profile.async_by_default:
        raise Unsupported(f"async scheduling of vLLM {version} is not simulated")
    connector = ScriptedConnector(requests, config["connector"]) if config.get("connector") else None
    if connector is not None and settings.batches_in_flight > 1:
        raise Unsupported("KV connectors with several batches in flight are not simulated")
    rows = make_rows(
        settings,
        shape_of(config, settings),
        progress=RecordedProgress(requests, spec, settings.max_model_len),
        drafting=Drafting(spec["k"], spec["method"] != "ngram") if spec else None,
        connector=connector,
    )
    if connector is not None:
        connector.cache = rows.cache
    return Core(config, settings, rows, Timetable(requests, rows.request_type), connector)


def check(scenario: Scenario) -> None:
    """`Malformed` for a scenario of vLLM that lacks something or holds something unknown."""
    config = scenario.config
    require(scenario, CONFIG, ("max_tokens",))
    check_requests(scenario)
    check_connector(scenario)
    for request in scenario.requests:
        if prompt_tokens(request) > config["max_model_len"]:
            wanted = f"of at most config.max_model_len={config['max_model_len']} tokens"
            raise refuse(scenario, f"the prompt of request {request['id']}", wanted, prompt_tokens(request))
    if config["num_gpu_blocks"] > MOST_BLOCKS:
        raise refuse(scenario, "config.num_gpu_blocks", f"at most {MOST_BLOCKS:,}", config["num_gpu_blocks"])
    for key in SWITCHES:
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise refuse(scenario, f"config.{key}", "true or false", config[key])
    for key in ("pp", "depth"):
        if config.get(key) is not None and not (is_count(config[key]) and 1 <= config[key] <= MOST_IN_FLIGHT):
            raise refuse(scenario, f"config.{key}", f"a whole number from 1 to {MOST_IN_FLIGHT}", config[key])
    threshold = config.get("long_prefill_token_threshold")
    if threshold is not None and not is_count(threshold):
        raise refuse(scenario, "config.long_prefill_token_threshold", "a whole number from 0", threshold)
    watermark = config.get("watermark")
    if watermark is not None and not (
        isinstance(watermark, int | float) and not isinstance(watermark, bool) and 0 <= watermark < 1
    ):
        raise refuse(scenario, "config.watermark", "null or a number from 0 to below 1", watermark)
    if config.get("policy", "fcfs") not in ("fcfs", "priority"):
        raise refuse(scenario, "config.policy", "fcfs or priority", config["policy"])
    spec = config.get("spec")
    if spec is not None and not (
        isinstance(spec, dict) and spec.get("method") in ("eagle", "ngram") and is_count(spec.get("k"))
    ):
        raise refuse(scenario, "config.spec", "null or a method, eagle or ngram, and k drafts", spec)
    groups = config.get("groups", [])
    if not isinstance(groups, list) or not all(map(is_group, groups)) or ("groups" in config and not groups):
        raise refuse(scenario, "config.groups", f"a list of type ({', '.join(KINDS)}), bs and window", groups)


def is_group(group: Any) -> bool:
    """Whether a value describes a group of blocks."""
    if (
        not isinstance(group, dict)
        or group.get("type") not in KINDS
        or not is_count(group.get("bs"))
        or not group["bs"]
    ):
        return False
    window = group.get("window")
    if window is None:
        return group["type"] not in WINDOWED
    return is_count(window) and (window > 0 or group["type"] not in WINDOWED)


def profile_of(config: dict[str, Any], version: str) -> EngineProfile:
    """The version's facts, with how densely a sliding window registers its blocks as recorded (0.33)."""
    profile = load_engine("vllm", version).profile
    if "retention" in config and profile.cache.registration != "all":
        if config["retention"] not in (0, None):
            raise Unsupported(f"a retention interval of {config['retention']} tokens is not simulated")
        kept = "aligned" if config["retention"] is None else "sparse"
        return replace(profile, cache=replace(profile.cache, registration=kept))
    return profile


def settings_of(config: dict[str, Any], profile: EngineProfile) -> EngineSettings:
    """The engine settings that a recorded configuration stands for."""
    asynchronous, pipeline = bool(config.get("async_scheduling")), config.get("pp") or 1
    depth = max(pipeline, 2) if asynchronous else pipeline
    if asynchronous and profile.async_adds_depth:
        depth = pipeline + 1
    return EngineSettings(
        name="vllm",
        version=profile.version,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        block_size=config["block_size"],
        gpu_memory_utilization=0.9,
        prefix_caching=bool(config.get("enable_prefix_caching")),
        chunked_prefill=config.get("enable_chunked_prefill", True),
        async_scheduling=asynchronous,
        reserve_full_input=profile.reserve_full_input,
        graph_mode="NONE",
        graph_sizes=(),
        kv_bytes_per_element=2.0,
        profile=profile,
        batches_in_flight=config.get("depth") or depth,
        scheduling_policy=config.get("policy", "fcfs"),
        long_prefill_token_threshold=config.get("long_prefill_token_threshold") or 0,
        scheduler_options={"watermark": config["watermark"]} if config.get("watermark") else {},
        pipeline_parallel=pipeline,
    )


def shape_of(config: dict[str, Any], settings: EngineSettings) -> CacheShape:
    """The recorded pool: one block is the null block."""
    groups = config.get("groups") or [{"type": "full", "bs": config["block_size"]}]
    return CacheShape(
        config["num_gpu_blocks"] - 1,
        settings.prefix_caching,
        tuple(GroupShape(group["type"], group["bs"], group.get("window")) for group in groups),
    )

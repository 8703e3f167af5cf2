"""Releases older than the oldest profile: their default limits and the constants of their memory sum (legacy.yaml)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from sim.deployment.engine import EngineConf
from sim.deployment.settings import version_key
from sim.documents import mapping, parse_yaml


FIRST_PROFILE = {"vllm": (0, 10, 0), "trtllm": (1, 0, 0)}
"""From here on the shipped profiles hold."""

NEW_ENGINE_SINCE = (0, 8, 0)
"""vLLM's second engine, V1, is the default."""

LONG_LENGTH = 32768
"""Above it, releases from 0.5 on divide a prompt into chunks."""


def as_of(conf: EngineConf, words: str, model_length: int) -> EngineConf:
    """`conf` with what its release did, where that is older than every profile.

    `words`: what the log calls the version, in which V0 or V1 may stand; `model_length`: that of the model, taken
    where `conf` has none. Limits that are given stay.
    """
    version = version_key(conf.version)
    first = FIRST_PROFILE.get(conf.name)
    if first is None or version >= first:
        return conf
    new = "V1" in words or (version >= NEW_ENGINE_SINCE and "V0" not in words)
    limits: Mapping[str, Any] = {}
    memory: dict[str, float] = {}
    for entry in _entries(conf.name):
        if version_key(str(entry["since"])) > version or entry.get("generation") not in (None, "V1" if new else "V0"):
            continue
        limits = entry.get("limits", limits)
        memory |= entry.get("memory", {})
    profile = replace(conf.profile, version=conf.version, memory={**conf.profile.memory, **memory})
    seqs, tokens = conf.max_num_seqs, conf.max_num_batched_tokens
    if "max_num_seqs" in limits:
        length = conf.max_model_len or model_length
        chunked = length > LONG_LENGTH and "chunk" in limits
        seqs = seqs or limits["max_num_seqs"]
        tokens = tokens or (limits["chunk"] if chunked else max(length, limits["least_tokens"]))
    tokens = tokens or limits.get("max_num_batched_tokens")
    if limits.get("every_token_sampled"):
        seqs = tokens
    return replace(conf, profile=profile, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _entries(engine: str) -> list[Mapping[str, Any]]:
    return [mapping(entry, f"legacy.yaml: {engine}") for entry in _file()[engine]]


@cache
def _file() -> Mapping[str, Any]:
    text = (resources.files("calibration.kv") / "legacy.yaml").read_text(encoding="utf-8")
    return mapping(parse_yaml(text, "legacy.yaml"), "legacy.yaml")

"""SGLang's scheduler, by version; that of its prefill and decode instances."""

from typing import Any

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.hooks import Connector, Roles, Sender
from sim.scheduler.options import read_options
from sim.scheduler.sglang.decode import DecodeInstance as DecodeInstance
from sim.scheduler.sglang.options import Options as Options, check_policy
from sim.scheduler.sglang.order import POLICIES as POLICIES
from sim.scheduler.sglang.prefill import PrefillInstance as PrefillInstance
from sim.scheduler.sglang.request import SglangBatch as SglangBatch, SglangRequest as SglangRequest
from sim.scheduler.sglang.scheduler import SglangScheduler as SglangScheduler


SUPPORTS = ("enable_prefix_caching",)
NOT_MODELLED = (
    "SGLang: speculative decoding, LoRA, HiCache, pipeline stages, pools of sliding-window layers, prefix reuse of "
    "recurrent states, and the policies random, priority and routing-key",
)
MOST_IN_FLIGHT = 2
LEAST_RUNNING, MOST_RUNNING = 2048, 4096
"""Bounds of the running requests that SGLang chooses by itself: 512 of the longest for each that the pool holds."""


def make(settings: EngineSettings, cache: CacheShape) -> SglangScheduler:
    """One replica's scheduler.

    **Raises:** `ValueError` for an option or a policy that SGLang does not have, a prefill batch that is not of whole
    pages, and for pipeline stages.
    """
    return SglangScheduler(**_limits(settings, cache))


def make_prefill(settings: EngineSettings, cache: CacheShape, connector: Sender[Any]) -> PrefillInstance:
    """The scheduler of a prefill instance."""
    return PrefillInstance(**_limits(settings, cache), connector=connector)


def make_decode(settings: EngineSettings, cache: CacheShape, connector: Connector[Any]) -> DecodeInstance:
    """The scheduler of a decode instance, which keeps no tree."""
    return DecodeInstance(**(_limits(settings, cache) | {"reuse": False}), connector=connector)


ROLES = Roles(
    make_prefill,
    make_decode,
    decode_first=True,
    keeps_token=True,
    not_modelled=(
        "SGLang's prefill and decode instances follow its documentation and pull requests, not recordings; the host's "
        "time for a hand-over, and for KV of retracted requests to the host's memory and back",
    ),
)


def _limits(settings: EngineSettings, cache: CacheShape) -> dict[str, Any]:
    options = read_options(Options, settings.scheduler_options, "the scheduler sglang")
    policy = settings.scheduling_policy
    check_policy(options, policy)
    if settings.batches_in_flight > MOST_IN_FLIGHT:
        raise ValueError(
            f"the sglang scheduler has at most {MOST_IN_FLIGHT} batches in flight, got {settings.batches_in_flight}: "
            "set deployment.pipeline_parallel to 1"
        )
    if settings.chunked_prefill and settings.max_num_batched_tokens % settings.block_size:
        raise ValueError(
            f"SGLang's prefill batch must be whole pages of {settings.block_size} tokens, got "
            f"{settings.max_num_batched_tokens:,}: change engine.max_num_batched_tokens or engine.block_size"
        )
    return {
        "pool_tokens": cache.usable_blocks * settings.block_size,
        "page_size": settings.block_size,
        "max_running": most_running(settings, cache.usable_blocks),
        "context_len": settings.max_model_len,
        "chunk": settings.max_num_batched_tokens if settings.chunked_prefill else None,
        "policy": policy,
        "reuse": settings.prefix_caching,
        "overlap": settings.batches_in_flight > 1,
        "options": options,
        "rules": settings.profile.sglang,
    }


def most_batch_tokens(settings: EngineSettings) -> int:
    """Tokens of the largest batch: a chunk, all that decode, or what prompts that are not cut can add up to.

    Those are added while room is left, so the last may reach beyond it.
    """
    if settings.chunked_prefill:
        return max(settings.max_num_batched_tokens, settings.max_num_seqs)
    most = read_options(Options, settings.scheduler_options, "the scheduler sglang").max_prefill_tokens
    return max(most + settings.max_model_len, settings.max_num_seqs)


def most_running(settings: EngineSettings, usable_blocks: int) -> int:
    """Requests that may run at once: as given or by the size of the pool, and never more than half its tokens."""
    most, pool_tokens = settings.max_num_seqs, usable_blocks * settings.block_size
    if settings.origin.get("max_num_seqs") != "user":
        most = min(most, max(LEAST_RUNNING, min(MOST_RUNNING, 512 * pool_tokens // settings.max_model_len)))
    return max(1, min(most, pool_tokens // 2))

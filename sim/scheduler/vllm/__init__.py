"""vLLM V1's continuous batching, by version: a fast path, and row by row for everything else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.deployment.engine import EngineSettings
from sim.memory.blocks import CountedBlocks
from sim.memory.cache import KVCache
from sim.memory.prefix import PrefixBlocks
from sim.memory.shape import CacheShape
from sim.scheduler.base import Scheduler
from sim.scheduler.hooks import Connector, Drafting, Progress, Roles, TierConnector
from sim.scheduler.options import at_least, one_of, read_options
from sim.scheduler.vllm.connected import ConnectedBatching as ConnectedBatching
from sim.scheduler.vllm.continuous import ContinuousBatching as ContinuousBatching, DecodingRequest as DecodingRequest
from sim.scheduler.vllm.request import RowRequest as RowRequest, VllmBatch as VllmBatch, VllmRow as VllmRow
from sim.scheduler.vllm.rows import RowBatching as RowBatching


POLICIES = ("fcfs", "priority")
SUPPORTS = ("enable_prefix_caching", "hybrid_kv_cache", "long_prefill_token_threshold")


@dataclass(frozen=True)
class Options:
    """`watermark`: share of all blocks kept free at admission while a request runs (vLLM 0.33)."""

    watermark: float = 0.0

    def __post_init__(self) -> None:
        at_least(0.0, watermark=self.watermark)
        if self.watermark >= 1:
            raise ValueError(f"watermark must be below 1, got {self.watermark:g}.")


def make(settings: EngineSettings, cache: CacheShape) -> Scheduler:
    """One replica's scheduler: the fast path where it makes the same decisions, otherwise row by row.

    `ValueError` for a policy or an option that vLLM, or this version of it, does not have.
    """
    one_of(POLICIES, **{"engine.scheduling_policy": settings.scheduling_policy})
    return make_fast(settings, cache) if takes_fast_path(settings, cache) else make_rows(settings, cache)


def make_speculative(
    settings: EngineSettings, cache: CacheShape, drafting: Drafting, progress: Progress
) -> RowBatching:
    """One replica's scheduler with drafts, row by row."""
    one_of(POLICIES, **{"engine.scheduling_policy": settings.scheduling_policy})
    return make_rows(settings, cache, drafting=drafting, progress=progress)


def make_connected(
    settings: EngineSettings, cache: CacheShape, connector: Connector[Any]
) -> ConnectedBatching | RowBatching:
    """The scheduler of an instance whose KV comes from others, or is read by them; the fast path where it is equal."""
    one_of(POLICIES, **{"engine.scheduling_policy": settings.scheduling_policy})
    if takes_fast_path(settings, cache) and settings.profile.connector.aside != "none" and not connector.fails:
        return ConnectedBatching(
            _fast_blocks(settings, cache), connector, settings.profile.connector, **_limits(settings)
        )
    return make_rows(settings, cache, connector=connector)


def make_tiered(settings: EngineSettings, cache: CacheShape, connector: TierConnector[Any]) -> RowBatching:
    """One replica's scheduler with tiers behind its cache, row by row."""
    one_of(POLICIES, **{"engine.scheduling_policy": settings.scheduling_policy})
    made = make_rows(settings, cache, connector=connector)
    made.cache.on_registered = connector.registered
    made.cache.pool.on_lost = connector.lost
    connector.find = made.cache.pool.find
    return made


def make_swapping(settings: EngineSettings, cache: CacheShape, connector: Connector[Any]) -> RowBatching:
    """One replica's scheduler whose preempted requests leave their KV elsewhere, row by row."""
    one_of(POLICIES, **{"engine.scheduling_policy": settings.scheduling_policy})
    return make_rows(settings, cache, connector=connector)


ROLES = Roles(make_connected, make_connected)


def takes_fast_path(settings: EngineSettings, cache: CacheShape) -> bool:
    """Whether no rule is needed that only the row-by-row scheduler has.

    First come first served, no threshold, no watermark, one table of full attention, and either one batch at a time
    or a single stage scheduled one batch ahead.
    """
    return (
        settings.scheduling_policy == "fcfs"
        and settings.long_prefill_token_threshold == 0
        and watermark_blocks(settings, cache) == 0
        and len(cache.groups) == 1
        and cache.groups[0].kind in ("full", "mla")
        and settings.pipeline_parallel == 1
        and settings.batches_in_flight == (2 if settings.async_scheduling else 1)
    )


def make_fast(settings: EngineSettings, cache: CacheShape) -> ContinuousBatching:
    """The fast path. With a named cache, blocks have an identity and prefixes are reused."""
    return ContinuousBatching(_fast_blocks(settings, cache), **_limits(settings))


def _fast_blocks(settings: EngineSettings, cache: CacheShape) -> CountedBlocks[Any] | PrefixBlocks[Any]:
    """The fast path's blocks: named where prefixes are reused, else counted."""
    if not cache.named:
        return CountedBlocks(cache.usable_blocks, settings.block_size)
    first = settings.profile.cache.unhashed_blocks_first
    return PrefixBlocks(cache.usable_blocks, settings.block_size, first, reuse=settings.prefix_caching)


def _limits(settings: EngineSettings) -> dict[str, Any]:
    """The fast path's limits and what the version does differently."""
    profile = settings.profile
    return {
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_model_len": settings.max_model_len,
        "reserve_full_input": settings.reserve_full_input,
        "chunked_prefill": settings.chunked_prefill,
        "skip_oversized": profile.scheduling.skip_oversized,
        "register_on_output": settings.async_scheduling,
        "count_refused": not profile.cache.counts_admitted_only,
    }


def make_rows(
    settings: EngineSettings,
    cache: CacheShape,
    *,
    progress: Progress | None = None,
    drafting: Drafting | None = None,
    connector: Connector[RowRequest] | None = None,
    kind: Callable[..., RowBatching] | None = None,
) -> RowBatching:
    """Row by row, whatever the settings; blocks always have an identity.

    `kind`: another that decides so, with `engine.scheduler_options` of its own.
    """
    ahead = settings.batches_in_flight if settings.async_scheduling else 1
    blocks = KVCache(
        cache,
        settings.profile.cache,
        reuse=settings.prefix_caching and cache.named,
        max_model_len=settings.max_model_len,
        ahead_tokens=ahead * settings.max_num_batched_tokens,
        eagle=drafting is not None and drafting.lookahead,
    )
    parts: dict[str, Any] = {"progress": progress, "drafting": drafting, "connector": connector}
    if kind is not None:
        return kind(settings, blocks, **parts)
    return RowBatching(settings, blocks, **parts, watermark_blocks=watermark_blocks(settings, cache))


def watermark_blocks(settings: EngineSettings, cache: CacheShape) -> int:
    """Blocks kept free at admission while a request runs: a share of all, the null block included.

    `ValueError` for options that are none, a share outside [0, 1), or a version without a watermark.
    """
    share = read_options(Options, settings.scheduler_options, "the scheduler vllm").watermark
    if share and not settings.profile.scheduling.watermark:
        raise ValueError(
            f"vLLM {settings.version} keeps no blocks free at admission, got engine.scheduler_options.watermark="
            f"{share:g}: leave it out, or choose a later engine.version."
        )
    return int(share * (cache.usable_blocks + 1))

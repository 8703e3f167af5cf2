"""vLLM V1's continuous batching, by version."""

from sim.deployment.engine import EngineSettings
from sim.memory.blocks import CountedBlocks
from sim.memory.prefix import PrefixBlocks
from sim.memory.shape import CacheShape
from sim.scheduler.vllm.continuous import ContinuousBatching as ContinuousBatching, DecodingRequest as DecodingRequest


def make(settings: EngineSettings, cache: CacheShape) -> ContinuousBatching:
    """One replica's scheduler. With a named cache, blocks have an identity and prefixes are reused."""
    profile = settings.profile
    blocks: CountedBlocks[DecodingRequest] | PrefixBlocks[DecodingRequest]
    if cache.named:
        blocks = PrefixBlocks(cache.usable_blocks, settings.block_size, profile.cache.unhashed_blocks_first)
    else:
        blocks = CountedBlocks(cache.usable_blocks, settings.block_size)
    return ContinuousBatching(
        blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        reserve_full_input=settings.reserve_full_input,
        chunked_prefill=settings.chunked_prefill,
        skip_oversized=profile.scheduling.skip_oversized,
        register_on_output=settings.async_scheduling,
    )

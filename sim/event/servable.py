"""Which requests an engine can serve at all, before any of them runs."""

from sim.memory.shape import CacheShape, GroupShape


def servable_tokens(prompt: int, outputs: int, max_model_len: int, cache: CacheShape) -> int | None:
    """Tokens the engine emits for a request, cut at `max_model_len`, or None if it can never be served.

    A prompt needs room for one more token. All tokens but the last have to be computed; the blocks of all groups
    that the last of them needs at once (`blocks_at_end`) must be no more than the cache has. The engine itself takes
    such a request, and preempts it or lets it wait for ever.
    """
    outputs = min(outputs, max_model_len - prompt)
    if outputs < 1:
        return None
    tokens = prompt + outputs - 1
    if sum(blocks_at_end(group, tokens) for group in cache.groups) > cache.usable_blocks:
        return None
    return outputs


def blocks_at_end(group: GroupShape, tokens: int) -> int:
    """Blocks of one group that a request of `tokens` computed tokens holds at least while the last is computed.

    All of them; with a sliding window those of the last `window` tokens; with chunked-local attention those
    of the last token's chunk; one where states are kept.
    """
    if group.kind == "mamba":
        return 1
    first = 0
    if group.window is not None:
        first = max(tokens - group.window, 0) if group.kind == "swa" else (tokens - 1) // group.window * group.window
    return (tokens - 1) // group.block_size - first // group.block_size + 1

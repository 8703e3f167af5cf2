"""What became of KV in cache tiers: what a summary, the console and the page have of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class TierCount:
    """One tier over a run, all ranks together: `chunks` of `chunk_blocks` blocks fit in each, or in the `shared` one.

    `recalls`: of requests; `asked_blocks` and `recalled_blocks`, `recalled_bytes`; `recall_s`: from its blocks being
    taken to the last byte, of each. `written_chunks`, `written_bytes`: that came in; `dropped_chunks` were lost
    to make room, `refused_chunks` found none; `most_chunks` at once.
    Of the `asked_chunks` of prefetches into the tier before, `prefetched_chunks` arrived there.
    """

    name: str
    chunks: int
    chunk_blocks: int
    shared: bool
    recalls: int = 0
    asked_blocks: int = 0
    recalled_blocks: int = 0
    recalled_bytes: float = 0.0
    written_chunks: int = 0
    written_bytes: float = 0.0
    dropped_chunks: int = 0
    refused_chunks: int = 0
    most_chunks: int = 0
    asked_chunks: int = 0
    prefetched_chunks: int = 0
    recall_s: list[float] = field(default_factory=list)


def tier_fields(counts: Sequence[TierCount], block_tokens: int, prompt_tokens: int) -> list[dict[str, Any]] | None:
    """`cache_tiers` of a summary; None without any. `prompt_tokens`: of all requests that began."""
    if not counts:
        return None
    return [
        {
            "name": count.name,
            "shared": count.shared,
            "size_tokens": count.chunks * count.chunk_blocks * block_tokens,
            "most_used_share": count.most_chunks / count.chunks,
            "recalls": count.recalls,
            "recalled_tokens": count.recalled_blocks * block_tokens,
            "recalled_share": count.recalled_blocks * block_tokens / prompt_tokens if prompt_tokens else None,
            "recalled_bytes": count.recalled_bytes,
            "recall_ms_mean": 1e3 * float(np.mean(count.recall_s)) if count.recall_s else None,
            "recall_ms_p99": 1e3 * float(np.quantile(count.recall_s, 0.99)) if count.recall_s else None,
            "written_tokens": count.written_chunks * count.chunk_blocks * block_tokens,
            "written_bytes": count.written_bytes,
            "dropped_tokens": count.dropped_chunks * count.chunk_blocks * block_tokens,
            "prefetched_tokens": count.prefetched_chunks * count.chunk_blocks * block_tokens,
            "refused_tokens": count.refused_chunks * count.chunk_blocks * block_tokens,
        }
        for count in counts
    ]


def begun_tokens(result: Any) -> int:
    """Prompt tokens of all requests that got a seat."""
    requests = result.requests
    return int(np.asarray(requests.prompt_tokens)[np.asarray(requests.scheduled_ns) >= 0].sum())

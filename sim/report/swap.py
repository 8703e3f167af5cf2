"""What became of preempted requests' KV that was copied to the host: what a summary, the console and the page have."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class SwapCount:
    """Swapping over a run, all ranks together: the host has room for `room_blocks` blocks of each rank.

    `swaps`: preemptions whose KV was copied out; `refused`: those for whose KV there was no room, which was computed
    again. `out_blocks` = `in_blocks` + `dropped_blocks` (of requests that ended meanwhile, or whose KV was still in the
    cache). `out_s`, `in_s`: that steps waited for copies each way; `away_s`: of each request that came back by a copy,
    from its preemption to the call that admitted it. `most_blocks` of one rank at once.
    """

    room_blocks: int
    block_bytes: float
    swaps: int = 0
    refused: int = 0
    out_blocks: int = 0
    in_blocks: int = 0
    dropped_blocks: int = 0
    most_blocks: int = 0
    out_s: float = 0.0
    in_s: float = 0.0
    away_s: list[float] = field(default_factory=list)


def swap_fields(count: SwapCount | None, block_tokens: int) -> dict[str, Any] | None:
    """`kv_swap` of a summary; None without swapping."""
    if count is None:
        return None
    away_ms = 1e3 * np.array(count.away_s)
    return {
        "size_tokens": count.room_blocks * block_tokens,
        "most_used_share": count.most_blocks / count.room_blocks,
        "swaps": count.swaps,
        "back": len(count.away_s),
        "refused": count.refused,
        "out_tokens": count.out_blocks * block_tokens,
        "out_bytes": count.out_blocks * count.block_bytes,
        "in_tokens": count.in_blocks * block_tokens,
        "in_bytes": count.in_blocks * count.block_bytes,
        "dropped_tokens": count.dropped_blocks * block_tokens,
        "out_wait_s": count.out_s,
        "in_wait_s": count.in_s,
        "away_ms_mean": float(away_ms.mean()) if away_ms.size else None,
        "away_ms_p99": float(np.quantile(away_ms, 0.99)) if away_ms.size else None,
    }

"""What arrives: one fixed list of requests, the same for every engine."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in arrival order; all arrays have axis `request`.

    `arrival_ns` are planned arrivals, non-decreasing, from 0. With `concurrency` K (closed loop) request i
    is sent at `max(arrival_ns[i], when fewer than K are outstanding)`. `token_ids` and
    `block_hashes` (one array per request) carry content for prefix reuse, or are None.
    `digest` is the SHA-256 of all of this; `provenance` says where lengths and arrivals come from.
    """

    name: str
    arrival_ns: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    concurrency: int | None = None
    token_ids: tuple[np.ndarray, ...] | None = None
    block_hashes: tuple[np.ndarray, ...] | None = None
    hash_block_tokens: int | None = None
    digest: str = ""
    provenance: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.arrival_ns)

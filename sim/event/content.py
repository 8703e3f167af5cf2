"""What requests say: token ids per request, for prefix reuse."""

import numpy as np

from sim.workload.trace import Workload


def has_content(workload: Workload) -> bool:
    """Whether requests say something that could be found again."""
    return workload.token_ids is not None or workload.block_hashes is not None


def request_content(workload: Workload) -> list[np.ndarray] | None:
    """Per request the ids of its prompt, and of its outputs where the trace has them; None without content.

    A trace of block hashes gives each block's tokens ids of their own, equal for equal hashes. A last block may be
    partly filled; prompt tokens beyond the hashes are unlike any other.
    """
    if workload.token_ids is not None:
        if workload.output_token_ids is None:
            return list(workload.token_ids)
        return [np.concatenate(pair) for pair in zip(workload.token_ids, workload.output_token_ids, strict=True)]
    if workload.block_hashes is None or workload.hash_block_tokens is None:
        return None
    size = workload.hash_block_tokens
    within = np.arange(size, dtype=np.int64)
    contents = []
    for hashes, prompt in zip(workload.block_hashes, workload.prompt_tokens.tolist(), strict=True):
        contents.append((hashes[:, None] * size + within).ravel()[:prompt])
    return contents

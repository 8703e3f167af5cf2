"""Token ids for prompts with a common prefix, so that prefix caches have something to find."""

import numpy as np
from jaxtyping import Int

from sim.workload.conf import WorkloadConf


VOCABULARY = 32_000  # only equality of ids matters to a prefix cache


def shared_prefix_ids(
    conf: WorkloadConf, prompt_tokens: Int[np.ndarray, " request"], rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Per request: the same `prefix_tokens` random ids, then a run of ids from a random start of its own.

    The form of vLLM's random data set: after the prefix, id j of request i is (offset_i + i + j) mod vocabulary.
    """
    prefix = np.floor(rng.random(conf.prefix_tokens) * VOCABULARY).astype(np.int64)
    offsets = np.floor(rng.random(len(prompt_tokens)) * VOCABULARY).astype(np.int64)
    return tuple(
        np.concatenate([prefix, (offset + index + np.arange(length - len(prefix))) % VOCABULARY])
        for index, (offset, length) in enumerate(zip(offsets, prompt_tokens, strict=True))
    )

"""What requests retrieve, as columns."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


MOST_CHUNKS = 1000
"""Of one prompt."""
MOST_CORPUS = 10_000_000
"""Each chunk of the corpus has its own weight, in memory."""


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Retrieval of a workload's requests.

    - `latency_ns`: axis `request`; from sending it until its prompt goes to the engine.
    - `chunks`: axes `request chunk`; which chunks of the corpus its prompt has, in order, each `chunk_tokens` long,
      behind `system_tokens` that all prompts share. No columns: only the latency.

    Arrays that contradict this raise `ValueError`.
    """

    latency_ns: Int[np.ndarray, " request"]
    chunks: Int[np.ndarray, "request chunk"]
    chunk_tokens: int = 0
    system_tokens: int = 0

    @property
    def retrieved_tokens(self) -> int:
        """Of each prompt."""
        return self.chunks.shape[1] * self.chunk_tokens

    @property
    def shares(self) -> bool:
        """Whether prompts say something that could be found again."""
        return self.chunks.shape[1] > 0

    def check(self, prompt_tokens: Int[np.ndarray, " request"]) -> None:
        """Raise `ValueError` unless this is what requests with such prompts retrieve."""
        if len(self.latency_ns) != len(prompt_tokens) or len(self.chunks) != len(prompt_tokens):
            raise ValueError(f"retrieval wants one latency and one row of chunks per request: {len(prompt_tokens)}")
        if (self.latency_ns < 0).any() or (self.shares and self.chunks.min() < 0):
            raise ValueError("retrieval wants latencies >= 0, and chunks numbered from 0")
        if self.shares and prompt_tokens.min() <= self.system_tokens + self.retrieved_tokens:
            raise ValueError("retrieval wants a question of at least one token behind the chunks of each prompt")

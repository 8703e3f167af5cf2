"""What requests say: token ids per request, for prefix reuse."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

import numpy as np

from sim.scheduler.base import output_base
from sim.workload.retrieval.columns import Retrieval
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import MOST_TOKENS, Workload


NEW = 1 << 31
"""New prompt tokens of request i have ids from `output_base(i) + NEW` on: beyond those of its outputs."""


def request_content(workload: Workload) -> Sequence[np.ndarray] | None:
    """Per request the ids of its prompt, and of its outputs where the trace has them; None without content.

    A trace of block hashes gives each block's tokens ids of their own, equal for equal hashes. A last block may be
    partly filled; prompt tokens beyond the hashes are unlike any other. Rounds of sessions without ids of their own
    repeat what was said before.
    """
    if not workload.has_content:
        return None
    if workload.token_ids is not None:
        if workload.output_token_ids is None:
            return list(workload.token_ids)
        return [np.concatenate(pair) for pair in zip(workload.token_ids, workload.output_token_ids, strict=True)]
    if workload.retrieval is not None and workload.retrieval.shares:
        return RetrievedContent(workload, workload.retrieval)
    if workload.block_hashes is None or workload.hash_block_tokens is None:
        assert workload.sessions is not None
        return RoundContent(workload, workload.sessions)
    size = workload.hash_block_tokens
    within = np.arange(size, dtype=np.int64)
    contents = []
    for hashes, prompt in zip(workload.block_hashes, workload.prompt_tokens.tolist(), strict=True):
        contents.append((hashes[:, None] * size + within).ravel()[:prompt])
    return contents


class MadeContent(Sequence[np.ndarray]):
    """Prompts put together when asked for, so that memory holds those of requests under way only."""

    def __init__(self, count: int):
        self._count = count
        self._latest = (-1, np.zeros(0, np.int64))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, i: slice) -> list[np.ndarray]: ...

    def __getitem__(self, i: int | slice) -> np.ndarray | list[np.ndarray]:
        """The prompt of request i."""
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        if self._latest[0] != i:  # asked for by the router, then by the replica
            self._latest = i, self._prompt(i)
        return self._latest[1]

    @abstractmethod
    def _prompt(self, i: int) -> np.ndarray:
        """The ids of request i's prompt."""


class RetrievedContent(MadeContent):
    """Prompts with retrieved chunks: what all begin with, the chunks in order, and a question unlike any other.

    The common beginning has the ids from -`MOST_TOKENS` on, chunk c those from -(c + 2) `MOST_TOKENS` on.
    """

    def __init__(self, workload: Workload, retrieval: Retrieval):
        super().__init__(len(workload))
        self._prompts = workload.prompt_tokens
        self._retrieval = retrieval

    def _prompt(self, i: int) -> np.ndarray:
        found = self._retrieval
        chunks, before = found.chunks[i], found.system_tokens + found.retrieved_tokens
        said = -(chunks[:, None] + 2) * MOST_TOKENS + np.arange(found.chunk_tokens)
        question = output_base(i) + NEW + np.arange(int(self._prompts[i]) - before)
        return np.concatenate([np.arange(found.system_tokens) - MOST_TOKENS, said.ravel(), question])


class RoundContent(MadeContent):
    """Prompts of rounds, which repeat what was said before.

    System prompt g has the ids from -(g + 1) MOST_TOKENS on; outputs have those that schedulers give them.
    """

    def __init__(self, workload: Workload, sessions: Sessions):
        super().__init__(len(workload))
        self._prompts, self._outputs = workload.prompt_tokens, workload.output_tokens
        self._sessions = sessions

    def _prompt(self, i: int) -> np.ndarray:
        """Runs of ids, each from its own start on, laid end to end."""
        sessions = self._sessions
        s = sessions.of(i)
        first, have = int(sessions.first[s]), sessions.system_tokens
        starts, sizes = [-(int(sessions.system[s]) + 1) * MOST_TOKENS], [have]
        columns = (self._prompts, self._outputs, sessions.history_tokens, sessions.dropped_tokens)
        rows = zip(*(column[first : i + 1].tolist() for column in columns), strict=True)
        for k, (prompt, output, history, dropped) in enumerate(rows, first):
            over = have - history if k > first else 0
            while over:  # what was said last is not repeated
                cut = min(over, sizes[-1])
                sizes[-1] -= cut
                over -= cut
                if over:
                    del starts[-1], sizes[-1]
            base = output_base(k)
            known = history if k > first else have
            starts += (base + NEW, base + dropped)
            sizes += (prompt - known, output - dropped)
            have = prompt + output - dropped
        del starts[-1], sizes[-1]  # its own output
        ends = np.cumsum(sizes)
        return np.repeat(np.array(starts) - ends + sizes, sizes) + np.arange(ends[-1])

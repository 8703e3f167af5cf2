"""Blocks with an identity for the walk of `sim.scheduler.iteration`: block tables, and prefixes found again.

Full blocks are findable as soon as a row that fills them is decided, as in vLLM's synchronous scheduler; scheduled
ahead they are too, a call before their last token is known.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from sim.memory.pool import BlockPool, chain_keys


class Held(Protocol):
    """What is kept of a request: its `table` of blocks, the `registered` first of which have been named."""

    index: int
    prompt: int
    token_ids: np.ndarray | None
    output_base: int
    block_keys: list[int]
    table: list[int]
    registered: int

    @property
    def known(self) -> int:
        """Tokens known: the prompt and what was emitted."""


class BlockTables[R: Held]:
    """The blocks of one replica, one group of full attention, each with one table per request."""

    def __init__(self, usable: int, block_size: int, unhashed_first: bool = False):
        self.block_size = block_size
        self._pool = BlockPool(usable, unhashed_first)

    @property
    def free(self) -> int:
        """Blocks nobody uses, cached ones included."""
        return self._pool.free

    def find(self, request: R) -> list[int]:
        """Full blocks found of a request that waits, from its start, leaving at least one token to compute."""
        full = (request.known - 1) // self.block_size
        return self._pool.find_run(islice(chain_keys(request, full, self.block_size), full))

    def idle(self, found: Sequence[int]) -> int:
        """How many of the blocks found nobody uses: they count as free, and are not once they are taken up."""
        references = self._pool.references
        return sum(not references[block] for block in found)

    def freed(self, losing: Iterable[R], found: Sequence[int]) -> int:
        """Blocks that are free when all of `losing` give up theirs, less those `found`, which would be taken up."""
        references = self._pool.references
        users = Counter(block for request in losing for block in request.table)
        kept = set(found)
        return sum(references[block] == count and block not in kept for block, count in users.items())

    def take(self, request: R, found: Sequence[int], count: int) -> None:
        """The blocks found and so many new ones more."""
        if found:
            self._pool.touch(found)
            request.table = list(found)
            request.registered = len(found)
        request.table += self._pool.take(count)

    def register(self, request: R, tokens: int) -> None:
        """Make the full blocks among the first `tokens` findable."""
        full = tokens // self.block_size
        if full > request.registered:
            keys = chain_keys(request, full, self.block_size)
            self._pool.name_all(request.table[request.registered : full], keys[request.registered : full])
            request.registered = full

    def give_back(self, request: R) -> None:
        """All blocks of a request, the last one first, so that a prefix outlives its continuation."""
        self._pool.give_back(request.table[::-1])
        request.table = []
        request.registered = 0

    def forget(self) -> None:
        """Nothing is findable any more; nobody may hold blocks."""
        self._pool.forget()

"""Full attention, latent or not: every block is needed to the end."""

import math

from sim.memory.cache.kind import FindBlocks, continued, whole


class Full:
    """Block tables of full attention; `name` is full or mla."""

    def __init__(self, name: str, block_size: int):
        self.name = name
        self.block_size = block_size
        self.window = None
        self.numbers: list[int] = []

    def first_kept(self, computed: int, registered: int) -> int:
        """All blocks are kept."""
        return 0

    def frees_at(self, computed: int) -> float:
        """Never."""
        return math.inf

    def skipped_blocks(self, computed: int) -> int:
        """None."""
        return 0

    def most_blocks(self, ahead_tokens: int, max_model_len: int) -> int:
        """Those of the longest request."""
        return -(-max_model_len // self.block_size)

    def find(self, find: FindBlocks, tokens: int, alignment: int, drop_last: bool) -> list[list[int]]:
        """Cached blocks from the start up to the first that is missing."""
        hits = continued([], find, tokens, self.block_size)
        if drop_last and hits:
            hits.pop()
        return whole(hits, self.block_size, alignment)

    def replay_blocks(self) -> int | None:
        """All."""
        return None

"""Chunked-local attention: a token reads its own chunk of `window` tokens up to itself."""

from sim.memory.cache.kind import FindBlocks, continued, whole


class Chunked:
    """Block tables of one chunk size.

    `keep_registered`: the last block with a prefix hash, and what follows it, is kept although its chunk is over
    (vLLM 0.10.2).
    """

    name = "chunk"

    def __init__(self, block_size: int, window: int, keep_registered: bool = False):
        self.block_size = block_size
        self.window = window
        self.numbers: list[int] = []
        self._keep_registered = keep_registered

    def first_kept(self, computed: int, registered: int) -> int:
        """The first block of the next token's chunk."""
        first = self.skipped_blocks(computed)
        return min(first, registered - 1) if self._keep_registered and registered else first

    def frees_at(self, computed: int) -> float:
        """When the next chunk begins; where registration holds blocks back, at any time."""
        return computed + 1 if self._keep_registered else (computed // self.window + 1) * self.window

    def skipped_blocks(self, computed: int) -> int:
        """Whole blocks before the chunk of the next token."""
        return computed // self.window * self.window // self.block_size

    def most_blocks(self, ahead_tokens: int, max_model_len: int) -> int:
        """A chunk and what is computed ahead of it."""
        return -(-min(self.window + ahead_tokens, max_model_len) // self.block_size)

    def find(self, find: FindBlocks, tokens: int, alignment: int, drop_last: bool) -> list[list[int]]:
        """Chunks that are over count as found; then cached blocks up to the first that is missing."""
        start = self.skipped_blocks(tokens)
        over = [[0] * len(self.numbers) for _ in range(start)]
        hits = continued(over, find, tokens, self.block_size)
        if drop_last and hits:
            hits.pop()
        return whole(hits, self.block_size, alignment)

    def replay_blocks(self) -> int | None:
        """All."""
        return None

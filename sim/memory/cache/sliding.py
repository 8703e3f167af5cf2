"""Sliding-window attention: a token reads the `window` tokens that end with it."""

from sim.memory.cache.kind import FindBlocks, whole


class Sliding:
    """Block tables of one window."""

    name = "swa"

    def __init__(self, block_size: int, window: int):
        self.block_size = block_size
        self.window = window
        self.numbers: list[int] = []

    def first_kept(self, computed: int, registered: int) -> int:
        """The block of the first token that the next token's window covers."""
        return self.skipped_blocks(computed)

    def frees_at(self, computed: int) -> float:
        """When the window has left one more block."""
        return (self.skipped_blocks(computed) + 1) * self.block_size + self.window - 1

    def skipped_blocks(self, computed: int) -> int:
        """Whole blocks before the window of the next token."""
        return max(0, computed - self.window + 1) // self.block_size

    def most_blocks(self, ahead_tokens: int, max_model_len: int) -> int:
        """A window and what is computed ahead of it; one more because windows do not begin at block boundaries."""
        return -(-min(self.window - 1 + ahead_tokens, max_model_len) // self.block_size) + 1

    def find(self, find: FindBlocks, tokens: int, alignment: int, drop_last: bool) -> list[list[int]]:
        """The last run of cached blocks that covers a window; if none does, the run from the start."""
        size = self.block_size
        need = self.replay_blocks() + drop_last
        run: list[list[int]] = []  # from its last block to its first
        for i in range(tokens // size - 1, -1, -1):
            blocks = find(i)
            if blocks is None:
                run = []
                continue
            if not run and (i if drop_last else i + 1) * size % alignment:
                continue
            run.append(blocks)
            if len(run) >= need:
                break
        else:
            i = 0
        run.reverse()
        hits = [[0] * len(self.numbers) for _ in range(i)] + run if len(run) >= need else whole(run, size, alignment)
        if drop_last and hits:
            hits.pop()
        return whole(hits, size, alignment)

    def replay_blocks(self) -> int:
        """Blocks that hold the `window - 1` tokens before the end of a hit, a block boundary."""
        return -(-(self.window - 1) // self.block_size)

"""Recurrent layers: one state per request, whatever its length."""

import math

from sim.memory.cache.kind import FindBlocks


class Recurrent:
    """Tables of recurrent states: a block stands for the longest request, so that each has one.

    States are not found again: they hold a whole prefix, not a block of it, and stay out of prefix reuse.
    """

    name = "mamba"
    window = None

    def __init__(self, max_model_len: int):
        self.block_size = max_model_len
        self.numbers: list[int] = []

    def first_kept(self, computed: int, registered: int) -> int:
        """The state is kept."""
        return 0

    def frees_at(self, computed: int) -> float:
        """Never."""
        return math.inf

    def skipped_blocks(self, computed: int) -> int:
        """None."""
        return 0

    def most_blocks(self, ahead_tokens: int, max_model_len: int) -> int:
        """One."""
        return -(-max_model_len // self.block_size)

    def find(self, find: FindBlocks, tokens: int, alignment: int, drop_last: bool) -> list[list[int]]:
        """Nothing."""
        return []

    def replay_blocks(self) -> int | None:
        """All."""
        return None

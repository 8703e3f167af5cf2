"""What every kind of block table has in common; the kinds themselves are one file each."""

from collections.abc import Callable
from typing import Protocol


FindBlocks = Callable[[int], list[int] | None]
"""The cached blocks at a place of the table, one for each group of the kind, or None if one of them lacks it."""


class Kind(Protocol):
    """One kind of block table, for all groups (`numbers`) of the same kind, block size and window."""

    name: str
    block_size: int
    numbers: list[int]

    @property
    def window(self) -> int | None:
        """Tokens of the window or chunk, if there is one."""

    def first_kept(self, computed: int, registered: int) -> int:
        """The first block that a request with `computed` tokens still needs; those before it are given back."""

    def frees_at(self, computed: int) -> float:
        """The least number of computed tokens, above `computed`, at which another block may be given back."""

    def skipped_blocks(self, computed: int) -> int:
        """Blocks at the start that a request which begins at `computed` tokens never reads."""

    def most_blocks(self, ahead_tokens: int, max_model_len: int) -> int:
        """The most blocks one request needs at once, `ahead_tokens` being under way."""

    def find(self, find: FindBlocks, tokens: int, alignment: int, drop_last: bool) -> list[list[int]]:
        """The longest hit of at most `tokens`, a multiple of `alignment` tokens: per block, its ids (0: not needed).

        `drop_last`: the last block found is given up, for a drafter that wants the hidden state before its end.
        """

    def replay_blocks(self) -> int | None:
        """How many blocks before its end a hit needs; None: all of them."""


def whole(hits: list[list[int]], block_size: int, alignment: int) -> list[list[int]]:
    """Cut a hit, in place, to a multiple of `alignment` tokens."""
    extra = len(hits) * block_size % alignment
    if extra:
        del hits[-(extra // block_size) :]
    return hits


def continued(hits: list[list[int]], find: FindBlocks, tokens: int, size: int) -> list[list[int]]:
    """Extend a hit, in place, by cached blocks of `size` up to the first that is missing, within `tokens`."""
    for i in range(len(hits), tokens // size):
        blocks = find(i)
        if blocks is None:
            break
        hits.append(blocks)
    return hits

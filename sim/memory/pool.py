"""The blocks of one replica with identity: who uses them, which are free in what order, and what content they hold.

Blocks keep their hash when freed, and can be found until they are taken again (eviction is lazy: it happens when a
block leaves the free queue).
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import iter_unpack
from typing import Protocol

import numpy as np


UNITS_AHEAD = 32
"""Hashes made at once beyond what is known of a request."""

MOST_ENTRIES = 3
"""Hashes remembered per block, those of blocks taken since included, before these are swept up."""


class Content(Protocol):
    """A request as content: `token_ids` of the prompt and, where known, of the outputs.

    Any other position p has the id `output_base + p - prompt`.
    """

    prompt: int
    token_ids: np.ndarray | None
    output_base: int
    block_keys: list[int]


class BlockPool:
    """Blocks 1..usable (0 is the null block): reference counts, free queue, and hash -> block.

    The free queue is a ring of links through block 0: `_next[0]` is its front, `_before[0]` its back.
    `unhashed_first`: freed blocks without a hash go to the front of the queue (vLLM 0.33), otherwise to the back.
    """

    def __init__(self, usable: int, unhashed_first: bool):
        self.free = usable
        self.references = [0] * (usable + 1)
        self._next = array("i", [*range(1, usable + 1), 0])
        self._before = array("i", [usable, *range(usable)])
        self.hash_of: list[int | None] = [None] * (usable + 1)
        # The block registered first under a hash; it may have been taken since, and then has another hash or none.
        self.by_hash: dict[int, int] = {}
        # The other blocks with that hash, in order, where there are any: then all of them have it.
        self.duplicates: dict[int, list[int]] = {}
        self._unhashed_first = unhashed_first
        self.on_lost: Callable[[int], None] | None = None
        """Told the hash of each block that is taken, where no other has its content."""

    @property
    def queue(self) -> list[int]:
        """The free blocks in the order in which they would be taken."""
        block = 0
        return [block := self._next[block] for _ in range(self.free)]

    def take(self, count: int) -> list[int]:
        """The `count` blocks at the front of the queue, which must be there; they lose their hashes."""
        following, references, hash_of = self._next, self.references, self.hash_of
        if len(self.by_hash) > MOST_ENTRIES * len(hash_of):
            self._sweep()
        block = 0
        taken = [block := following[block] for _ in range(count)]
        following[0] = behind = following[block]
        self._before[behind] = 0
        self.free -= len(taken)
        if self.duplicates:
            for block in taken:
                self._promote(block)
        if self.on_lost is not None:
            for block in taken:
                key = hash_of[block]
                if key is not None and self.by_hash[key] == block:
                    self.on_lost(key)
        for block in taken:
            references[block] = 1
            hash_of[block] = None
        return taken

    def find(self, key: int) -> int | None:
        """The block with this hash; of several the one registered first."""
        block = self.by_hash.get(key, 0)
        return block if self.hash_of[block] == key else None

    def find_run(self, keys: Iterable[int]) -> list[int]:
        """The blocks with these hashes, up to the first that is not found."""
        get, hash_of = self.by_hash.get, self.hash_of
        found = []
        for key in keys:
            block = get(key, 0)
            if hash_of[block] != key:
                break
            found.append(block)
        return found

    def forget(self) -> None:
        """Nothing is findable any more."""
        self.hash_of = [None] * len(self.hash_of)
        self.by_hash.clear()
        self.duplicates.clear()

    def touch(self, blocks: Sequence[int]) -> None:
        """One more user of cached blocks."""
        references, following, before = self.references, self._next, self._before
        for block in blocks:
            if references[block]:
                references[block] += 1
            else:
                references[block] = 1
                self.free -= 1
                ahead, behind = before[block], following[block]
                following[ahead] = behind
                before[behind] = ahead

    def name(self, block: int, key: int) -> None:
        """Give a block its hash."""
        self.hash_of[block] = key
        first = self.by_hash.setdefault(key, block)
        if first != block:
            self._share(first, block, key)

    def name_all(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Give blocks their hashes, one after the other."""
        hash_of, by_hash = self.hash_of, self.by_hash
        for block, key in zip(blocks, keys, strict=True):
            hash_of[block] = key
            first = by_hash.setdefault(key, block)
            if first != block:
                self._share(first, block, key)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Free blocks in the order given; those still used by others stay."""
        following, before, references = self._next, self._before, self.references
        last = before[0]
        freed = 0
        front = []
        for block in blocks:
            left = references[block] - 1
            references[block] = left
            if not left:
                freed += 1
                if self._unhashed_first and self.hash_of[block] is None:
                    front.append(block)
                else:
                    following[last] = block
                    before[block] = last
                    last = block
        following[last] = 0
        before[0] = last
        self.free += freed
        if front:
            behind = following[0]
            for block in reversed(front):
                following[block] = behind
                before[behind] = block
                behind = block
            following[0] = behind
            before[behind] = 0

    def _share(self, first: int, block: int, key: int) -> None:
        """A block got a hash that `first` was registered under: they share it, unless `first` was taken since."""
        if self.hash_of[first] == key:
            self.duplicates.setdefault(key, []).append(block)
        else:
            self.by_hash[key] = block

    def _promote(self, block: int) -> None:
        """A block is to lose its hash: of its duplicates the first takes its place."""
        key = self.hash_of[block]
        if key is None or key not in self.duplicates:
            return
        others = self.duplicates[key]
        if self.by_hash[key] == block:
            self.by_hash[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self.duplicates[key]

    def _sweep(self) -> None:
        """Forget the hashes of blocks that were taken since."""
        hash_of = self.hash_of
        self.by_hash = {key: block for key, block in self.by_hash.items() if hash_of[block] == key}


def chain_keys(request: Content, count: int, unit: int) -> list[int]:
    """Chain hashes of a request's first `count` units of tokens (at least), each made once.

    A hash stands for its unit's tokens and all before them. Those of the known content are made together, when first
    asked for, the others some at a time.
    """
    keys = request.block_keys
    have = len(keys)
    if have < count:
        known = 0 if request.token_ids is None else len(request.token_ids) // unit
        stop = max(count, known if have < known else have + UNITS_AHEAD)
        key = keys[-1] if have else 0
        units = iter_unpack(f"{8 * unit}s", _ids(request, have * unit, stop * unit).tobytes())
        keys += [key := hash((key, tokens)) for (tokens,) in units]
    return keys


def _ids(request: Content, start: int, stop: int) -> np.ndarray:
    """Token ids of the positions [start, stop); positions beyond the known content are unlike any other's."""
    known = request.token_ids
    if known is not None and stop <= len(known):
        return known[start:stop]
    own = np.arange(start, stop, dtype=np.int64) + (request.output_base - request.prompt)
    if known is not None and start < len(known):
        own[: len(known) - start] = known[start:]
    return own

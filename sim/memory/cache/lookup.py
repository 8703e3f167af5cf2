"""The prefix cache over several kinds of block tables: what is found, what is worth registering, under which hash."""

from collections.abc import Iterable, Sequence
from math import gcd, lcm
from typing import Protocol

import numpy as np

from sim.deployment.rules import CacheRules
from sim.memory.cache.kind import FindBlocks, Kind
from sim.memory.pool import BlockPool, chain_keys


class Prefixed(Protocol):
    """What the prefix cache needs to know of a request."""

    prompt: int
    known: int
    token_ids: np.ndarray | None
    output_base: int
    block_keys: list[int]
    junction: int


class Lookup:
    """Looks prefixes up in all groups, and registers what a look-up can need.

    Content is hashed in units of the greatest common divisor of the block sizes; a block has the hash of its last unit.
    A hit ends at a multiple of their least common multiple, so that it is whole in every group.
    """

    def __init__(self, kinds: Sequence[Kind], pool: BlockPool, rules: CacheRules, eagle: bool):
        sizes = [kind.block_size for kind in kinds]
        self.unit = gcd(*sizes)
        self.alignment = lcm(*sizes)
        # full attention first: it bounds the others
        self._kinds = sorted(kinds, key=lambda kind: kind.name not in ("full", "mla"))
        self._full = [kind.name in ("full", "mla") for kind in self._kinds]
        self._one_round = len(kinds) == 1 or (len(kinds) == 2 and self._full[0])
        self._groups = sum(len(kind.numbers) for kind in kinds)
        self._pool = pool
        self._rules = rules
        self._eagle = eagle

    def __call__(self, request: Prefixed) -> tuple[int, list[list[int]], int]:
        """Tokens found, their blocks per group, and the junction: a longer length seen in one kind alone, or 0.

        Kind by kind, each within what the one before found, until no kind shortens it any more.
        """
        most = request.known - 1
        found: list[list[list[int]] | None] = [None] * len(self._kinds)
        searched_ahead: set[int] = set()
        tokens, longest = most, 0
        while True:
            current = tokens
            for place, kind in enumerate(self._kinds):
                size = kind.block_size
                if self._full[place] and found[place] is not None:
                    current = current // size * size
                    continue
                once = self._rules.eagle_drops_once
                drop = self._eagle and not (once and place in searched_ahead)
                limit = min(current + size, most) if drop and once else current
                hits = kind.find(self._finder(request, kind), limit, self.alignment, drop)
                found[place] = hits
                length = len(hits) * size
                if drop:
                    searched_ahead.add(place)
                elif length < current:
                    searched_ahead.clear()
                longest = max(longest, length)
                current = length
            shrunk = current < tokens
            tokens = min(tokens, current)
            if not shrunk or self._one_round:
                break
        blocks: list[list[int]] = [[] for _ in range(self._groups)]
        for kind, rows in zip(self._kinds, found, strict=True):
            for place, number in enumerate(kind.numbers):
                blocks[number] = [row[place] for row in (rows or [])[: tokens // kind.block_size]]
        return tokens, blocks, longest if self._rules.registration == "sparse" and longest > tokens else 0

    def registrable(self, kind: Kind, tokens: int) -> int:
        """How many of `tokens` may be registered in a group of this kind."""
        if self._rules.registration == "all":
            return tokens
        aligned = tokens // self.alignment * self.alignment
        return min(aligned + kind.block_size, tokens) if self._eagle and aligned else aligned

    def register(self, request: Prefixed, number: int, kind: Kind, table: Sequence[int], first: int, stop: int) -> None:
        """Give the blocks [first, stop) of the table of group `number` their hashes, as far as a look-up can need."""
        units = kind.block_size // self.unit
        keys = chain_keys(request, stop * units, self.unit)
        for i in self._worth_finding(request, kind, first, stop):
            if table[i]:
                self._pool.name(table[i], keys[(i + 1) * units - 1] * self._groups + number)

    def _worth_finding(self, request: Prefixed, kind: Kind, first: int, stop: int) -> Iterable[int]:
        need = kind.replay_blocks()
        if need is None or self._rules.registration == "all":
            return range(first, stop)
        size, aligned = kind.block_size, self.alignment
        if self._rules.registration == "sparse":
            ends = [end // aligned * aligned for end in self._replay_ends(request, size)]
        elif (need + self._eagle) * size >= aligned:
            return range(first, stop)
        else:
            ends = list(range(aligned, stop * size + aligned + 1, aligned))
        kept: set[int] = set()
        for end in ends:
            if end > 0:
                kept.update(range(max(first, end // size - need), min(stop, end // size + self._eagle)))
        return sorted(kept)

    def _replay_ends(self, request: Prefixed, block_size: int) -> list[int]:
        """Lengths at whose aligned part a later hit may end: the prompt sent again or continued, and the junction.

        With EAGLE a hit ends earlier, by what is given up.
        """
        prompt, junction = request.prompt, request.junction
        if not self._eagle:
            return [prompt - 1, junction]
        return [prompt - 1 - self.alignment, prompt - self.alignment, junction, junction - block_size]

    def _finder(self, request: Prefixed, kind: Kind) -> FindBlocks:
        units = kind.block_size // self.unit
        keys = chain_keys(request, request.known // self.unit, self.unit)
        groups, pool, numbers = self._groups, self._pool, kind.numbers

        def find(block: int) -> list[int] | None:
            key = keys[(block + 1) * units - 1] * groups
            blocks = []
            for number in numbers:
                found = pool.find(key + number)
                if found is None:
                    return None
                blocks.append(found)
            return blocks

        return find

"""KV blocks with identity for the fast path: one full-attention group, decoding requests grouped by class."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from sim.memory.pool import BlockPool, chain_keys


class Content(Protocol):
    """What the cache needs to know of a request.

    `token_ids` of the prompt and, where known, of the outputs; any other position p has the id
    `output_base + p - prompt`.
    """

    index: int
    prompt: int
    outputs: int
    target: int
    computed: int
    key: int
    token_ids: np.ndarray | None
    output_base: int
    blocks: list[int]
    block_keys: list[int]
    registered: int


class PrefixBlocks[R: Content]:
    """The counted manager's answers, with block tables and, if `reuse`, a prefix cache."""

    def __init__(self, usable: int, block_size: int, unhashed_first: bool = False, reuse: bool = True):
        self.usable = usable
        self.reuse = reuse
        self.block_size = block_size
        self.pool = BlockPool(usable, unhashed_first)
        self._by_class: list[dict[int, R]] = [{} for _ in range(block_size)]

    @property
    def free(self) -> int:
        """Blocks nobody uses, cached ones included."""
        return self.pool.free

    def lookup(self, request: R) -> Sequence[int]:
        """Blocks found in the cache: full ones from the start, leaving at least one token to compute."""
        if not self.reuse:
            return []
        full = (request.target - 1) // self.block_size
        return self.pool.find_run(islice(chain_keys(request, full, self.block_size), full))

    def admit(self, request: R, hits: Sequence[int], tokens: int, room: int, findable: bool = True) -> bool:
        """Take the blocks found and new ones for the first `tokens`; False, and nothing taken, without room for `room`.

        Blocks found that nobody uses would leave the free queue, so they need room as well. The new ones are `findable`
        at once, or when `register` says so.
        """
        references = self.pool.references
        idle = len([block for block in hits if not references[block]])
        if -(-room // self.block_size) - len(hits) + idle > self.free:
            return False
        self.pool.touch(hits)
        request.blocks = list(hits)
        request.registered = len(hits)
        self._take(request, tokens)
        if findable:
            self.register(request, min(tokens, request.target))
        return True

    def extend(self, request: R, prior: int, tokens: int) -> bool:
        """Grow from `prior` to `tokens`; False, and nothing taken, if the blocks are not free."""
        if -(-tokens // self.block_size) - len(request.blocks) > self.free:
            return False
        self._take(request, tokens)
        self.register(request, min(tokens, request.target))
        return True

    def grow_decodes(self, call: int, preempt: Callable[[], R]) -> None:
        """One block for each decoding request whose class is up, in order of admission.

        When none is free the last of running is preempted; if that is the request itself, the pass ends.
        """
        members = self._by_class[call % self.block_size]
        if len(members) <= self.pool.free:
            self._grow(members)
            return
        for request in list(members.values()):
            while not self.pool.free and request.index in members:
                preempt()
            if request.index not in members:
                return
            request.blocks += self.pool.take(1)

    def is_quiet(self, call: int, sought: bool) -> bool:
        """Whether the decoding requests can take this call's blocks without anybody noticing.

        The blocks are free; and if prefixes are `sought`, which may be found or gone after, none is taken or filled.
        """
        members = self._by_class[call % self.block_size]
        if sought and (members or self._by_class[(call + 1) % self.block_size]):
            return False
        return len(members) <= self.pool.free

    def grow_quietly(self, call: int, sought: bool) -> bool:
        """Take this call's blocks if that is quiet; False, and nothing taken, if not."""
        if not self.is_quiet(call, sought):
            return False
        self._grow(self._by_class[call % self.block_size])
        return True

    def filled(self, call: int) -> list[R]:
        """Decoding requests whose row in this call fills a block: they take the next one a call later."""
        return list(self._by_class[(call + 1) % self.block_size].values())

    def fill_decodes(self, call: int) -> None:
        """Make the blocks findable that decoding requests fill in this call: each one its next."""
        if not self.reuse:
            return
        blocks, keys = [], []
        for request in self._by_class[(call + 1) % self.block_size].values():
            last = request.registered
            if len(request.block_keys) <= last:
                chain_keys(request, last + 1, self.block_size)
            blocks.append(request.blocks[last])
            keys.append(request.block_keys[last])
            request.registered = last + 1
        self.pool.name_all(blocks, keys)

    def register(self, request: R, tokens: int) -> None:
        """Make the full blocks among the first `tokens` findable."""
        full = tokens // self.block_size
        if self.reuse and full > request.registered:
            keys = request.block_keys
            if len(keys) < full:
                chain_keys(request, full, self.block_size)
            self.pool.name_all(request.blocks[request.registered : full], keys[request.registered : full])
            request.registered = full

    def forget(self) -> None:
        """Nothing is findable any more; nobody may hold blocks."""
        self.pool.forget()

    def release(self, request: R, tokens: int) -> None:
        """Free all blocks, the last one first, so that a prefix outlives its continuation."""
        self.pool.give_back(request.blocks[::-1])
        request.blocks = []
        request.registered = 0

    def hold(self, request: R) -> list[int]:
        """One more user for what is found of a request that has ended: the blocks."""
        full = (request.prompt + request.outputs - 1) // self.block_size
        found = self.pool.find_run(chain_keys(request, full, self.block_size)[:full]) if self.reuse else []
        self.pool.touch(found)
        return found

    def let_go(self, blocks: Sequence[int]) -> None:
        """One user less, the last block first."""
        self.pool.give_back(blocks[::-1])

    def join(self, request: R) -> None:
        """The request decodes from the next call on."""
        self._by_class[(1 - request.key) % self.block_size][request.index] = request

    def leave(self, request: R) -> None:
        """It does no longer."""
        del self._by_class[(1 - request.key) % self.block_size][request.index]

    def _grow(self, members: dict[int, R]) -> None:
        """A block for each."""
        if members:
            for request, block in zip(members.values(), self.pool.take(len(members)), strict=True):
                request.blocks.append(block)

    def _take(self, request: R, tokens: int) -> None:
        request.blocks += self.pool.take(-(-tokens // self.block_size) - len(request.blocks))

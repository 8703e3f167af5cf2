"""KV blocks with identity: a pool with a least-recently-used free queue, and a prefix cache over it.

A full block is known by the chain hash of its tokens and all before them. Blocks keep their hash when
freed, and can be found until they are taken again (eviction is lazy: it happens when a block leaves the free queue).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np


class Content(Protocol):
    """What the cache needs to know of a request.

    `token_ids` of the prompt and, where known, of the outputs; any other position p has the id
    `output_base + p - prompt`.
    """

    index: int
    prompt: int
    target: int
    computed: int
    key: int
    token_ids: np.ndarray | None
    output_base: int
    blocks: list[int]
    block_keys: list[int]
    registered: int


class BlockPool:
    """Blocks 1..usable (0 is the null block): reference counts, free queue, and hash -> blocks.

    `unhashed_first`: freed blocks without a hash go to the front of the queue (vLLM 0.33), otherwise to the back.
    """

    def __init__(self, usable: int, unhashed_first: bool):
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, usable + 1))
        self.references = [0] * (usable + 1)
        self.hash_of: list[int | None] = [None] * (usable + 1)
        self.by_hash: dict[int, dict[int, None]] = {}
        self._unhashed_first = unhashed_first

    def take(self) -> int:
        """The block at the front of the queue; it loses its hash."""
        block, _ = self.queue.popitem(last=False)
        self.references[block] = 1
        key = self.hash_of[block]
        if key is not None:
            self.hash_of[block] = None
            holders = self.by_hash[key]
            del holders[block]
            if not holders:
                del self.by_hash[key]
        return block

    def find(self, key: int) -> int | None:
        """The block with this hash; of several the one registered first."""
        holders = self.by_hash.get(key)
        return next(iter(holders)) if holders else None

    def touch(self, block: int) -> None:
        """One more user of a cached block."""
        if self.references[block] == 0:
            del self.queue[block]
        self.references[block] += 1

    def name(self, block: int, key: int) -> None:
        """Give a block its hash."""
        self.hash_of[block] = key
        self.by_hash.setdefault(key, {})[block] = None

    def give_back(self, blocks: list[int]) -> None:
        """Free blocks in the order given; those still used by others stay."""
        front: list[int] = []
        for block in blocks:
            self.references[block] -= 1
            if self.references[block] == 0:
                if self._unhashed_first and self.hash_of[block] is None:
                    front.append(block)
                else:
                    self.queue[block] = None
        for block in reversed(front):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)


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
        return len(self.pool.queue)

    def lookup(self, request: R) -> int:
        """Tokens found in the cache: full blocks from the start, leaving at least one token to compute."""
        return len(self._hits(request)) * self.block_size

    def fits(self, request: R, tokens: int) -> bool:
        """Whether `tokens` of an unadmitted request would fit in what is free now."""
        return self._cost(self._hits(request), tokens) <= self.free

    def admit(self, request: R, tokens: int) -> bool:
        """Take the cached blocks and new ones for the first `tokens`; False if there are too few."""
        hits = self._hits(request)
        if self._cost(hits, tokens) > self.free:
            return False
        for block in hits:
            self.pool.touch(block)
        request.blocks = hits
        request.registered = len(hits)
        self._take(request, tokens)
        return True

    def extend(self, request: R, prior: int, tokens: int) -> bool:
        """Grow from `prior` to `tokens`; False, and nothing taken, if the blocks are not free."""
        if -(-tokens // self.block_size) - len(request.blocks) > self.free:
            return False
        self._take(request, tokens)
        return True

    def grow_decodes(self, call: int, preempt: Callable[[], R]) -> None:
        """One block for each decoding request whose class is up, in order of admission.

        When none is free the last of running is preempted; if that is the request itself, the pass ends.
        """
        members = self._by_class[call % self.block_size]
        for request in list(members.values()):
            while not self.pool.queue and request.index in members:
                preempt()
            if request.index not in members:
                return
            request.blocks.append(self.pool.take())

    def grow_quietly(self, call: int) -> bool:
        """Whether no decoding request takes or fills a block in this call."""
        return not (self._by_class[call % self.block_size] or self._by_class[(call + 1) % self.block_size])

    def filled(self, call: int) -> list[R]:
        """Decoding requests whose row in this call fills a block: they take the next one a call later."""
        return list(self._by_class[(call + 1) % self.block_size].values())

    def register(self, request: R, tokens: int) -> None:
        """Make the full blocks among the first `tokens` findable."""
        full = tokens // self.block_size
        if self.reuse and full > request.registered:
            keys = self._keys(request, full)
            for i in range(request.registered, full):
                self.pool.name(request.blocks[i], keys[i])
            request.registered = full

    def release(self, request: R, tokens: int) -> None:
        """Free all blocks, the last one first, so that a prefix outlives its continuation."""
        self.pool.give_back(request.blocks[::-1])
        request.blocks = []
        request.registered = 0

    def join(self, request: R) -> None:
        """The request decodes from the next call on."""
        self._by_class[(1 - request.key) % self.block_size][request.index] = request

    def leave(self, request: R) -> None:
        """It does no longer."""
        del self._by_class[(1 - request.key) % self.block_size][request.index]

    def _take(self, request: R, tokens: int) -> None:
        for _ in range(-(-tokens // self.block_size) - len(request.blocks)):
            request.blocks.append(self.pool.take())
        self.register(request, min(tokens, request.target))

    def _cost(self, hits: list[int], tokens: int) -> int:
        """New blocks, and cached ones that would leave the free queue."""
        idle = sum(1 for block in hits if self.pool.references[block] == 0)
        return -(-tokens // self.block_size) - len(hits) + idle

    def _hits(self, request: R) -> list[int]:
        hits: list[int] = []
        if not self.reuse:
            return hits
        for key in self._keys(request, (request.target - 1) // self.block_size):
            block = self.pool.find(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def _keys(self, request: R, count: int) -> list[int]:
        """Chain hashes of the first `count` full blocks, made when first asked for."""
        keys = request.block_keys
        size = self.block_size
        while len(keys) < count:
            start = len(keys) * size
            keys.append(hash((keys[-1] if keys else 0, self._ids(request, start, start + size).tobytes())))
        return keys[:count]

    def _ids(self, request: R, start: int, stop: int) -> np.ndarray:
        """Token ids of the positions [start, stop); positions beyond the known content are unlike any other's."""
        known = request.token_ids
        if known is not None and stop <= len(known):
            return known[start:stop]
        own = np.arange(start, stop, dtype=np.int64) + (request.output_base - request.prompt)
        if known is not None and start < len(known):
            own[: len(known) - start] = known[start:]
        return own

"""KV blocks of one replica, two managers with one behaviour: counted, and with identity (`sim.memory.prefix`).

A scheduler asks them the same questions. Decoding requests are grouped by the class `(1 - key) mod block_size` of
the calls at which they take a new block (see `sim.scheduler.vllm`), so a call touches only one class.
"""

from collections.abc import Callable, Sequence
from typing import Protocol


class Holder(Protocol):
    """What a manager needs to know of a request."""

    index: int
    prompt: int
    target: int
    computed: int
    key: int


class CountedBlocks[R: Holder]:
    """Blocks as numbers: enough where no content is shared."""

    reuse = False

    def __init__(self, usable: int, block_size: int):
        self.usable = usable
        self.free = usable
        self.block_size = block_size
        self._by_class = [0] * block_size

    def lookup(self, request: R) -> Sequence[int]:
        """Blocks of the request found in the cache: none."""
        return ()

    def admit(self, request: R, hits: Sequence[int], tokens: int, room: int, findable: bool = True) -> bool:
        """Take blocks for the first `tokens` of a request; False, and nothing taken, if `room` tokens do not fit."""
        if -(-room // self.block_size) > self.free:
            return False
        self.free -= -(-tokens // self.block_size)
        return True

    def extend(self, request: R, prior: int, tokens: int) -> bool:
        """Grow from `prior` to `tokens`; False, and nothing taken, if the blocks are not free."""
        new = -(-tokens // self.block_size) - -(-prior // self.block_size)
        if new > self.free:
            return False
        self.free -= new
        return True

    def grow_decodes(self, call: int, preempt: Callable[[], R]) -> None:
        """Take this call's blocks for the decoding requests, after preempting as many as it needs."""
        position = call % self.block_size
        while self._by_class[position] > self.free:
            preempt()
        self.free -= self._by_class[position]

    def is_quiet(self, call: int, sought: bool) -> bool:
        """Whether this call's blocks are free; who looks for prefixes finds none either way."""
        return self._by_class[call % self.block_size] <= self.free

    def grow_quietly(self, call: int, sought: bool) -> bool:
        """Take this call's blocks if they are free; False, and nothing taken, if not."""
        demand = self._by_class[call % self.block_size]
        if demand > self.free:
            return False
        self.free -= demand
        return True

    def filled(self, call: int) -> list[R]:
        """Decoding requests whose row in this call fills a block; of no interest here."""
        return []

    def fill_decodes(self, call: int) -> None:
        """Make the blocks findable that this call fills: nothing to find here."""

    def register(self, request: R, tokens: int) -> None:
        """Make the full blocks among the first `tokens` findable: nothing to find here."""

    def forget(self) -> None:
        """Nothing is findable any more: nothing ever was."""

    def release(self, request: R, tokens: int) -> None:
        """Free all blocks of a request that holds `tokens`."""
        self.free += -(-tokens // self.block_size)

    def join(self, request: R) -> None:
        """The request decodes from the next call on."""
        self._by_class[(1 - request.key) % self.block_size] += 1

    def leave(self, request: R) -> None:
        """It does no longer."""
        self._by_class[(1 - request.key) % self.block_size] -= 1

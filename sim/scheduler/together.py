"""Requests that decode one token each in every call: what their rows come to, without a look at each.

At tick t (calls so far) such a request has `key + t` tokens in the cache, so that sums over all of them move by closed
form. What calls have done for a request is written into it when it leaves.
"""

from heapq import heappop, heappush
from typing import Protocol

from sim.scheduler.base import Batch


class Decoding(Protocol):
    """A request that decodes: `computed` tokens in the cache, `emitted` of its `outputs`, `blocks` held."""

    index: int
    outputs: int
    computed: int
    emitted: int
    blocks: int
    last_batch: int


class Together[R: Decoding]:
    """The rows of every call. Each holds the blocks of what it has computed, or all that it will ever need."""

    def __init__(self, block_size: int):
        self._block_size = block_size
        self._clear()

    def _clear(self) -> None:
        self._members: dict[int, tuple[R, int, int]] = {}  # with the tick at which it came, and its place
        self._tick = self._places = self._key_sum = self._key_squares = 0
        self._short_by_class = [0] * self._block_size
        self._ends: dict[int, list[R]] = {}
        self._longest: list[tuple[int, int, int]] = []
        self._follows: dict[int, int] = {}
        self._last: Batch | None = None
        self._number = -1

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: R) -> bool:
        return request.index in self._members

    def takes(self, request: R) -> bool:
        """Whether it has tokens to emit, and blocks as they are wanted here."""
        tight = request.blocks == -(-request.computed // self._block_size)
        return request.emitted < request.outputs and (tight or self._has_all(request))

    def _has_all(self, request: R) -> bool:
        return request.blocks * self._block_size >= request.computed + request.outputs - request.emitted

    def join(self, request: R) -> None:
        """It has a row in each call from now on, behind those of the others."""
        tick = self._tick
        key = request.computed - tick
        self._places += 1
        self._members[request.index] = (request, tick, self._places)
        self._key_sum += key
        self._key_squares += key * key
        if not self._has_all(request):
            self._short_by_class[key % self._block_size] += 1
        self._ends.setdefault(tick + request.outputs - request.emitted, []).append(request)
        heappush(self._longest, (-key, self._places, request.index))
        self._follows[request.last_batch] = self._follows.get(request.last_batch, 0) + 1
        self._last = None

    def leave(self, request: R) -> None:
        """It has no more rows; what it got is written into it."""
        _, came, _ = self._members.pop(request.index)
        key = request.computed - came
        self._key_sum -= key
        self._key_squares -= key * key
        if not self._has_all(request):
            self._short_by_class[key % self._block_size] -= 1
        end = came + request.outputs - request.emitted
        if end in self._ends:
            self._ends[end].remove(request)
            if not self._ends[end]:
                del self._ends[end]
        self._write(request, came)
        self._follows[request.last_batch] -= 1
        self._last = None

    def settle(self) -> None:
        """All leave."""
        for request, came, _ in self._members.values():
            self._write(request, came)
        self._clear()

    def _write(self, request: R, came: int) -> None:
        calls = self._tick - came
        if calls:
            request.computed += calls
            request.emitted += calls
            request.last_batch = self._number
            request.blocks = max(request.blocks, -(-request.computed // self._block_size))

    @property
    def need(self) -> int:
        """Blocks that the next call takes."""
        return self._short_by_class[-self._tick % self._block_size]

    def repeats(self, batch: Batch) -> bool:
        """Whether the next call is that of `batch` again: nobody came or left since, and nobody gets a last token."""
        return batch is self._last and self._tick + 1 not in self._ends

    def decode(self, batch: Batch) -> list[R]:
        """One row each, the statistics of `batch`; returns who got a last token, in their order: they have left."""
        self._tick = tick = self._tick + 1
        n = len(self._members)
        longest = self._longest
        while longest[0][2] not in self._members or self._members[longest[0][2]][2] != longest[0][1]:
            heappop(longest)
        batch.decodes = batch.emitting = batch.running = n
        batch.decode_sum = self._key_sum + n * tick
        batch.decode_sumsq = self._key_squares + tick * (2 * self._key_sum + n * tick)
        batch.decode_max = tick - longest[0][0]
        batch.follows = {number: rows for number, rows in self._follows.items() if rows}
        self._number = batch.number
        self._follows = {batch.number: n}
        self._last = batch
        ending = self._ends.pop(tick, [])
        for request in ending:
            self.leave(request)
        return ending

    def repeat(self, batch: Batch, number: int) -> None:
        """The call of `batch` again, as number `number`: its statistics move on by one call."""
        self._tick += 1
        n = batch.decodes
        batch.decode_sumsq += 2 * batch.decode_sum + n
        batch.decode_sum += n
        batch.decode_max += 1
        batch.follows = {batch.number: n}
        batch.number = self._number = number
        self._follows = {number: n}

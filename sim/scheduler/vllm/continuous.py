"""vLLM V1, first come first served: the running-then-waiting pass with chunked prefill and recompute preemption.

The work per call does not grow with the batch, because a decoding request is fully described by two numbers:

- its `key` = target - s0, s0 being the call in which its prefill completed: at call s it reads a context of
  `key + s` tokens, so the sums over a batch move by closed form;
- its class `(1 - key) mod block_size`: it takes a new block exactly at the calls s congruent to it, so a call
  touches the blocks of one class only.

Two facts keep the rest small. At most one request is partly prefilled, and it is the last of running: an
admission is cut only when the budget is used up, which ends the pass. And victims come from the end of
running while rows are served from its front, so a row once served is never a victim in the same call.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from sim.memory.blocks import CountedBlocks
from sim.memory.hits import HitStats
from sim.memory.prefix import PrefixBlocks
from sim.scheduler.base import Batch, Request


class DecodingRequest(Request):
    """A request as two numbers.

    `target` tokens must be in the cache before the next token can be emitted: the prompt and, after a preemption,
    what had been emitted by then. `left` tokens are still to be emitted, counted when the request (re)entered the
    waiting queue.
    """

    __slots__ = ("target", "left", "key", "last_step", "blocks", "block_keys", "registered")

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.target = prompt
        self.left = outputs
        self.key = 0
        self.last_step = -1
        self.blocks: list[int] = []
        self.block_keys: list[int] = []
        self.registered = 0


class ContinuousBatching:
    """One replica's scheduler.

    **Arguments:**

    - `blocks`: counts or names the KV blocks.
    - `max_num_seqs` seats, `max_num_batched_tokens` token budget (>= seats), `max_model_len` tokens.
    - `reserve_full_input`: admit only if the whole input fits in the free blocks now (vLLM 0.19 on).
    - `chunked_prefill`: cut a prompt at the budget; otherwise a prompt that exceeds the rest of the budget ends the
      pass, or with `skip_oversized` (vLLM 0.10) is passed over.
    - `register_on_output`: blocks filled by decoding become findable with their output (async scheduling), not when
      scheduled.
    - `count_refused`: `hit_stats` has every look-up, also those of requests that were then not admitted and are tried
      again in the next call; otherwise (vLLM 0.28 on) only those of admitted requests.
    """

    request_type = DecodingRequest

    def __init__(
        self,
        blocks: CountedBlocks[DecodingRequest] | PrefixBlocks[DecodingRequest],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        reserve_full_input: bool = False,
        chunked_prefill: bool = True,
        skip_oversized: bool = False,
        register_on_output: bool = False,
        count_refused: bool = True,
    ):
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.budget = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.reserve_full_input = reserve_full_input
        self.chunked_prefill = chunked_prefill
        self.skip_oversized = skip_oversized
        self.register_on_output = register_on_output
        self.count_refused = count_refused
        self.hit_stats = HitStats()
        self.waiting: deque[DecodingRequest] = deque()
        self.running: dict[int, DecodingRequest] = {}
        self._partial: DecodingRequest | None = None
        self._call = 0
        self._decodes = 0
        self._key_sum = 0
        self._key_squares = 0
        self._ends: dict[int, list[DecodingRequest]] = {}
        self._longest: list[tuple[int, int, DecodingRequest]] = []
        self._joined = 0
        self._batch: Batch[DecodingRequest] = Batch()
        self._repeatable: Batch[DecodingRequest] | None = None
        self._refused: list[tuple[int, int, bool]] = []
        self._sought = False
        self._reorders = False
        self._any_aborted = False
        self._late = register_on_output and blocks.reuse
        self._filled: deque[list[tuple[DecodingRequest, int]]] = deque()
        """Of each call whose output is under way, the requests whose row fills a block, and their tokens."""

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.waiting) + len(self.running)

    @property
    def free_blocks(self) -> int:
        """KV blocks nobody uses."""
        return self.blocks.free

    @property
    def usable_blocks(self) -> int:
        """All KV blocks but the null block."""
        return self.blocks.usable

    def add(self, request: DecodingRequest) -> None:
        """Put a new request at the end of the waiting queue."""
        self.waiting.append(request)

    def abort(self, request: DecodingRequest) -> None:
        """Take an unfinished request out and free its blocks; what is under way for it is thrown away."""
        self._repeatable = None
        self._any_aborted = True
        if self.running.pop(request.index, None) is None:
            self.waiting.remove(request)
        elif request is self._partial:
            self._partial = None
            self.blocks.release(request, request.computed)
        else:
            self.blocks.release(request, self._stop_decoding(request, self._call))
        request.left = 0

    def hold(self, request: DecodingRequest) -> list[int]:
        """Keep what is in the cache of a request that has ended from being taken, until `let_go`."""
        self._repeatable = None
        assert isinstance(self.blocks, PrefixBlocks)
        return self.blocks.hold(request)

    def let_go(self, held: list[int]) -> None:
        """Keep it no longer; the head of the queue may fit now."""
        self._repeatable = None
        assert isinstance(self.blocks, PrefixBlocks)
        self.blocks.let_go(held)

    def schedule(self) -> Batch[DecodingRequest]:
        """Decide the next batch: running requests first, then the head of the queue."""
        batch: Batch[DecodingRequest] = Batch()
        self._batch = batch
        if self._refused:
            self._refused = []
        self._sought = self._reorders = False
        self._call = call = self._call + 1
        if self._decodes:
            self.blocks.grow_decodes(call, self._preempt_last)
            self._count_decodes(batch)
        self._fill_blocks(call)
        budget = self.budget - self._decodes
        if self._partial is not None and budget > 0:
            budget -= self._continue_partial(batch, budget)
        if self._queued and not batch.preempted:
            self._admit(batch, budget)
        batch.emitting = batch.decodes + len(batch.emitted) - batch.begun
        ending = self._ends.pop(call, None)
        if ending:
            for request in ending:
                self._leave_decoding(request)
            batch.finishing = ending
        if batch.emitted:
            for request in batch.emitted:
                self._join_decoding(request)
        self._repeatable = batch if self._partial is None and not self._reorders else None
        batch.running = len(self.running)
        batch.waiting = self._queued
        batch.free_blocks = self.blocks.free
        return batch

    def repeat(self, batch: Batch[DecodingRequest]) -> bool:
        """Make the next call if it only decodes the rows of `batch` again: nobody ends, no block is short.

        A blocked head of the queue stays blocked: seats and budget are as before, and blocks only get fewer. It is
        looked up in vain once more, and finds what it found before, because then no block may change its content.
        """
        call, blocks = self._call + 1, self.blocks
        if batch is not self._repeatable or call in self._ends:
            return False
        if self._late:
            if (self._sought and any(self._filled)) or not blocks.is_quiet(call, self._sought):
                return False
            self._register(self._filled.popleft())
        if not blocks.grow_quietly(call, self._sought):
            return False
        self._call = call
        self._fill_blocks(call)
        for refused in self._refused:
            self.hit_stats.count(*refused)
        rows = batch.decodes
        batch.decode_sumsq += 2 * batch.decode_sum + rows
        batch.decode_sum += rows
        batch.decode_max += 1
        batch.free_blocks = self.blocks.free
        return True

    def complete(self, batch: Batch[DecodingRequest]) -> Sequence[DecodingRequest]:
        """Free the seats and blocks of the requests that got their last token from `batch`."""
        if self._late:
            self._register(self._filled.popleft())
        if self._any_aborted:
            batch.emitted = [request for request in batch.emitted if request.left]
            batch.finishing = [request for request in batch.finishing if request.left]
        for request in batch.finishing:
            if self.running.pop(request.index, None) is None:
                # preempted while its last token was under way: it ends in the waiting queue, without blocks
                self.waiting.remove(request)
            else:
                self._let_go(request, request.target + request.left - 1)
        return batch.finishing

    @property
    def _queued(self) -> int:
        """Requests without a seat."""
        return len(self.waiting)

    def _let_go(self, request: DecodingRequest, tokens: int) -> None:
        """A request that holds `tokens` has ended."""
        self.blocks.release(request, tokens)

    def _start_load(self, request: DecodingRequest, hits: Sequence[int]) -> bool | None:
        """Whether the request's KV begins to come from elsewhere; None: it is computed here."""
        return None

    def forget(self) -> None:
        """The cache is empty; nobody may be unfinished."""
        self.blocks.forget()

    def _count_decodes(self, batch: Batch[DecodingRequest]) -> None:
        n, call = self._decodes, self._call
        if n == 0:
            return
        batch.decodes = n
        batch.decode_sum = self._key_sum + n * call
        batch.decode_sumsq = self._key_squares + call * (2 * self._key_sum + n * call)
        longest = self._longest
        while longest[0][2].last_step < call or longest[0][2].key != -longest[0][0]:
            heappop(longest)
        batch.decode_max = call - longest[0][0]

    def _fill_blocks(self, call: int) -> None:
        """The blocks that decode rows fill in this call become findable now, or with the output."""
        if self._late:
            self._filled.append([(request, request.key + call) for request in self.blocks.filled(call)])
        elif self._decodes:
            self.blocks.fill_decodes(call)

    def _register(self, filled: list[tuple[DecodingRequest, int]]) -> None:
        for request, tokens in filled:
            if request.index in self.running:
                self.blocks.register(request, tokens)

    def _join_decoding(self, request: DecodingRequest) -> None:
        """Its prefill completes in this call: from the next one on it has a row per call, until `last_step`."""
        request.key = key = request.target - self._call
        request.last_step = last = self._call + request.left - 1
        if request.left == 1:
            self._batch.finishing = [*self._batch.finishing, request]
            return
        self._decodes += 1
        self._key_sum += key
        self._key_squares += key * key
        self.blocks.join(request)
        self._joined += 1
        heappush(self._longest, (-key, self._joined, request))
        ends = self._ends.get(last)
        if ends is None:
            self._ends[last] = [request]
        else:
            ends.append(request)

    def _leave_decoding(self, request: DecodingRequest) -> None:
        key = request.key
        self._decodes -= 1
        self._key_sum -= key
        self._key_squares -= key * key
        self.blocks.leave(request)

    def _stop_decoding(self, request: DecodingRequest, issued: int) -> int:
        """It has no row after call `issued`, if it had any still to come; returns the tokens it holds."""
        if request.last_step > issued:
            self._ends[request.last_step].remove(request)
            self._leave_decoding(request)
        else:
            issued = request.last_step
        request.last_step = -1
        return request.key + issued

    def _preempt_last(self) -> DecodingRequest:
        """The most recently admitted request loses its blocks and goes to the front of the queue."""
        _, request = self.running.popitem()
        if request is self._partial:
            self._partial = None
            held = request.computed
        else:
            # it emitted one token in each call since its prefill; a token still under way lands before any resume
            held = self._stop_decoding(request, self._call - 1)
            emitted = held + 1 - request.target
            if emitted < request.left:
                request.target += emitted
                request.left -= emitted
            self._batch.interrupted = [*self._batch.interrupted, request]
        self.blocks.release(request, held)
        request.computed = 0
        request.preemptions += 1
        self.waiting.appendleft(request)
        self._batch.preempted = [*self._batch.preempted, request]
        return request

    def _continue_partial(self, batch: Batch[DecodingRequest], budget: int) -> int:
        """The next chunk of the partly prefilled request, or it preempts itself; returns the tokens scheduled."""
        request = self._partial
        assert request is not None
        prior = request.computed
        chunk = min(request.target - prior, budget)
        if not self.blocks.extend(request, prior, prior + chunk):
            self._preempt_last()
            return 0
        request.computed = prior + chunk
        batch.add_chunk(prior, chunk)
        if request.computed == request.target:
            self._partial = None
            batch.emitted = [request]
        return chunk

    def _admit(self, batch: Batch[DecodingRequest], budget: int) -> None:
        """Take the head of the queue while seats, budget and blocks last; nobody passes a blocked head."""
        waiting, running, blocks = self.waiting, self.running, self.blocks
        admitted = list(batch.admitted)
        emitted = list(batch.emitted)
        passed_over: list[DecodingRequest] = []
        while waiting and budget > 0 and len(running) < self.max_num_seqs:
            request = waiting[0]
            hits = blocks.lookup(request)
            cached = len(hits) * blocks.block_size
            chunk = request.target - cached
            loads = self._start_load(request, hits)
            if loads is not None:
                if not loads:
                    self._refuse(request, cached)
                    break
                waiting.popleft()
                continue
            if chunk > budget:
                if not self.chunked_prefill:
                    self._refuse(request, cached)
                    if not self.skip_oversized:
                        break
                    passed_over.append(waiting.popleft())
                    continue
                chunk = budget
            end = cached + chunk
            room = min(request.target, self.max_model_len) if self.reserve_full_input else end
            if not blocks.admit(request, hits, end, room):
                self._refuse(request, cached)
                break
            if blocks.reuse:
                self.hit_stats.count(request.target, cached, request.preemptions > 0)
            waiting.popleft()
            running[request.index] = request
            request.computed = end
            if request.preemptions == 0:
                request.cached = cached
            budget -= chunk
            admitted.append(request)
            batch.add_chunk(cached, chunk)
            if request.computed == request.target:
                emitted.append(request)
            else:
                self._partial = request
        if admitted:
            batch.admitted, batch.emitted = admitted, emitted
        waiting.extendleft(passed_over)  # vLLM 0.10 puts them back in reversed order
        self._reorders = len(passed_over) > 1

    def _refuse(self, request: DecodingRequest, cached: int) -> None:
        """Count the look-up of a request that is not admitted, where the engine does."""
        self._sought = self.blocks.reuse
        if self._sought and self.count_refused:
            refused = (request.target, cached, request.preemptions > 0)
            self._refused.append(refused)
            self.hit_stats.count(*refused)

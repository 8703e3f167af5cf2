"""A scheduler to build others from: decides one iteration row by row, blocks are counted.

Each call walks the unfinished requests in an order. One that runs gets its next tokens (the next chunk of its prompt,
or one token); one that waits is started if it may be. Where blocks are short, others give up theirs and are computed
again later (recompute preemption). A policy is a subclass that answers some of seven questions:

| method | question | unless overridden |
|---|---|---|
| `rank(request)` | which of two waiting requests is first (the smaller)? | the earlier arrival |
| `candidates()` | in which order are requests looked at? | the running ones, as they started, then the waiting |
| `tokens_for(request, budget)` | how many tokens does it get now? | all it has left, cut at the budget |
| `admits(request, tokens)` | may this waiting request start now? | if a seat is free and this call preempted nobody |
| `held_tokens(request, tokens)` | for how many tokens does it take blocks when it starts? | those it computes now |
| `victims(request)` | who gives up blocks for it, in order? | the last to start, down to itself; nobody for a start |
| `steady()` | would those that wait be looked at in vain? | it may not be so: rows are walked in every call |

Lengths are known to the simulator, so a row's effect is booked when it is issued, and the next batch may be decided
before this one has completed. Where a policy says that nothing but decoding goes on (`steady`), calls are decided for
all rows at once (`sim.scheduler.together`). A policy whose module names `enable_prefix_caching` in `SUPPORTS` finds
prefixes again (`sim.scheduler.tables`): a request that waits is then looked at with what is in the cache as `computed`.
Not modelled here: speculation, stops before a request's length.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.memory.hits import HitStats
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch, Request, Row
from sim.scheduler.tables import BlockTables
from sim.scheduler.together import Together


class IterationRequest(Request):
    """A request with what the walk keeps about it.

    `emitted` tokens are issued. `target` tokens have to be computed before the next can be emitted after it (re)started
    (the prompt and, after a preemption, what had been emitted by then); `blocks` are held; `order` is that of arrival;
    `aborted` requests are gone, though a row of theirs may be under way. It has had a row in every batch from number
    `since` to `last_batch`. `table`, `registered`, `block_keys`: its blocks where they have an identity, `found` those
    that a start would find in the cache.
    """

    __slots__ = (
        "emitted", "target", "blocks", "order", "aborted", "since", "table", "registered", "block_keys", "found",
    )  # fmt: skip

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.emitted = 0
        self.target = prompt
        self.blocks = 0
        self.order = -1
        self.aborted = False
        self.since = -1
        self.table: list[int] = []
        self.registered = 0
        self.block_keys: list[int] = []
        self.found: Sequence[int] = ()

    @property
    def known(self) -> int:
        """Tokens known: the prompt and what was emitted."""
        return self.prompt + self.emitted

    @property
    def left(self) -> int:
        """Tokens still to be emitted."""
        return self.outputs - self.emitted

    @property
    def decoding(self) -> bool:
        """Whether all it started with is computed, so that each row is one token."""
        return self.computed >= self.target


class IterationScheduler[R: IterationRequest]:
    """One replica's scheduler: at most `max_num_seqs` rows and `max_num_batched_tokens` tokens a batch.

    `running` hold blocks, in the order in which they started; `waiting` is sorted by `rank`. `batch` and `rows` are
    those of the call under way (or of the last). `in_vain`: the walk looked at those that wait and started nobody, and
    nothing has happened since that could matter to them; a policy that is ever `steady` says so in its walk.
    """

    request_type: type[R] = IterationRequest  # type: ignore[assignment]

    def __init__(self, settings: EngineSettings, cache: CacheShape):
        self.max_num_seqs = settings.max_num_seqs
        self.budget = settings.max_num_batched_tokens
        self.max_model_len = settings.max_model_len
        self.block_size = settings.block_size
        self.chunked_prefill = settings.chunked_prefill
        # Where groups of layers share a pool, each is counted to hold the whole context.
        self.usable_blocks = cache.usable_blocks // max(1, len(cache.groups))
        self.free_blocks = self.usable_blocks
        self.tables: BlockTables[R] | None = None
        if settings.prefix_caching and cache.named:
            self.tables = BlockTables(self.usable_blocks, self.block_size, settings.profile.cache.unhashed_blocks_first)
        self.waiting: list[R] = []
        self.running: dict[int, R] = {}
        self.hit_stats = HitStats()
        self.batch: Batch[R] = Batch()
        self.rows: list[Row[R]] = []
        self.call = -1
        self._ahead = settings.async_scheduling
        self._completed = -1
        self._arrivals = 0
        self._served: set[int] = set()
        self._gone: set[int] = set()
        self._together: Together[R] = Together(settings.block_size)
        self._unwalked: deque[Batch[R]] = deque()
        self._under_way = 0
        self._last = -1
        self._stages = settings.pipeline_parallel
        self.in_vain = False

    # What a policy may answer differently.

    def rank(self, request: R) -> tuple[float, ...]:
        """Sorts the waiting requests: the smallest is first. It must not change while a request waits."""
        return (request.order,)

    def candidates(self) -> Iterable[R]:
        """The requests to look at, in order. After a waiting one that cannot start, no other starts in this call."""
        return [*self.running.values(), *self.waiting[: self.max_num_seqs]]

    def tokens_for(self, request: R, budget: int) -> int:
        """Tokens of the request's row in this call, at most `budget` and what it has left to compute; 0 for no row."""
        rest = request.known - request.computed
        if rest <= budget:
            return rest
        return budget if self.chunked_prefill else 0

    def admits(self, request: R, tokens: int) -> bool:
        """Whether a waiting request may start with `tokens` now, as far as blocks do not decide it."""
        return not self.batch.preempted and len(self.running) < self.max_num_seqs

    def held_tokens(self, request: R, tokens: int) -> int:
        """Tokens for which blocks are taken when a request starts with `tokens`."""
        return request.computed + tokens

    def victims(self, request: R) -> Iterable[R]:
        """Who gives up blocks so that `request` can go on, in order; those with a row are left out by the walk."""
        if request.index not in self.running:
            return
        for other in reversed(self.running.values()):
            yield other
            if other is request:
                return

    def steady(self) -> bool:
        """Whether a call that follows would start nobody, and give each that decodes its row, as far as blocks last.

        Asked before a call, and after one in which all that run decoded. Then rows are not looked at until somebody
        starts or blocks run short; `candidates` and the others are not asked, and the batch lists no rows.
        """
        return False

    def measure(self, batch: Batch[R], rows: Sequence[Row[R]]) -> None:
        """Count the rows into the batch's statistics."""
        for row in rows:
            if row.computed < row.request.target:
                batch.add_chunk(row.computed, row.tokens)
            else:
                batch.add_decode(row.computed + 1)

    # The interface of a scheduler.

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.waiting) + len(self.running)

    def add(self, request: R) -> None:
        """Put a new request in the waiting queue, at its rank."""
        request.order = self._arrivals
        self._arrivals += 1
        self.enqueue(request)

    def abort(self, request: R) -> None:
        """Take an unfinished request out and free its blocks; what is under way for it is thrown away."""
        request.aborted = True
        if request in self._together:
            self._together.leave(request)
        for batch in self._unwalked:
            if request.since <= batch.number <= request.last_batch:
                batch.dropped = [*batch.dropped, request]
        if request.index in self.running:
            self.leave(request)
        else:
            self.dequeue(request)

    def schedule(self) -> Batch[R]:
        """Decide the next batch."""
        self.call += 1
        self._under_way += 1
        if (self._ahead or self._completed >= self._last) and self._goes_on:
            return self._decode()
        self._together.settle()
        batch = self._walk()
        counted = self.tables is None
        if counted and batch.emitting and not batch.prefill_tokens and self._stages == 1 and self.steady():
            self._gather(batch)
        self._last = batch.number
        return batch

    def _walk(self) -> Batch[R]:
        batch: Batch[R] = Batch()
        self.batch = batch
        batch.number = self.call
        batch.follows = {}
        rows: list[Row[R]] = []
        self.rows = rows
        self._served.clear()
        self._gone.clear()
        budget = self.budget
        starts_ended = False
        for request in self.candidates():
            if budget <= 0 or len(rows) >= self.max_num_seqs:
                break
            if request.emitted == request.outputs or request.index in self._gone or self._awaits_token(request):
                continue
            runs = request.index in self.running
            if not runs:
                if starts_ended:
                    continue
                if self.tables is not None:
                    self._look_up(request, self.tables)
            tokens = self.tokens_for(request, budget)
            if not isinstance(tokens, int) or tokens > budget or tokens > request.known - request.computed:
                raise ValueError(
                    f"engine.scheduler: tokens_for must return a whole number of at most the budget and what is left, "
                    f"here {min(budget, request.known - request.computed)}, got {tokens!r} for {request}."
                )
            kind = "c"
            if runs:
                if tokens <= 0 or not self._take(request, request.computed + tokens):
                    continue
            elif tokens <= 0 or not self.admits(request, tokens) or not self._start(request, tokens):
                starts_ended = True
                if self.tables is not None:
                    request.computed, request.found = 0, ()
                continue
            else:
                kind = "r" if request.preemptions else "n"
            rows.append(self._issue(request, tokens, kind))
            self._served.add(request.index)
            budget -= tokens
        self.measure(batch, rows)
        batch.rows = rows
        batch.emitting = sum(row.emits for row in rows)
        batch.running = len(rows)
        batch.waiting = self.unfinished - len(rows)
        batch.free_blocks = self.free_blocks
        return batch

    def repeat(self, batch: Batch[R]) -> bool:
        """Make the next call if all rows of `batch` decode again and nobody ends."""
        if batch.opened or not self._together.repeats(batch) or not self._goes_on:
            return False
        if len(self._unwalked) == self._under_way:
            self._completed = self._unwalked.popleft().number
        self._unwalked.append(batch)
        self.call += 1
        self.free_blocks -= self._together.need
        self._together.repeat(batch, self.call)
        batch.free_blocks = self.free_blocks
        self._last = self.call
        return True

    def complete(self, batch: Batch[R]) -> Sequence[R]:
        """Free the seats and blocks of the requests that got their last token from `batch`."""
        self._completed = batch.number
        self._under_way -= 1
        if self._unwalked and self._unwalked[0] is batch:
            self._unwalked.popleft()
        else:
            batch.dropped = [row.request for row in batch.rows if row.emits and row.request.aborted]
        ended = [request for request in batch.finishing if not request.aborted]
        if batch.dropped:
            batch.emitted = [request for request in batch.emitted if not request.aborted]
        for request in ended:
            self.leave(request)
        return ended

    # Calls without a walk.

    @property
    def goes_together(self) -> bool:
        """Whether all that run decode, and rows are not looked at."""
        return len(self._together) > 0

    def enter(self, request: R) -> None:
        """A request whose prompt was computed elsewhere, and whose KV is here, runs from the next call on."""
        self.running[request.index] = request
        request.since = self.call + 1
        if self.goes_together and request.left:
            if self._together.takes(request):
                self._together.join(request)
            else:
                self._together.settle()

    @property
    def _goes_on(self) -> bool:
        together = self._together
        return (
            0 < len(together) <= min(self.max_num_seqs, self.budget)
            and together.need <= self.free_blocks
            and self.steady()
        )

    def _gather(self, batch: Batch[R]) -> None:
        """From the next call on all that run go together, if each had a row in `batch`."""
        going = [request for request in self.running.values() if request.emitted < request.outputs]
        if all(request.last_batch == batch.number and self._together.takes(request) for request in going):
            for row in batch.rows:
                if row.request.emitted < row.request.outputs:
                    self._together.join(row.request)

    def _decode(self) -> Batch[R]:
        batch: Batch[R] = Batch()
        batch.number = self.call
        self.free_blocks -= self._together.need
        batch.finishing = self._together.decode(batch)
        self.in_vain = self.in_vain and not batch.finishing
        batch.waiting = self.unfinished - batch.running
        batch.free_blocks = self.free_blocks
        self._unwalked.append(batch)
        self._last = batch.number
        return batch

    # Steps of the walk.

    def leave(self, request: R) -> None:
        """A running request has got its last token, or was aborted: its place is free."""
        self.release(request)

    def enqueue(self, request: R) -> None:
        """Put a request that holds nothing among the waiting."""
        self.in_vain = False
        insort(self.waiting, request, key=self.rank)

    def dequeue(self, request: R) -> None:
        """Take a request out of the waiting."""
        self.waiting.remove(request)

    def release(self, request: R) -> None:
        """The request stops running: its blocks are free."""
        self.in_vain = False
        del self.running[request.index]
        if self.tables is None:
            self.free_blocks += request.blocks
        else:
            self.tables.give_back(request)
            self.free_blocks = self.tables.free
        request.blocks = 0

    def evict(self, request: R) -> None:
        """Preempt a running request: it loses its blocks, waits, and is not started again in this call."""
        self._gone.add(request.index)
        self.batch.preempted = [*self.batch.preempted, request]
        if request.decoding:
            self.batch.interrupted = [*self.batch.interrupted, request]
        self.release(request)
        request.computed = 0
        request.target = request.known
        request.preemptions += 1
        self.enqueue(request)

    def forget(self) -> None:
        """The cache is empty; nobody may be unfinished."""
        if self.tables is not None:
            self.tables.forget()

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def may_lose(self, request: R) -> bool:
        """Whether the request can be preempted now: no row in this call, and more to come than what is issued."""
        return request.index not in self._served and request.emitted < request.outputs

    def _awaits_token(self, request: R) -> bool:
        """Whether its last token is still under way and the engine does not schedule ahead of it (pipeline stages)."""
        return not self._ahead and request.last_batch > self._completed

    def _start(self, request: R, tokens: int) -> bool:
        held = min(self.held_tokens(request, tokens), self.usable_blocks * self.block_size)
        if not self._take(request, max(held, request.computed + tokens)):
            return False
        self.dequeue(request)
        self.running[request.index] = request
        self.batch.admitted = [*self.batch.admitted, request]
        if self.tables is not None:
            request.found = ()
            self.hit_stats.count(request.known, request.computed, request.preemptions > 0)
            if not request.preemptions:
                request.cached = request.computed
        return True

    def _look_up(self, request: R, tables: BlockTables[R]) -> None:
        """A waiting request as it would start: with what is in the cache."""
        request.found = tables.find(request)
        request.computed = len(request.found) * self.block_size

    def _take(self, request: R, tokens: int) -> bool:
        """Take the blocks missing for the first `tokens`; False if they cannot be had, or the request lost its own."""
        found, tables = request.found, self.tables
        missing = self.blocks_of(tokens) - request.blocks - len(found)
        if missing <= 0 and not found:
            return True
        needed = missing if tables is None else missing + tables.idle(found)
        free, losing = self.free_blocks, []
        if free < needed:
            for other in self.victims(request):
                if self.may_lose(other):
                    losing.append(other)
                    free = free + other.blocks if tables is None else self.free_blocks + tables.freed(losing, found)
                    if other is request or free >= needed:
                        break
        if free < needed and request not in losing:
            return False
        for other in losing:
            self.evict(other)
        if request in losing:
            return False
        if tables is None:
            self.free_blocks -= missing
        else:
            tables.take(request, found, missing)
            self.free_blocks = tables.free
        request.blocks += len(found) + missing
        return True

    def _issue(self, request: R, tokens: int, kind: str) -> Row[R]:
        """Book one row: what it computes, and the token it emits if it reaches the end of what is known."""
        batch, follows = self.batch, self.batch.follows
        assert follows is not None
        row = Row(request, tokens, request.computed, kind)
        prefilling = request.computed < request.target
        request.computed += tokens
        if self.tables is not None:
            self.tables.register(request, request.computed)
        if request.computed == request.known:
            row.emits = True
            request.emitted += 1
            if request.last_batch >= 0:
                follows[request.last_batch] = follows.get(request.last_batch, 0) + 1
            if request.last_batch != self._last:
                request.since = batch.number
            request.last_batch = batch.number
            if prefilling:
                batch.emitted = [*batch.emitted, request]
            if request.emitted == request.outputs:
                batch.finishing = [*batch.finishing, request]
        return row

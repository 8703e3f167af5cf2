"""What SGLang's scheduler holds: the queue, the pool, and the life of a request in the running batch."""

from sim.deployment.rules import SglangRules
from sim.memory.hits import HitStats
from sim.scheduler.sglang.options import Options
from sim.scheduler.sglang.order import QueueOrder
from sim.scheduler.sglang.overlap import ending_rows, lose_token, unfollow
from sim.scheduler.sglang.pool import TokenPool
from sim.scheduler.sglang.ratio import NewTokenRatio
from sim.scheduler.sglang.request import SglangBatch, SglangRequest, SglangRow
from sim.scheduler.sglang.retraction import make_room
from sim.scheduler.sglang.running import Running, lag


PREFILL_TURNS = 1000
"""What a turn with a prefill counts for the interval in which the loop looks for new requests."""


class SchedulerState:
    """The parts, and the moves of requests between them; `SglangScheduler` decides which.

    **Arguments:** `pool_tokens` in pages of `page_size`; at most `max_running` requests hold KV, none is longer than
    `context_len`; `chunk` tokens make a prefill batch (None: prompts are not cut); `policy` orders the queue;
    `reuse`: prefixes are kept and found; `overlap`: results are processed one batch late; `options`, `rules`: what the
    user and the version change.
    """

    def __init__(
        self,
        pool_tokens: int,
        page_size: int = 1,
        *,
        max_running: int,
        context_len: int,
        chunk: int | None,
        policy: str = "fcfs",
        reuse: bool = True,
        overlap: bool = True,
        options: Options | None = None,
        rules: SglangRules | None = None,
    ):
        self.options = options = options or Options()
        self.rules = rules = rules or SglangRules()
        self.pool_tokens = pool_tokens
        self.pool = TokenPool(
            pool_tokens,
            page_size,
            reuse=reuse and not options.disable_radix_cache,
            split_prompt=rules.split_prompt,
            evict_shortfall=rules.evict_shortfall,
        )
        self.order = QueueOrder(
            policy,
            self.pool,
            priority=options.enable_priority_scheduling,
            low_first=options.schedule_low_priority_values_first,
            refresh_passes=rules.refresh_passes,
        )
        self.ratio = NewTokenRatio(options.schedule_conservativeness)
        self.max_running = max_running
        self.context_len = context_len
        self.chunk = chunk
        self.mixed = options.enable_mixed_chunk and chunk is not None
        self.preempts = options.enable_priority_scheduling and not options.disable_priority_preemption
        self.overlap = overlap
        self.hit_stats = HitStats()
        self.waiting: list[SglangRequest] = []
        self._unseen: list[SglangRequest] = []
        self._turns = 0
        self.running = Running(page_size)
        self.chunked: SglangRequest | None = None
        self.full = False
        self.last: SglangBatch | None = None
        """The batch launched in the turn before; with overlap its result is pending."""
        self._pending: SglangBatch | None = None
        self._calls = 0
        self._enqueued = 0
        self._counted = 0
        self._count_again = 0
        self._ended: list[SglangRequest] = []
        self._unfinished = 0
        self._reset_due = False

    @property
    def free_blocks(self) -> int:
        """Pages that nobody uses, cached ones included."""
        return self.pool.available // self.pool.page_size

    @property
    def usable_blocks(self) -> int:
        """All pages; the one that padding writes to is extra."""
        return self.pool.tokens // self.pool.page_size

    @property
    def unfinished(self) -> int:
        """Requests waiting, running, or with a result under way."""
        return self._unfinished

    def servable_tokens(self, prompt: int, outputs: int) -> int | None:
        """Tokens that a request of this size gets, or None if it is refused at the entrance."""
        if outputs < 1 or prompt >= min(self.context_len - 1, self.pool_tokens - 1) - 5:
            return None
        return min(outputs, max(self._allowed(prompt, max(outputs, self.options.max_new_tokens)), 1))

    def _allowed(self, prompt: int, wanted: int) -> int:
        """The most outputs of a request: it must fit in the context and, alone, in the pool."""
        longest = min(self.context_len - 1, self.pool_tokens - 1)
        page = self.pool.page_size
        return max(0, min(wanted, longest - prompt - 1, self.pool_tokens - self.pool.ceil(prompt) - page - 1))

    def add(self, request: SglangRequest) -> None:
        """Put a new request in the queue; it will get `outputs` tokens, cut to what the engine allows."""
        self.enter(request, max(request.outputs, self.options.max_new_tokens), self.options.ignore_eos)

    def enter(self, request: SglangRequest, max_new: int, ignore_eos: bool) -> None:
        """Put a new request in the queue that allows `max_new` tokens, whatever it gets."""
        request.max_new = self._allowed(request.prompt, max_new)
        request.outputs = max(1, min(request.outputs, request.max_new))
        request.ignore_eos = ignore_eos
        self._unfinished += 1
        if self.options.scheduler_recv_interval > 1:
            self._unseen.append(request)
        else:
            self._enqueue(request)

    def _receive(self) -> None:
        """At the begin of a turn: look for new requests, if enough turns have passed since the loop last did."""
        if self.options.scheduler_recv_interval == 1:
            return
        last = self.last
        self._turns += 1 if last is None or last.mode == "decode" else PREFILL_TURNS
        rests = last is None and not self.running.rows and not self.waiting and self.chunked is None
        if rests or self._turns >= self.options.scheduler_recv_interval:
            self._turns = 0
            for request in self._unseen:
                self._enqueue(request)
            self._unseen.clear()

    def _unseen_stay(self) -> bool:
        """Whether the next turn, after one that decoded, leaves new requests where they are; there may be none."""
        return not self._unseen or self._turns + 1 < self.options.scheduler_recv_interval

    def _decoded_turn(self) -> None:
        """Count a repeated turn that decoded."""
        self._turns = self._turns + 1 if self._turns + 1 < self.options.scheduler_recv_interval else 0

    def _enqueue(self, request: SglangRequest) -> None:
        self._enqueued += 1
        request.enqueued = self._enqueued
        request.counted = self._counted
        self.waiting.append(request)

    def abort(self, request: SglangRequest) -> None:
        """Take an unfinished request out; what it computed stays in the tree, what is under way is thrown away."""
        self._unfinished -= 1
        for queue in (self.waiting, self._unseen):
            if request in queue:
                queue.remove(request)
                return
        last = self.last
        self._pending = last if self.overlap else None
        if request.place >= 0:
            self._take_out(request)
        elif request is self.chunked:
            self.chunked = None
        elif self._pending is not None and request in self._pending.emitted:
            lose_token(self._pending, request, request.before)
        if last is not None:
            last.decoding.pop(request.index, None)
            last.forget(request)
        self.full = False
        self.pool.finish(request, request.computed, min(request.computed, request.known))
        request.life += 1
        request.out = request.outputs

    def out(self, request: SglangRequest) -> int:
        """Tokens of a request that have come out, as far as results have been processed."""
        return request.out if request.place < 0 else self.running.out(request, self._pending)

    def _merge(self, last: SglangBatch) -> None:
        """The requests of the last prefill (or mixed) batch start to decode."""
        running = self.running
        if not running.rows:
            mixed = [r for r in last.decoding.values() if r.out < r.outputs]
            joining = len(mixed) + sum(self._goes_on(row) for row in last.rows)
            if joining:
                self.full = False
                self._count_again = last.tokens
        else:
            mixed = []
        for row in last.rows:
            request = row.request
            if self._goes_on(row):
                running.join(request, row.computed + row.tokens)
            else:
                self.full = False
        if last.decoding:
            self._ended = [r for r in self._ended if r.index not in last.decoding or self._leave(r)]
            running.reorder([*running.rows.values(), *mixed])

    def _goes_on(self, row: SglangRow) -> bool:
        request = row.request
        return row.emits and row.life == request.life and request.out < request.outputs

    def _leave(self, request: SglangRequest) -> bool:
        self.running.leave(request)
        return False

    def _drop_ended(self) -> None:
        for request in self._ended:
            if self.running.rows.pop(request.index, None) is not None:
                self.full = False
                self.running.leave(request)
        self._ended.clear()

    def _take_out(self, request: SglangRequest) -> None:
        """A running request leaves before its end: `out` and `computed` become its own."""
        request.out = self.out(request)
        request.computed = self.running.kv(request)
        prefilled = request.last_batch
        self.running.rows.pop(request.index, None)
        self.running.leave(request)
        if self._pending is not None and lag(self._pending, request):
            lose_token(self._pending, request, max(prefilled, self.running.decode_before))

    def _release(self, request: SglangRequest, left: int) -> None:
        """A victim loses its KV; `left` requests go on."""
        self._take_out(request)
        request.life += 1
        self.pool.drop(request, request.computed)
        make_room(self.pool, left)
        request.computed = request.tried_hit = 0
        request.preemptions += 1

    def _end(self, request: SglangRequest, batch: SglangBatch) -> None:
        """Store and free a request whose last token has come out of `batch`."""
        launched = self.last if self.last is not batch else None
        joined = request.place >= 0
        kv = self.running.kv(request) if joined else request.computed
        request.out = request.outputs
        request.computed = kv
        self.pool.finish(request, kv, min(kv, request.known))
        self._unfinished -= 1
        if joined:
            self._ended.append(request)
            if launched is not None and request.index in launched.decoding:
                # it was decoding once more when its end was seen: the token is dropped
                launched.dropped.append(request)
                unfollow(launched, batch.number)

    def _drop_ending(self) -> bool:
        """With overlap, rows that the pending batch takes to their length are not launched again."""
        if not self.overlap or not self.rules.skip_ending_rows:
            return False
        ending = ending_rows(self._pending, self.running)
        for request in ending:
            request.computed = self.running.kv(request)
            del self.running.rows[request.index]
            self.running.leave(request)
            self.full = False
        return bool(ending)

    def _come_back(self, batch: SglangBatch, victims: list[SglangRequest]) -> None:
        """Who was retracted or preempted goes to the end of the queue."""
        if not victims:
            return
        batch.preempted = batch.interrupted = [*batch.preempted, *victims]
        for request in victims:
            self._enqueue(request)

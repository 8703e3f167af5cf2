"""SGLang's scheduler: prefill first, then decode; what lacks memory waits, or is retracted.

One call of `schedule` is one turn of its event loop up to the launch: the last prefill batch joins the running one, a
prefill batch is tried, and only without one the running requests decode. `complete` processes a result. In the normal
loop each batch is completed before the next is scheduled, in the overlap loop the next one is scheduled first.
"""

from collections.abc import Sequence

from sim.deployment.rules import SglangRules
from sim.memory.hits import HitStats
from sim.scheduler.sglang.admission import CONTINUE, NO_TOKEN, OTHER, Admission
from sim.scheduler.sglang.options import Options
from sim.scheduler.sglang.order import QueueOrder
from sim.scheduler.sglang.overlap import ending_rows, lose_token, unfollow
from sim.scheduler.sglang.pool import TokenPool
from sim.scheduler.sglang.ratio import NewTokenRatio
from sim.scheduler.sglang.request import SglangBatch, SglangRequest, SglangRow
from sim.scheduler.sglang.retraction import fits, make_room, preemption_victims, retract, retraction_order
from sim.scheduler.sglang.running import Running, lag


class SglangScheduler:
    """One replica's scheduler.

    **Arguments:** `pool_tokens` in pages of `page_size`; at most `max_running` requests hold KV, none is longer than
    `context_len`; `chunk` tokens make a prefill batch (None: prompts are not cut); `policy` orders the queue;
    `reuse`: prefixes are kept and found; `overlap`: results are processed one batch late; `options`, `rules`: what the
    user and the version change.
    """

    request_type = SglangRequest

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

    # ---- the queue

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
        self._enqueue(request)

    def _enqueue(self, request: SglangRequest) -> None:
        self._enqueued += 1
        request.enqueued = self._enqueued
        request.counted = self._counted
        self.waiting.append(request)

    def abort(self, request: SglangRequest) -> None:
        """Take an unfinished request out; what it computed stays in the tree, what is under way is thrown away."""
        self._unfinished -= 1
        if request in self.waiting:
            self.waiting.remove(request)
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

    # ---- one turn

    def schedule(self) -> SglangBatch:
        """One turn of the loop up to the launch; the batch may be empty."""
        self._reset()
        batch = SglangBatch()
        batch.number = self._calls
        self._calls += 1
        last, self._pending = self.last, self.last if self.overlap else None
        if self.chunked is not None:
            self.pool.store(self.chunked, self.chunked.computed)
        if last is not None and last.rows:
            self._merge(last)
        if self.rules.drop_before_admission:
            self._drop_ended()
        if not self._prefill(batch):
            if not self.rules.drop_before_admission:
                self._drop_ended()
            if self.running.rows:
                self._decode(batch)
        if batch.tokens:
            self.last = batch
        else:
            self.last = None
            if last is None or not self.overlap:
                batch.idle = self._reset_due = not (self.waiting or self.running.rows or self.chunked)
        batch.running = len(self.running.rows)
        batch.waiting = len(self.waiting)
        batch.free_blocks = self.free_blocks
        return batch

    def repeat(self, batch: SglangBatch) -> bool:
        """Decode once more if that is all the next turn does.

        Nobody can be admitted (nobody waits, or admission is closed until a request ends), nobody gets a last token,
        and the pages are free without evicting.
        """
        running, pool = self.running, self.pool
        if batch is not self.last or batch.mode != "decode" or self.chunked is not None or self._ended:
            return False
        if self.waiting and (not self.full or self.preempts):
            return False
        rows = batch.decodes
        need = running.need
        most = rows if pool.page_size == 1 else rows * pool.page_size
        if pool.free < need or (pool.free < most and pool.tree.evictable) or len(running.rows) != rows:
            return False
        if not running.repeat(batch):
            return False
        self._calls = batch.number + 1
        self.ratio.step()
        pool.free -= need
        self._counted += self._count_again
        batch.free_blocks = self.free_blocks
        return True

    def idle(self) -> None:
        """The loop has nothing left to do: the new-token ratio starts again."""
        if not self._unfinished:
            self.ratio.reset()

    def complete(self, batch: SglangBatch) -> Sequence[SglangRequest]:
        """Process the result of the oldest open batch; the requests that ended, in order."""
        if not batch.tokens:
            if batch.idle:
                self._reset()
            return ()
        pool, ended = self.pool, []
        for row in batch.rows:
            request = row.request
            if not row.emits or row.life != request.life:
                continue
            if request.out + 1 >= request.outputs:
                ended.append(request)
                self._end(request, batch)
            else:
                pool.store(request, row.computed + row.tokens)
                request.out += 1
        for request in batch.finishing:
            if request.out < request.outputs:
                ended.append(request)
                self._end(request, batch)
        return ended

    def _reset(self) -> None:
        if self._reset_due:
            self._reset_due = False
            self.ratio.reset()

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

    # ---- the running batch

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

    # ---- prefill

    def _prefill(self, batch: SglangBatch) -> bool:
        """Try a prefill batch; False if there is none."""
        running = self.running.rows
        if self.preempts or not running:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return False
        if self._slots <= 0 and self.chunked is None and not self.preempts:
            self.full = True
            return False
        self.order.sort(self.waiting, self._counted)
        admission = Admission(
            self.pool,
            self.rules,
            self.running,
            self._pending,
            self.ratio.value,
            chunk=self.chunk,
            max_input=self.options.max_prefill_tokens,
            mixed_rows=len(running) if self.mixed else 0,
        )
        victims = self._fill(admission)
        if admission.rows:
            self._launch_prefill(batch, admission)
        self._come_back(batch, victims)
        return bool(admission.rows)

    @property
    def _slots(self) -> int:
        """Requests that may still be admitted; a cut one holds its place."""
        return self.max_running - len(self.running.rows) - (self.chunked is not None)

    def _fill(self, admission: Admission) -> list[SglangRequest]:
        """Walk the queue; returns the running requests that were preempted on the way."""
        victims: list[SglangRequest] = []
        if self.chunked is not None:
            admission.take_chunk(self.chunked, self._share_of_chunk(admission))
        admitted = 0
        running = self.running.rows
        for request in self.waiting:
            if admission.state() == OTHER:
                break
            if len(admission.rows) >= self.max_running - len(running):
                self.full = True
            if self.full:
                chosen = self._preempt(request, admission) if self.preempts else []
                if not chosen:
                    break
                victims += chosen
            found = admission.add(request)
            if admission.rows and admission.rows[-1].request is request:
                admitted += 1
            if found != CONTINUE:
                if found == NO_TOKEN:
                    self.full = bool(admission.rows or running) or not self.rules.full_only_with_work
                break
        del self.waiting[:admitted]
        self.chunked = admission.chunked
        return victims

    def _preempt(self, request: SglangRequest, admission: Admission) -> list[SglangRequest]:
        rows = list(self.running.rows.values())
        threshold = self.options.priority_scheduling_preemption_threshold
        victims = preemption_victims(request, admission, rows, self.order.urgency, threshold)
        left = len(rows)
        for victim in victims:
            admission.release(admission.reserve(victim))
            left -= 1
            self._release(victim, left)
        return victims

    def _share_of_chunk(self, admission: Admission) -> int | None:
        """With shortest-prefill-first a cut prompt leaves room for shorter ones: the most it may take."""
        pool, room = self.pool, admission.chunk_left
        assert self.chunked is not None and room is not None
        if self.order.policy != "shortest-prefill-first" or room < 2 * pool.page_size:
            return None
        rest, reserved = self.chunked.known - self.chunked.computed, 0
        for request in self.waiting:
            wanted = max(1, request.known - request.matched)
            if wanted >= rest or reserved + pool.ceil(wanted) > room - pool.page_size:
                break
            reserved += pool.ceil(wanted)
        return pool.floor(room - reserved) if reserved else None

    def _launch_prefill(self, batch: SglangBatch, admission: Admission) -> None:
        pool, stats, rows = self.pool, self.hit_stats, admission.rows
        total = sum(row.tokens for row in rows)
        pool.evict_to(total if pool.page_size == 1 else total + pool.page_size * len(rows))
        admitted = []
        for row in rows:
            request = row.request
            pool.extend(row.computed, row.computed + row.tokens)
            batch.add_chunk(row.computed, row.tokens)
            if row.kind == "c":
                stats.ask_more(row.tokens, request.preemptions > 0)
            else:
                admitted.append(request)
                stats.count(row.computed + row.tokens, row.computed, row.kind == "r")
            if row.emits:
                batch.emitted.append(request)
                if request.out + 1 >= request.outputs:
                    batch.finishing.append(request)
                request.before, request.last_batch = request.last_batch, batch.number
                if request.before >= 0:
                    batch.follows[request.before] = batch.follows.get(request.before, 0) + 1
        batch.rows, batch.admitted, batch.chunked = rows, admitted, self.chunked
        batch.mode = "extend"
        if self.mixed and self.running.rows:
            self._mix(batch)
        batch.emitting = len(batch.emitted) + batch.decodes
        self._counted += batch.tokens

    def _mix(self, batch: SglangBatch) -> None:
        """Decode rows ride along if they fit; nobody is retracted for them."""
        running = self.running
        self._drop_ended()
        self._drop_ending()
        if running.rows and fits(self.pool, running.need):
            batch.mode = "mixed"
            self._launch_rows(batch)
            running.rows = {}

    # ---- decode

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

    def _decode(self, batch: SglangBatch) -> None:
        running = self.running
        dropped = self._drop_ending()
        if not running.rows:
            self.full = False
            return
        if fits(self.pool, running.need):
            self.ratio.step()
        elif dropped:
            return
        else:
            self._retract(batch)
        self._launch_rows(batch)
        batch.mode = "decode"
        batch.emitting = batch.decodes
        self._counted += self._count_again

    def _launch_rows(self, batch: SglangBatch) -> None:
        pool, running = self.pool, self.running
        need, rows = running.need, len(running.rows)
        pool.evict_to(rows * pool.page_size)
        pool.free -= need
        running.launch(batch)

    def _retract(self, batch: SglangBatch) -> None:
        running = self.running
        by_priority = self.options.retraction_policy == "priority"
        ordered = retraction_order(list(running.rows.values()), self.out, self.order.urgency if by_priority else None)
        victims = retract(self.pool, running, ordered, self._release)
        running.reorder(ordered)
        batch.retracted = victims
        self._come_back(batch, victims)
        self.ratio.retracted(len(ordered), sum(map(self.out, ordered)), sum(r.max_new for r in ordered))
        if victims:
            self.full = False

    def _come_back(self, batch: SglangBatch, victims: list[SglangRequest]) -> None:
        """Who was retracted or preempted goes to the end of the queue."""
        if not victims:
            return
        batch.preempted = batch.interrupted = [*batch.preempted, *victims]
        for request in victims:
            self._enqueue(request)

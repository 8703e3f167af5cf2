"""SGLang's scheduler: prefill first, then decode; what lacks memory waits, or is retracted.

One call of `schedule` is one turn of its event loop up to the launch: the last prefill batch joins the running one, a
prefill batch is tried, and only without one the running requests decode. `complete` processes a result. In the normal
loop each batch is completed before the next is scheduled, in the overlap loop the next one is scheduled first.
"""

from collections.abc import Sequence

from sim.scheduler.sglang.admission import CONTINUE, NO_TOKEN, OTHER, Admission
from sim.scheduler.sglang.request import SglangBatch, SglangRequest
from sim.scheduler.sglang.retraction import fits, preemption_victims, retract, retraction_order
from sim.scheduler.sglang.state import SchedulerState


class SglangScheduler(SchedulerState):
    """One replica's scheduler."""

    request_type = SglangRequest

    def schedule(self) -> SglangBatch:
        """One turn of the loop up to the launch; the batch may be empty."""
        self._reset()
        self._receive()
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
                batch.idle = self._reset_due = not (self.waiting or self._unseen or self.running.rows or self.chunked)
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
        if self.waiting and (not self.full or self.preempts) or not self._unseen_stay():
            return False
        rows = batch.decodes
        need = running.need
        most = rows if pool.page_size == 1 else rows * pool.page_size
        if pool.free < need or (pool.free < most and pool.tree.evictable) or len(running.rows) != rows:
            return False
        if not running.repeat(batch):
            return False
        self._calls = batch.number + 1
        self._decoded_turn()
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
        """Make room for an urgent request; returns the victims in the order in which they queue again."""
        rows = list(self.running.rows.values())
        threshold = self.options.priority_scheduling_preemption_threshold
        victims = preemption_victims(request, admission, rows, self.order.urgency, threshold)
        left = len(rows)
        for victim in (row for row in rows if row in victims):  # released as they stand in the batch
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

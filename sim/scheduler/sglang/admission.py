"""SGLang's pass of admission: what a prefill batch may still take, and who fits (its PrefillAdder)."""

from sim.deployment.rules import SglangRules
from sim.scheduler.sglang.pool import TokenPool
from sim.scheduler.sglang.ratio import CLIP_MAX_NEW
from sim.scheduler.sglang.request import SglangBatch, SglangRequest, SglangRow
from sim.scheduler.sglang.running import Running


CONTINUE, OTHER, NO_TOKEN = range(3)


class Admission:
    """One pass. The rows it took are in `rows`, the request whose prefill is cut in `chunked`.

    Totals are what the running and the admitted requests may still want; `off` counts all their outputs,
    weighted by the new-token ratio, `off_now` only their inputs.

    **Arguments:** `pending`: the batch whose output is under way; `ratio`: the new-token ratio; `chunk`: tokens of a
    prefill batch (None: not chunked), `max_input` its bound where prompts are not cut; `mixed_rows`: decode rows that
    ride along.
    """

    def __init__(
        self,
        pool: TokenPool,
        rules: SglangRules,
        running: Running,
        pending: SglangBatch | None,
        ratio: float,
        *,
        chunk: int | None,
        max_input: int,
        mixed_rows: int,
    ):
        self.pool = pool
        self.rules = rules
        self.running = running
        self.ratio = ratio
        self.rows: list[SglangRow] = []
        self.chunked: SglangRequest | None = None
        self.input_left = max_input - mixed_rows
        self.chunk_left = None if chunk is None else chunk - mixed_rows
        self.off: float = mixed_rows
        self.off_now = mixed_rows
        self._pending = pending
        self._page = pool.page_size if rules.reserve_page else 0
        self._queue_of_ends: list[tuple[float, int]] | None = None
        in_full = rules.ignore_eos_in_full
        wanted: float | None = running.wanted_in_full(pending) if in_full else None
        if wanted is None:
            wanted = sum(
                (left if left < CLIP_MAX_NEW else CLIP_MAX_NEW) * (1 if in_full and request.ignore_eos else ratio)
                for left, request in zip(running.outputs_left(pending), running.rows.values(), strict=True)
            )
        self.off += wanted

    @property
    def total_left(self) -> float:
        """Tokens left when everybody gets the outputs they are expected to want."""
        return self.pool.available - self.off

    @property
    def left_now(self) -> int:
        """Tokens left when nobody gets any more outputs."""
        return self.pool.available - self.off_now

    def reserve(self, request: SglangRequest) -> float:
        """What a running request is expected to want."""
        outputs = min(request.max_new - self._out(request), CLIP_MAX_NEW)
        return outputs * self._share(request)

    def release(self, reserve: float) -> None:
        """A running request that was preempted wants no more."""
        self.off -= reserve

    def state(self) -> int:
        """Whether anything more can be taken."""
        if self.total_left <= 0 or self.left_now <= 0:
            return NO_TOKEN
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return OTHER
        return CONTINUE

    def take_chunk(self, request: SglangRequest, most: int | None = None) -> None:
        """The next chunk of the request cut before, of at most `most` tokens; it is never refused."""
        assert self.chunk_left is not None
        room = min(self.chunk_left, int(self.total_left))
        if room <= 0:
            room = self.chunk_left
        rest = request.known - request.computed
        tokens = min(rest, room if most is None else min(room, most))
        self._take(request, tokens, request.computed, "c", tokens < rest)

    def add(self, request: SglangRequest) -> int:
        """Try one waiting request; it is in `rows` afterwards or it is not. CONTINUE, or why the walk ends."""
        pool, taken = self.pool, len(self.rows)
        hit = pool.hold(request, request.known - 1)
        request.tried_tokens, request.tried_hit = request.known, hit
        exact = request.ignore_eos and not pool.reuse
        found = self._add_exact(request) if exact else self._add(request, hit)
        if len(self.rows) == taken:
            pool.let_go(request)
        return found

    def _add(self, request: SglangRequest, hit: int) -> int:
        extend = request.known - hit
        padded = self.pool.ceil(extend)
        outputs = min(max(request.max_new - request.out, 0), CLIP_MAX_NEW)
        if extend + outputs + self._page >= self.total_left:
            return NO_TOKEN
        bounded = self.chunk_left is None or self.rules.input_bound_always
        if bounded and self.rows and padded >= self.input_left:
            return OTHER
        if self.chunk_left is None or padded <= self.chunk_left:
            self._admit(request, extend, hit, False)
            return self.state()
        part = self.pool.floor(self.chunk_left)
        if part <= 0 or self.chunked is not None:
            return OTHER
        self._admit(request, part, hit, True)
        return self.state()

    def _add_exact(self, request: SglangRequest) -> int:
        """Without a tree, requests that ignore EOS are admitted if all fit to their ends, in the order of these."""
        extend = request.known
        padded = self.pool.ceil(extend) + self._page
        if padded > min(self.left_now, self.total_left):
            return NO_TOKEN
        if self._queue_of_ends is None:
            everybody = [request, *self.running.rows.values(), *(row.request for row in self.rows)]
            ends = [self._end(r) for r in everybody]
            self._queue_of_ends = queue = sorted((end for end in ends if end[0] > 0), key=lambda end: end[0])
        else:
            queue = self._queue_of_ends
            end = self._end(request)
            if end[0] > 0:
                # a defect of the engine: the largest goes before the last, not behind it
                at = next((i for i, other in enumerate(queue) if end[0] <= other[0]), max(len(queue) - 1, 0))
                queue.insert(at, end)
        left, freed = self.left_now - padded, 0
        for i, (wanted, held) in enumerate(queue):
            others = len(queue) - i
            if left + freed - wanted * others <= others:
                return NO_TOKEN
            freed += held
        if self.chunk_left is None or extend <= self.chunk_left:
            self._admit(request, extend, 0, False)
        elif self.chunk_left <= 0 or self.chunked is not None:
            # the engine would cut a second prompt here and take the first for finished: a defect that is not followed
            return OTHER
        else:
            self._admit(request, self.chunk_left, 0, True)
        return self.state()

    def _end(self, request: SglangRequest) -> tuple[float, int]:
        """Tokens that a request still wants, and those that it frees then."""
        out = self._out(request)
        return request.max_new * self._share(request) - out, request.prompt + out

    def _out(self, request: SglangRequest) -> int:
        return request.out if request.place < 0 else self.running.out(request, self._pending)

    def _share(self, request: SglangRequest) -> float:
        return 1 if request.ignore_eos and self.rules.ignore_eos_in_full else self.ratio

    def _admit(self, request: SglangRequest, tokens: int, hit: int, cut: bool) -> None:
        if not request.preemptions:
            request.cached = hit
        self._take(request, tokens, hit, "r" if request.preemptions else "n", cut)

    def _take(self, request: SglangRequest, tokens: int, computed: int, kind: str, cut: bool) -> None:
        row = SglangRow(request, tokens, computed, kind)
        row.emits = not cut
        self.rows.append(row)
        request.computed = computed + tokens
        if cut:
            self.chunked = request
        padded = self.pool.ceil(tokens)
        self.off += padded + self._page + (0 if cut else min(request.max_new, CLIP_MAX_NEW))
        self.off_now += padded + self._page
        self.input_left -= padded
        if self.chunk_left is not None:
            self.chunk_left -= padded

"""Two queues by session history, with bounded carry-over, over vLLM's row-by-row engine and its prefix cache (H2Q-BR).

A request is *short* until its session has a long history: more than `served_tokens` of it were computed, or one of its
rounds brought more than `new_tokens` of new prompt. Then it, and all rounds after it, are *long*.

- Short ones go first, the fewest new prompt tokens ahead, prefills before decodes, then by arrival. Long ones follow,
  decodes first, then by arrival. That is the order of rows in a call, of admission, and of who keeps blocks.
- Of a call's budget running requests leave what waiting short ones want of new tokens, so that a long prompt that is
  being computed does not hold them up.
- A short prefill that a call cuts goes on behind the other short ones; once it goes first all the same, if it came
  before the one that would be (carry-over).
- After `liveness_quota` rows of short ones in a row, while any long one is there, the oldest long one goes first.

Without sessions each request is one of its own. Source: the rules of Frontier's two-queue session-history scheduler
(NetX-lab/Frontier, `sj2q_bounded_carryover`, MIT), read; its variants `fastserve_lite` and `penalty_only` are not here.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.options import at_least, read_options
from sim.scheduler.vllm import RowBatching, RowRequest, VllmBatch, make_rows
from sim.scheduler.vllm.waiting import RankOrder, WaitingQueue
from sim.workload.trace import Workload


SUPPORTS = ("enable_prefix_caching", "long_prefill_token_threshold")
FIRST, SHORT, CUT, LONG = range(4)


@dataclass(frozen=True)
class Options:
    """Tokens of a session after which it is long; new prompt tokens that make it so; rows of short ones in a row."""

    served_tokens: int = 8192
    new_tokens: int = 4096
    liveness_quota: int = 32

    def __post_init__(self) -> None:
        at_least(0, served_tokens=self.served_tokens, new_tokens=self.new_tokens)
        at_least(1, liveness_quota=self.liveness_quota)


class SessionRequest(RowRequest):
    """A round of `session` with `new` prompt tokens; in queue `place`; `released`: it has had its carry-over."""

    __slots__ = ("session", "new", "place", "released")

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.session = -1 - index
        self.new = prompt
        self.place = SHORT
        self.released = False

    @property
    def prefills(self) -> bool:
        """Whether known tokens are still to be computed, more than the next one."""
        return self.computed < self.target


def rank(request: Any) -> tuple[float, ...]:
    """Smaller is served first."""
    if request.place == SHORT:
        return SHORT, request.new, not request.prefills, request.arrival
    return request.place, request.prefills, request.arrival, 0


class TwoQueues(RowBatching):
    """See the module."""

    request_type = SessionRequest

    def __init__(self, settings: EngineSettings, cache: Any, *, options: Options, **more: Any):
        super().__init__(settings, cache, **more)
        self.options = options
        self.served: defaultdict[int, int] = defaultdict(int)
        self.long: set[int] = set()
        self._sessions: Any = None
        self._short_in_a_row = 0

    def new_queue(self) -> WaitingQueue:
        """By rank."""
        return RankOrder(rank)

    def know(self, workload: Workload) -> None:
        """Which requests are rounds of one session, and what was said before."""
        self._sessions = workload.sessions

    def add(self, request: Any) -> None:
        """To its queue."""
        if self._sessions is not None:
            request.session = self._sessions.of(request.index)
            request.new = request.prompt - int(self._sessions.history_tokens[request.index])
        options, session = self.options, request.session
        if request.new > options.new_tokens or self.served[session] > options.served_tokens:
            self.long.add(session)
        request.place = LONG if session in self.long else SHORT
        super().add(request)

    @property
    def queue(self) -> RankOrder:
        """Those that wait."""
        assert isinstance(self.waiting, RankOrder)
        return self.waiting

    def reserved_tokens(self) -> int:
        """What short ones that wait want of new tokens, as far as seats and decodes leave it."""
        wanted = 0
        waiting: list[Any] = list(self.queue.first(self.max_num_seqs - len(self.running)))
        for request in waiting:
            if request.place == LONG:
                break
            wanted += request.new
        return max(0, min(wanted, self.budget - len(self.running)))

    def schedule(self) -> VllmBatch:
        """Order the requests, decide rows, and count what they served."""
        self._order()
        batch = super().schedule()
        rows: list[Any] = [row.request for row in batch.rows]
        last: Any = self.queue.last()
        long_ones = (last is not None and last.place == LONG) or any(one.place == LONG for one in rows)
        for row in batch.rows:
            request: Any = row.request
            self._short_in_a_row = self._short_in_a_row + 1 if long_ones and request.place != LONG else 0
            self.served[request.session] += row.tokens
            if self.served[request.session] > self.options.served_tokens:
                self.long.add(request.session)
        return batch

    def _order(self) -> None:
        """The running ones by rank; who goes first this time."""
        running: list[Any] = list(self.running)
        for request in running:
            cut = request.computed < request.target
            request.place = LONG if request.session in self.long else CUT if cut else SHORT
        self._carry_over(running, list(self.queue.first(1)))
        if self._short_in_a_row >= self.options.liveness_quota:
            waiting: list[Any] = list(self.queue.first(len(self.queue)))
            long_ones = [one for one in [*running, *waiting] if one.place == LONG]
            if long_ones:
                self._first(min(long_ones, key=lambda request: request.arrival))
            self._short_in_a_row = 0
        running.sort(key=rank)
        self.running = running

    def _carry_over(self, running: list[Any], heads: list[Any]) -> None:
        """The oldest cut prefill goes first, once, if it came before the head of the short ones."""
        cut = [request for request in running if request.place == CUT and not request.released]
        if not cut:
            return
        oldest = min(cut, key=lambda request: request.arrival)
        short = [request for request in [*running, *heads] if request.place == SHORT]
        head = min(short, key=rank, default=None)
        if head is None or oldest.arrival < head.arrival:
            oldest.released = True
            oldest.place = FIRST

    def _first(self, request: Any) -> None:
        """It goes ahead of all others in the next call."""
        if request.running:
            request.place = FIRST
            return
        self.queue.remove(request)
        request.place = FIRST
        self.queue.add(request)


def make(settings: EngineSettings, cache: CacheShape) -> RowBatching:
    """One replica's scheduler."""
    options = read_options(Options, settings.scheduler_options, "the scheduler h2q_br")
    return make_rows(settings, cache, kind=lambda *given, **named: TwoQueues(*given, options=options, **named))

"""One engine replica: its scheduler, its device, and the engine core's loop between them.

`BatchQueue` has the rules of the loop; here they happen in time. A call takes arrivals and schedules once; it then
returns at once, or waits for the oldest batch and processes its output. So with two batches in flight batch k + 1 is
issued before the output of batch k is known, a seat freed by batch k is refilled in batch k + 2, and an
arrival during batch k starts after batch k + 1. After a call whose own batch was empty the loop may sleep.

A batch starts when the one before has ended and the host has issued it. An empty batch takes no time on the device, but
its place in the queue until it is the oldest.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sim.event.batch_queue import BatchQueue
from sim.event.log import StepLog
from sim.memory.hits import HitStats
from sim.scheduler.base import Batch, Request
from sim.workload.trace import MOST_TOKENS


MOST_REPEATS = MOST_TOKENS + 1


class Watcher(Protocol):
    """Who is told what becomes of requests: the client, or whoever stands between it and this replica."""

    def queued(self, request: Request, now_ns: int) -> None:
        """The engine loop took the request up."""

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """A batch was decided."""

    def opened(self, requests: Iterable[Request], now_ns: int) -> None:
        """Requests get the first token that came with their KV."""

    def interrupted(self, requests: Iterable[Request], last_token_ns: int) -> None:
        """Decoding requests were preempted; their last token before came then."""

    def continued(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Tokens arrived that follow others: (time since the one before, how many such tokens) each."""

    def delivered(self, batch: Batch, ended: Sequence[Request], now_ns: int) -> None:
        """A batch's tokens arrived; `ended` got their last one."""


class Port(Protocol):
    """The way of a replica's KV to and from other instances."""

    @property
    def reports(self) -> bool:
        """Whether there is something for the scheduler to hear."""

    @property
    def busy(self) -> bool:
        """Whether transfers are under way."""

    @property
    def polled(self) -> bool:
        """Whether the loop looks for it before each call, not only when it processes an output."""

    def report(self) -> None:
        """Tell the scheduler."""


class Replica:
    """Drives one scheduler through time.

    **Arguments:** `queue`: the scheduler and its batches in flight; `price` gives (ns, padded tokens, graph mode) of a
    batch; `host_ns` is the loop's own time per batch, hidden while the device is busy with the batch
    before; `idle_sleep_ns` is slept after a call whose batch was empty, if there is more to do. `port`: where its KV
    comes from or goes to; what has become of transfers is heard at the end of a step, or at once by a loop that has
    nothing else to wait for.

    Kept for whoever watches: requests `outstanding`, and the `prompt_tokens` of those without a token; whether the loop
    is `blocked`, waiting for input; `empty_turns` in a row and `fruitless_preemptions`, without a token in between;
    `dropped_rows`, which emitted for a request that was gone; `accepted_tokens`, beyond one per row; whether batches
    have told which ones they follow (`tells_follows`); and `delivered_ns`, when the output of each executed batch was
    processed, in order of issue: when it was there, or later where the host was behind. `on_step(batch, start_ns,
    end_ns)`, if somebody wants it, is called for each batch that is put on the device, `on_output(batch)` when its
    output is processed and it tells what it delivered; `behind_ns()`, if there is one, says how much later than the
    device is free the batch begins.
    """

    def __init__(
        self,
        index: int,
        queue: BatchQueue,
        price: Callable[[Batch], tuple[int, int, int]],
        client: Watcher,
        log: StepLog,
        *,
        host_ns: int = 0,
        idle_sleep_ns: int = 0,
        port: Port | None = None,
    ):
        self.index = index
        self.port = port
        self.queue = queue
        self.scheduler = queue.scheduler
        self.outstanding = 0
        self.prompt_tokens = 0
        self.blocked = True
        self.empty_turns = 0
        self.fruitless_preemptions = 0
        self.tells_follows = False
        self.dropped_rows = 0
        self.accepted_tokens = 0
        self.delivered_ns = array("q")
        self.on_step: Callable[[Batch, int, int], None] | None = None
        self.on_output: Callable[[Batch], None] | None = None
        self.behind_ns: Callable[[], int] | None = None
        self._price = price
        self._client = client
        self._log = log
        self._hits = getattr(self.scheduler, "hit_stats", HitStats())
        self._host_ns = host_ns
        self._host_free_ns = 0
        self._idle_sleep_ns = idle_sleep_ns
        self._inbox: list[Request] = []
        self._unanswered: dict[int, int] = {}
        self._requests: dict[int, Request] = {}
        self._ends: deque[int] = deque()
        self._told: deque[tuple[int, dict[int, int] | None]] = deque()
        self._numbered_ns: dict[int, int] = {}
        self._interrupted: list[Request] = []
        self._gpu_free_ns = 0
        self._waits = False
        self._idles = False

    def send(self, request: Request) -> None:
        """Hand over a request; the loop takes it at its next call."""
        self._inbox.append(request)
        self.outstanding += 1
        self.prompt_tokens += request.prompt
        self._unanswered[request.index] = request.prompt
        self._requests[request.index] = request

    @property
    def occupied(self) -> bool:
        """Whether it has requests, or KV that is under way."""
        return bool(self.outstanding) or (self.port is not None and self.port.busy)

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks in use."""
        return 1.0 - self.scheduler.free_blocks / max(self.scheduler.usable_blocks, 1)

    def complete(self, now_ns: int) -> None:
        """Process the output of the oldest batch, if the loop has waited for it until now."""
        if not self._waits:
            return
        self._waits = False
        self._ends.popleft()
        free_blocks = self.scheduler.free_blocks
        batch, ended = self.queue.complete()
        if self.port is not None and self.port.reports:
            self.hear(self.port)
        self.outstanding -= len(ended)
        for request in batch.emitted:
            self.prompt_tokens -= self._unanswered.pop(request.index, 0)
        for request in ended:
            self._requests.pop(request.index, None)
        if batch.tokens:
            self.delivered_ns.append(now_ns)
        if batch.emitting or ended:
            self.fruitless_preemptions = 0
        if self._interrupted:
            self._client.interrupted(self._interrupted, now_ns)
            self._interrupted.clear()
        if batch.begun and batch.number < 0 and len(self.delivered_ns) > 1:
            # counted among the decodes that follow the batch before, but nothing came before them
            self._client.continued([(now_ns - self.delivered_ns[-2], -batch.begun)])
        number, follows = self._told.popleft()
        if number >= 0:
            self._continue(number, batch.follows if follows is None else follows, now_ns)
            self._count_tokens(batch)
        if ended or batch.emitted:
            self._client.delivered(batch, ended, now_ns)
        if ended:
            self._log.ended(self.index, now_ns, len(ended), self.scheduler.free_blocks - free_blocks)

    def drop(self, request: Request) -> None:
        """A request has ended here without an output."""
        self.outstanding -= 1
        self.prompt_tokens -= self._unanswered.pop(request.index, 0)
        self._requests.pop(request.index, None)
        self.queue.unflushed = True

    def cancel(self, i: int) -> Request | None:
        """Take request i out with all it has; None if it is not here."""
        request = self._requests.pop(i, None)
        if request is None:
            return None
        if request in self._inbox:
            self._inbox.remove(request)
        else:
            self.queue.abort(request)
        self.outstanding -= 1
        self.prompt_tokens -= self._unanswered.pop(i, 0)
        return request

    def fail(self) -> list[Request]:
        """It is gone with all it has; returns the requests that were on it, in the order in which they came."""
        gone = list(self._requests.values())
        for request in gone:
            self.cancel(request.index)
        self.outstanding = self.prompt_tokens = 0
        return gone

    def renew(self) -> None:
        """It comes into service with nothing in its cache."""
        forget = getattr(self.scheduler, "forget", None)
        if forget is not None:
            forget()

    def hear(self, port: Port) -> None:
        """What has become of transfers; the next call may find something to do."""
        port.report()
        self.empty_turns = 0

    def poll(self) -> None:
        """Hear what has become of transfers, in a loop that looks for it before each call."""
        if self.port is not None and self.port.reports and self.port.polled:
            self.hear(self.port)

    def _take_up(self, now_ns: int) -> None:
        """The loop takes the requests that have come."""
        for request in self._inbox:
            self.scheduler.add(request)
            self._client.queued(request, now_ns)
        self._inbox.clear()

    def _continue(self, number: int, follows: dict[int, int] | None, now_ns: int) -> None:
        """Inter-token latencies of a numbered batch, which says which batches its tokens follow."""
        numbered_ns = self._numbered_ns
        numbered_ns[number] = now_ns
        if follows is not None:
            self.tells_follows = True
            self._client.continued((now_ns - numbered_ns[before], rows) for before, rows in follows.items())

    def _count_tokens(self, batch: Batch) -> None:
        """Rows of a numbered batch that gave no token, and tokens beyond one per row."""
        self.dropped_rows += len(batch.dropped)
        if batch.delivered:
            accepted = sum(tokens for _, tokens in batch.delivered) - len(batch.delivered)
            self.accepted_tokens += accepted
            if accepted:
                self._client.continued([(0, accepted)])
            if self.on_output is not None:
                self.on_output(batch)

    def call(self, now_ns: int, horizon: Callable[[], int]) -> int | None:
        """Turns of the loop from `now_ns` on; returns when it acts next, or None if it blocks for input.

        Turns that only repeat the last batch follow at once, as long as they begin before `horizon()`, the next
        event of anybody else. A loop with nothing to do but to hear of transfers blocks until there is something.
        """
        queue, ends, told = self.queue, self._ends, self._told
        while True:
            if self._idles:
                self._idles = False
                if queue.idles(None):
                    return now_ns + self._idle_sleep_ns
            if self.port is not None:
                self.poll()
            if self._inbox:
                self._take_up(now_ns)
            elif self.empty_turns and self._only_hears():
                self.blocked = True
                self._waits = bool(queue.in_flight)  # empty batches, whose output whoever wakes it processes
                return None
            batch = queue.issue()
            busy = batch is not None and batch.tokens > 0
            if batch is not None:
                if batch.admitted or batch.preempted:
                    self._report(batch, now_ns)
                ends.append(self._execute(batch, now_ns) if busy else now_ns)
                told.append((batch.number, batch.follows))
                self.empty_turns = 0 if busy or batch.opened else self.empty_turns + 1
            self._idles = not busy and self._idle_sleep_ns > 0
            if queue.waits(batch):
                break
            if batch is None:
                self.blocked = True
                return None
        self.blocked = False
        self._waits = True
        next_ns = max(now_ns, ends[0], self._host_free_ns)
        if batch is not None and batch.plain and len(ends) < 3 and queue.in_flight[0].plain:
            numbered, delivered = batch.number >= 0, self.delivered_ns.append
            horizon_ns = horizon()
            for _ in range(MOST_REPEATS):
                if next_ns >= horizon_ns or not queue.repeat(batch):
                    break
                delivered(next_ns)
                ends.append(self._execute(batch, next_ns))
                ends.popleft()
                if numbered:
                    told.append((batch.number, batch.follows))
                    self._continue(*told.popleft(), next_ns)
                next_ns = ends[0]
                if next_ns < self._host_free_ns:
                    next_ns = self._host_free_ns
            else:
                raise ValueError(
                    f"engine.scheduler: repeat made the same call {MOST_REPEATS:,} times, more than any request has "
                    "tokens; it must return False once somebody ends."
                )
        return next_ns

    def _only_hears(self) -> bool:
        """Whether nothing can happen before news of a transfer."""
        return self.port is not None and self.port.busy and not any(batch.tokens for batch in self.queue.in_flight)

    def _report(self, batch: Batch, now_ns: int) -> None:
        """Who changed place in a batch, before it runs."""
        self._client.scheduled(batch, now_ns)
        if batch.opened:
            self._client.opened(batch.opened, now_ns)
            self._numbered_ns[batch.opened_as] = now_ns
            for request in batch.opened:
                self.prompt_tokens -= self._unanswered.pop(request.index, 0)
        self.fruitless_preemptions += len(batch.preempted)
        if batch.interrupted and batch.number < 0:
            in_flight = self.queue.in_flight
            if len(in_flight) > 1 and in_flight[-2].tokens:
                self._interrupted += batch.interrupted  # their last token is under way
            else:
                self._client.interrupted(batch.interrupted, self.delivered_ns[-1])

    def _execute(self, batch: Batch, now_ns: int) -> int:
        """The forward pass, behind the one before; returns its end."""
        duration, padded, mode = self._price(batch)
        ready = self._host_free_ns
        if ready < now_ns:
            ready = now_ns
        self._host_free_ns = start = ready + self._host_ns
        if start < self._gpu_free_ns:
            start = self._gpu_free_ns
        if self.behind_ns is not None:
            start += self.behind_ns()
        self._gpu_free_ns = end = start + duration
        self._log.append(self.index, now_ns, start, end, batch, padded, mode, self._hits)
        if self.on_step is not None:
            self.on_step(batch, start, end)
        return end

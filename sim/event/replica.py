"""One engine replica: its scheduler, its GPU, and the loop between them.

The loop is the engine core's. Synchronous: take arrivals, schedule, run, process the output, repeat. Asynchronous (two
batches in flight): each call of the loop takes arrivals and schedules once; it then waits for the oldest
batch only if the queue is full or this call's own batch is empty. So batch k + 1 is issued before the
output of batch k is known, a seat freed by batch k is refilled in batch k + 2, and an arrival during
batch k starts after batch k + 1. A call whose own batch was empty sleeps before the next one.
"""

from collections import deque
from collections.abc import Callable

from sim.event.client import Client
from sim.event.log import StepLog
from sim.scheduler.base import Batch, Request, Scheduler


class Replica:
    """Drives one scheduler through time.

    **Arguments:** `price` gives (ns, padded tokens, graph mode) of a batch; `depth` batches may be in flight (1:
    synchronous); `host_ns` is the loop's own time per batch, hidden while the device is busy with the batch
    before; `idle_sleep_ns` is slept after a call whose batch was empty; `fill_with_empty`: an empty batch
    does not wait for the oldest one while there is work (vLLM 0.33).
    """

    def __init__(
        self,
        index: int,
        scheduler: Scheduler,
        price: Callable[[Batch], tuple[int, int, int]],
        client: Client,
        log: StepLog,
        *,
        depth: int = 1,
        host_ns: int = 0,
        idle_sleep_ns: int = 0,
        fill_with_empty: bool = False,
    ):
        self.index = index
        self.scheduler = scheduler
        self.outstanding = 0
        self.blocked = True
        self.empty_turns = 0
        self._price = price
        self._client = client
        self._log = log
        self._depth = depth
        self._host_ns = host_ns
        self._host_free_ns = 0
        self._idle_sleep_ns = idle_sleep_ns
        self._fill_with_empty = fill_with_empty
        self._inbox: list[Request] = []
        self._in_flight: deque[tuple[Batch, int]] = deque()
        self._due: Batch | None = None
        self._gpu_free_ns = 0
        self._unflushed = False
        self._sleep = False

    def send(self, request: Request) -> None:
        """Hand over a request; the loop takes it at its next call."""
        self._inbox.append(request)
        self.outstanding += 1

    def complete(self, now_ns: int) -> None:
        """Process the output of the batch that is due now, if one is."""
        batch = self._due
        if batch is None:
            return
        self._due = None
        if batch.finishing:
            self.outstanding -= len(batch.finishing)
            self._unflushed = True
        if batch.finishing or batch.emitted:
            self._client.delivered(batch, now_ns)
        self.scheduler.complete(batch)

    def call(self, now_ns: int, horizon_ns: int) -> int | None:
        """One turn of the loop at `now_ns`; returns when it acts next, or None if it blocks for input.

        Turns that only repeat the last batch follow at once, as long as they begin before `horizon_ns`, the next
        event of anybody else.
        """
        if self._sleep:
            self._sleep = False
            if self.scheduler.unfinished or (self._unflushed and self._fill_with_empty):
                return now_ns + self._idle_sleep_ns
        scheduler, in_flight = self.scheduler, self._in_flight
        while True:
            if self._inbox:
                for request in self._inbox:
                    scheduler.add(request)
                    self._client.queued(request, now_ns)
                self._inbox.clear()
            empty = True
            if scheduler.unfinished or (self._unflushed and self._depth > 1):
                self._unflushed = False
                batch = scheduler.schedule()
                empty = not batch.tokens
                self.empty_turns = self.empty_turns + 1 if empty else 0
                in_flight.append((batch, self._issue(batch, now_ns)))
                if len(in_flight) < self._depth and (not empty or (self._fill_with_empty and scheduler.unfinished)):
                    continue
            if not in_flight:
                self.blocked = True
                return None
            self.blocked = False
            due, end_ns = in_flight.popleft()
            self._due = due
            self._sleep = empty and self._idle_sleep_ns > 0
            next_ns = max(now_ns, end_ns, self._host_free_ns)
            if not empty and batch.plain and (due is batch or due.plain) and len(in_flight) < 2:
                while next_ns < horizon_ns and scheduler.repeat(batch):
                    in_flight.append((batch, self._execute(batch, next_ns)))
                    self._due, next_ns = in_flight.popleft()
                    if next_ns < self._host_free_ns:
                        next_ns = self._host_free_ns
            return next_ns

    def _issue(self, batch: Batch, now_ns: int) -> int:
        """Report a batch and put it on the GPU; returns when its output is there, at once if it is empty."""
        if batch.admitted or batch.interrupted:
            self._client.scheduled(batch, now_ns, self._gpu_free_ns)
        return self._execute(batch, now_ns) if batch.tokens else now_ns

    def _execute(self, batch: Batch, now_ns: int) -> int:
        """The forward pass, behind the one before; returns its end."""
        duration, padded, mode = self._price(batch)
        ready = self._host_free_ns
        if ready < now_ns:
            ready = now_ns
        self._host_free_ns = start = ready + self._host_ns
        if start < self._gpu_free_ns:
            start = self._gpu_free_ns
        self._gpu_free_ns = end = start + duration
        self._log.append(self.index, start, end, batch, padded, mode)
        return end

"""The engine core's queue of batches in flight: which calls of the loop schedule, and which wait.

One call of the loop takes arrivals, schedules once if there is anything to do, and then either returns at once or waits
for the oldest batch. With a queue of one this is the synchronous step.

Source: engine-core loops of vLLM 0.19.0 and 0.33.0; SGLang's overlap loop is a queue of two.
"""

from collections import deque

from sim.scheduler.base import Batch, Request, Scheduler


class BatchQueue:
    """At most `depth` batches of `scheduler`; `fill_with_empty`: empty batches do not wait while there is work.

    `pools`: rows that complete a prompt give an embedding: nothing is sampled, no logits are needed.
    `unflushed`: requests have ended since the last call of `schedule`, which reports them to the workers.
    """

    def __init__(self, scheduler: Scheduler, depth: int = 1, fill_with_empty: bool = False):
        self.scheduler = scheduler
        self.depth = depth
        self.in_flight: deque[Batch] = deque()
        self.unflushed = False
        self.pools = False
        self._fill_with_empty = fill_with_empty

    def issue(self) -> Batch | None:
        """Schedule once and queue the batch, if a request is unfinished or ended ones are still to be reported."""
        if not (self.scheduler.unfinished or (self.unflushed and self.depth > 1)):
            idle = getattr(self.scheduler, "idle", None)
            if idle is not None:
                idle()
            return None
        self.unflushed = False
        batch = self.scheduler.schedule()
        if not isinstance(batch, Batch):
            raise ValueError(f"engine.scheduler: schedule must return a Batch, got {batch!r}.")
        if self.pools:
            batch.emitting = 0
        self.in_flight.append(batch)
        return batch

    def waits(self, issued: Batch | None) -> bool:
        """Whether the call that `issued` this batch goes on to wait for the oldest one."""
        if issued is not None and len(self.in_flight) < self.depth:
            if issued.tokens:
                return False
            if self._fill_with_empty and (self.scheduler.unfinished or self.unflushed):
                return False
        return bool(self.in_flight)

    def idles(self, issued: Batch | None) -> bool:
        """Whether the loop sleeps after the call that `issued` this batch: it was empty, and there is more to do."""
        if issued is not None and issued.tokens:
            return False
        return self.scheduler.unfinished > 0 or (self._fill_with_empty and self.unflushed)

    def repeat(self, batch: Batch) -> bool:
        """Complete the oldest batch and issue `batch`, the newest, again, if the next call does only that.

        All batches in flight are plain, and nothing has arrived.
        """
        if not self.scheduler.repeat(batch):
            return False
        self.in_flight.popleft()
        self.in_flight.append(batch)
        return True

    def abort(self, request: Request) -> None:
        """Take an unfinished request out; the next call reports it."""
        self.scheduler.abort(request)
        self.unflushed = True

    def complete(self) -> tuple[Batch, list]:
        """Process the output of the oldest batch; it and the requests that ended with it."""
        batch = self.in_flight.popleft()
        ended = list(self.scheduler.complete(batch))
        if ended:
            self.unflushed = True
        return batch, ended

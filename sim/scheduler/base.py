"""Who goes next: the interface of a scheduler, and the two things it handles.

A scheduler never sees a clock. The engine tells it of arrivals and completed batches; it answers with
batches. So it can be driven step by step in a test, and replayed against a recorded engine.
"""

from typing import Protocol


class Request:
    """One request inside a replica.

    `target` tokens have to be in the cache before the next token can be emitted: the prompt, plus, after a
    preemption, what had been emitted. `left` tokens are still to be emitted.
    """

    __slots__ = (
        "index",
        "prompt",
        "outputs",
        "target",
        "left",
        "computed",
        "phase",
        "first_step",
        "last_step",
        "cached",
        "preemptions",
        "token_ids",
    )

    def __init__(self, index: int, prompt: int, outputs: int, token_ids=None):
        self.index = index
        self.prompt = prompt
        self.outputs = outputs
        self.target = prompt
        self.left = outputs
        self.computed = 0
        self.phase = -1
        self.first_step = -1
        self.last_step = -1
        self.cached = 0
        self.preemptions = 0
        self.token_ids = token_ids

    def __repr__(self) -> str:
        return f"Request({self.index}, prompt={self.prompt}, outputs={self.outputs}, left={self.left})"


class Batch:
    """What one call of `schedule` decided: the statistics of the forward pass and who is in it.

    `emitted` requests complete their prefill in this batch; `finishing` ones get their last token
    from it; `admitted` and `preempted` changed queues. Statistics are named as in `sim.cost.BatchStats`.
    """

    __slots__ = (
        "prefill_tokens",
        "prefill_chunks",
        "prefill_area",
        "prefill_kv_tokens",
        "prefill_max_tokens",
        "decodes",
        "decode_sum",
        "decode_max",
        "decode_sumsq",
        "emitting",
        "running",
        "waiting",
        "free_blocks",
        "admitted",
        "emitted",
        "finishing",
        "preempted",
    )

    def __init__(self):
        self.prefill_tokens = self.prefill_chunks = self.prefill_area = 0
        self.prefill_kv_tokens = self.prefill_max_tokens = 0
        self.decodes = self.decode_sum = self.decode_max = self.decode_sumsq = 0
        self.emitting = self.running = self.waiting = self.free_blocks = 0
        self.admitted: list[Request] = []
        self.emitted: list[Request] = []
        self.finishing: list[Request] = []
        self.preempted: list[Request] = []

    @property
    def tokens(self) -> int:
        """Scheduled tokens; 0 for an empty batch."""
        return self.prefill_tokens + self.decodes


class Scheduler(Protocol):
    """Decides batches. `schedule` may be called again before the batch before is completed (async)."""

    def add(self, request: Request) -> None:
        """Put a new request at the end of the waiting queue."""

    def schedule(self) -> Batch:
        """Decide the next batch; it may be empty."""

    def complete(self, batch: Batch) -> list[Request]:
        """Process the output of the oldest open batch; return the requests that ended with it."""

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""

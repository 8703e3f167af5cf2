"""Who goes next: the interface of a scheduler, and the two things it handles.

A scheduler never sees a clock. The engine tells it of arrivals and completed batches; it answers with
batches. So it can be driven step by step in a test, and replayed against a recorded engine.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Request:
    """One request inside a replica.

    `target` tokens must be in the cache before the next token can be emitted: the prompt and, after a preemption,
    what had been emitted by then. `left` tokens are still to be emitted, counted when the request (re)entered the
    waiting queue. `token_ids` is the known content; beyond it, output j has the id `output_base + j`.
    """

    __slots__ = (
        "index",
        "prompt",
        "outputs",
        "target",
        "left",
        "computed",
        "key",
        "last_step",
        "cached",
        "preemptions",
        "token_ids",
        "output_base",
        "blocks",
        "block_keys",
        "registered",
    )

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None):
        self.index = index
        self.prompt = prompt
        self.outputs = outputs
        self.target = prompt
        self.left = outputs
        self.computed = 0
        self.key = 0
        self.last_step = -1
        self.cached = 0
        self.preemptions = 0
        self.token_ids = token_ids
        self.output_base = (index + 1) << 32
        self.blocks: list[int] = []
        self.block_keys: list[int] = []
        self.registered = 0

    def __repr__(self) -> str:
        return f"Request({self.index}, prompt={self.prompt}, outputs={self.outputs}, left={self.left})"


class Batch:
    """What one call of `schedule` decided: the statistics of the forward pass, and who changed place.

    Statistics are named as in `sim.cost.BatchStats`. `admitted` entered running; `emitted` complete their
    prefill here (so their first token, or the first after a preemption, comes with this batch);
    `finishing` get their last token from it; `preempted` lost their blocks, of which
    `interrupted` were decoding. `running`, `waiting` and `free_blocks` are as after the call.
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
        "interrupted",
        "filled",
    )

    def __init__(self) -> None:
        self.prefill_tokens = self.prefill_chunks = self.prefill_area = 0
        self.prefill_kv_tokens = self.prefill_max_tokens = 0
        self.decodes = self.decode_sum = self.decode_max = self.decode_sumsq = 0
        self.emitting = self.running = self.waiting = self.free_blocks = 0
        self.admitted: Sequence[Request] = ()
        self.emitted: Sequence[Request] = ()
        self.finishing: Sequence[Request] = ()
        self.preempted: Sequence[Request] = ()
        self.interrupted: Sequence[Request] = ()
        self.filled: Sequence[tuple[Request, int]] = ()

    @property
    def tokens(self) -> int:
        """Scheduled tokens; 0 for an empty batch."""
        return self.prefill_tokens + self.decodes

    @property
    def plain(self) -> bool:
        """Whether rows only decoded: nobody changed place, nothing was prefilled, no block was filled."""
        return not (
            self.prefill_tokens or self.finishing or self.preempted or self.emitted or self.filled or not self.decodes
        )

    def add_chunk(self, prior: int, chunk: int) -> None:
        """Count one prefill row: `chunk` new tokens on `prior` tokens of context."""
        end = prior + chunk
        self.prefill_tokens += chunk
        self.prefill_chunks += 1
        self.prefill_area += chunk * prior + chunk * (chunk + 1) // 2
        self.prefill_kv_tokens += end
        if end > self.prefill_max_tokens:
            self.prefill_max_tokens = end


class Scheduler(Protocol):
    """Decides batches. `schedule` may be called again before the batch before is completed (async)."""

    @property
    def free_blocks(self) -> int:
        """KV blocks nobody uses."""

    @property
    def usable_blocks(self) -> int:
        """All KV blocks but the null block."""

    def add(self, request: Request) -> None:
        """Put a new request at the end of the waiting queue."""

    def schedule(self) -> Batch:
        """Decide the next batch; it may be empty."""

    def repeat(self, batch: Batch) -> bool:
        """Make the next call if it does what `batch`, the last one decided, did: the same requests decode, no more.

        `batch` is plain (`Batch.plain`) and nothing has arrived or been completed that could matter. Its
        statistics move on by one call. False, and nothing changed, if the call has to be made by `schedule`.
        """

    def complete(self, batch: Batch) -> Sequence[Request]:
        """Process the output of the oldest open batch; return the requests that ended with it."""

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""

"""Who goes next: the interface of a scheduler, and the two things it handles.

A scheduler never sees a clock. The engine tells it of arrivals and completed batches; it answers with
batches. So it can be driven step by step in a test, and replayed against a recorded engine.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


def output_base(index: int) -> int:
    """The id of the first output of request `index` where nobody knows the real one: unlike any other's."""
    return (index + 1) << 32


class Request:
    """One request inside a replica, as every scheduler sees it.

    `prompt` tokens arrive; at most `outputs` tokens are emitted. Lower `priority` is more urgent, where a policy looks
    at it. `token_ids` is the known content; beyond it, output j has the id `output_base + j`. `computed` tokens are in
    the cache (or under way to it); `cached` of them were found there when it was first admitted. `last_batch` is the
    number of the batch that emitted its last token, -1 before.

    A scheduler that keeps more about its requests says so with a subclass, its `request_type`.
    """

    __slots__ = (
        "index",
        "prompt",
        "outputs",
        "priority",
        "token_ids",
        "output_base",
        "computed",
        "cached",
        "preemptions",
        "last_batch",
    )

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        self.index = index
        self.prompt = prompt
        self.outputs = outputs
        self.priority = priority
        self.token_ids = token_ids
        self.output_base = output_base(index)
        self.computed = 0
        self.cached = 0
        self.preemptions = 0
        self.last_batch = -1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.index}, prompt={self.prompt}, outputs={self.outputs})"


class Row[R: Request]:
    """One request's part in a batch: `tokens` on top of `computed` of context.

    `kind`: `n` first admission, `r` resumed after a preemption, `c` continued, `x` a row whose request was preempted
    after it had been counted (a defect of vLLM 0.10.2). `emits`: whether it samples; then it yields 1 + `accepted`
    tokens, `accepted` of its `drafts`. `padded`: its drafts are dummies, never accepted.
    """

    __slots__ = ("request", "tokens", "computed", "kind", "emits", "drafts", "accepted", "padded")

    def __init__(self, request: R, tokens: int, computed: int, kind: str):
        self.request = request
        self.tokens = tokens
        self.computed = computed
        self.kind = kind
        self.emits = False
        self.drafts = 0
        self.accepted = 0
        self.padded = False


class Batch[R: Request]:
    """What one call of `schedule` decided: the statistics of the forward pass, and who changed place.

    Statistics are named as in `sim.cost.BatchStats`. `admitted` entered running; `emitted` complete their
    prefill here (so their first token, or the first after a preemption, comes with this batch);
    `begun` of the decodes give a request's first token, for its prompt was computed elsewhere. The `opened` got theirs
    from there too, and it is given out as the batch is decided; `follows` knows these tokens by the number `opened_as`.
    `finishing` get their last token from it; `preempted` lost their blocks, of which
    `interrupted` were decoding. `running`, `waiting` and `free_blocks` are as after the call. `draft_tokens` ride on
    rows, beside the tokens of a chunk or the one that `decodes` counts; `accepted_tokens` come beyond one a row.

    A scheduler that decides row by row lists its `rows` in order, and counts in `follows` how many of its emitting
    rows had their token before from which batch, by `number`: the inter-token latencies. One whose decoding
    requests are in every batch leaves both out. Once completed, `delivered` has the requests with their new tokens
    where a row can yield several, and `dropped` those whose row would have emitted but that had ended before.
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
        "draft_tokens",
        "accepted_tokens",
        "running",
        "waiting",
        "free_blocks",
        "admitted",
        "emitted",
        "finishing",
        "preempted",
        "interrupted",
        "number",
        "rows",
        "follows",
        "delivered",
        "dropped",
        "begun",
        "opened",
        "opened_as",
    )

    def __init__(self) -> None:
        self.prefill_tokens = self.prefill_chunks = self.prefill_area = 0
        self.prefill_kv_tokens = self.prefill_max_tokens = 0
        self.decodes = self.decode_sum = self.decode_max = self.decode_sumsq = 0
        self.emitting = self.running = self.waiting = self.free_blocks = self.begun = 0
        self.draft_tokens = self.accepted_tokens = 0
        self.admitted: Sequence[R] = ()
        self.emitted: Sequence[R] = ()
        self.finishing: Sequence[R] = ()
        self.preempted: Sequence[R] = ()
        self.interrupted: Sequence[R] = ()
        self.number = -1
        self.rows: Sequence[Row[R]] = ()
        self.follows: dict[int, int] | None = None
        self.delivered: Sequence[tuple[R, int]] = ()
        self.dropped: Sequence[R] = ()
        self.opened: Sequence[R] = ()
        self.opened_as = -1

    @property
    def tokens(self) -> int:
        """Scheduled tokens; 0 for an empty batch."""
        return self.prefill_tokens + self.decodes

    @property
    def plain(self) -> bool:
        """Whether rows only decoded: nobody changed place or was gone, nothing was prefilled."""
        return bool(self.decodes) and not (
            self.prefill_tokens or self.finishing or self.preempted or self.emitted or self.dropped
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

    def add_decode(self, context: int) -> None:
        """Count one decode row that attends to `context` tokens, its own included."""
        self.decodes += 1
        self.decode_sum += context
        self.decode_sumsq += context * context
        if context > self.decode_max:
            self.decode_max = context


class Scheduler[R: Request](Protocol):
    """Decides batches. `schedule` may be called again before the batch before is completed (async)."""

    request_type: type[R]
    """What `add` takes: `Request`, or the scheduler's own subclass of it with the same constructor."""

    @property
    def free_blocks(self) -> int:
        """KV blocks nobody uses."""

    @property
    def usable_blocks(self) -> int:
        """All KV blocks but the null block."""

    def add(self, request: R) -> None:
        """Put a new request, of `request_type`, in the waiting queue."""

    def abort(self, request: R) -> None:
        """Take an unfinished request out and free its blocks; what is under way for it is thrown away."""

    def schedule(self) -> Batch[R]:
        """Decide the next batch; it may be empty."""

    def repeat(self, batch: Batch[R]) -> bool:
        """Make the next call if it does what `batch`, the last one decided, did: the same requests decode, no more.

        `batch` is plain (`Batch.plain`) and nothing has arrived or been completed that could matter. Its
        statistics move on by one call. False, and nothing changed, if the call has to be made by `schedule`.
        """

    def complete(self, batch: Batch[R]) -> Sequence[R]:
        """Process the output of the oldest open batch; return the requests that ended with it."""

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""

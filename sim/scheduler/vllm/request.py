"""What the row-by-row scheduler handles: requests with their progress, rows with their blocks, batches of rows."""

import numpy as np

from sim.scheduler.base import Batch, Request, Row


class RowRequest(Request):
    """A request as the row-by-row scheduler keeps it.

    **Progress:** `known` tokens are the prompt and the `emitted` ones; `target` were known when it was last admitted.
    `drafts` wait to be verified. Scheduled ahead of its output (async), a request has `placeholders` for the tokens
    that rows under way will emit, as if all their drafts were accepted. `in_flight` tokens are issued and their
    output is not processed; `stale` of them were issued before a preemption. `prefilling`: its last row left some known
    token uncomputed. Until call number `next_call` it may not decode. `last_start` tokens were computed before its last
    row (kept for ghosts only).

    **Place:** `arrival` orders requests; it is `running`, or waits, or has `ended`. While it waits, it `loads` if its
    KV comes from elsewhere, and that is `reported` once it has.

    **Blocks** (the cache's): `tables`, `registered`, `block_keys`, `junction`.
    """

    __slots__ = (
        "known",
        "emitted",
        "target",
        "drafts",
        "placeholders",
        "in_flight",
        "stale",
        "prefilling",
        "next_call",
        "last_start",
        "arrival",
        "running",
        "ended",
        "loads",
        "reported",
        "tables",
        "registered",
        "block_keys",
        "junction",
    )

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.known = self.target = prompt
        self.emitted = 0
        self.drafts = 0
        self.placeholders = 0
        self.in_flight = 0
        self.stale = 0
        self.prefilling = False
        self.next_call = 0
        self.last_start = 0
        self.arrival = -1
        self.running = False
        self.ended = False
        self.loads = False
        self.reported = False
        self.tables: list[list[int]] = []
        self.registered: list[int] = []
        self.block_keys: list[int] = []
        self.junction = 0


class VllmRow(Row[RowRequest]):
    """A row with the `blocks` taken for it, per group: the new ones, or the whole tables of kinds `n` and `r`.

    `prefill`: it computes tokens that were known at admission.
    """

    __slots__ = ("blocks", "prefill")

    def __init__(self, request: RowRequest, tokens: int, computed: int, kind: str, blocks: list[list[int]]):
        self.request = request
        self.tokens = tokens
        self.computed = computed
        self.kind = kind
        self.emits = False
        self.drafts = 0
        self.accepted = 0
        self.blocks = blocks
        self.prefill = computed < request.target
        self.padded = False


class VllmBatch(Batch[RowRequest]):
    """A batch of rows.

    Issued: `rows` in order. Completed: `delivered` has each request and its new tokens, in order of processing,
    `finishing` those that ended so, `dropped` those that would have emitted but had ended before.
    """

    __slots__ = ()

    rows: list[VllmRow]

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.rows = []

    @property
    def tokens(self) -> int:
        """Scheduled tokens; 0 for an empty batch."""
        return self.prefill_tokens + self.decodes + self.draft_tokens

    @property
    def plain(self) -> bool:
        """Never: row by row, no call repeats the one before."""
        return False

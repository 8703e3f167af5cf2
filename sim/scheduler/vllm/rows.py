"""vLLM V1 row by row: every policy, mode and version; the specification that the fast path is tested against.

A call decides rows for the running requests first, then admits waiting ones. There is no prefill and no decode phase:
each request catches up to the tokens it knows, its drafts and, scheduled ahead, the tokens under way. What
versions do differently are switches (`sim.deployment.rules`).

Source: recorded decisions of vLLM 0.10.2, 0.19.0 and 0.33.0.
"""

from collections.abc import Sequence

from sim.deployment.engine import EngineSettings
from sim.memory.cache import KVCache
from sim.memory.hits import HitStats
from sim.scheduler.base import Batch
from sim.scheduler.hooks import Alone, Connector, Drafting, KnownLengths, Progress
from sim.scheduler.vllm.admission import admit_waiting
from sim.scheduler.vllm.output import process_output
from sim.scheduler.vllm.request import RowRequest, VllmBatch
from sim.scheduler.vllm.running import serve_running
from sim.scheduler.vllm.transfers import Transfers
from sim.scheduler.vllm.waiting import ArrivalOrder, PriorityOrder, SetAside, WaitingQueue


class RowBatching:
    """One replica's scheduler.

    **Arguments:**

    - `settings`: limits, policy and version; `cache`: the blocks.
    - `progress`: how many drafts a row has and gets accepted, and ends that the scheduler does not foresee.
    - `drafting`: speculative decoding; None: none.
    - `connector`: who brings KV that was computed elsewhere, and reads what is computed here; None: nobody.
    - `watermark_blocks`: kept free at admission while a request runs.
    """

    request_type = RowRequest
    polls = False

    def __init__(
        self,
        settings: EngineSettings,
        cache: KVCache,
        *,
        progress: Progress | None = None,
        drafting: Drafting | None = None,
        connector: Connector[RowRequest] | None = None,
        watermark_blocks: int = 0,
    ):
        self.cache = cache
        self.rules = settings.profile.scheduling
        self.connector_rules = settings.profile.connector
        self.max_num_seqs = settings.max_num_seqs
        self.budget = settings.max_num_batched_tokens
        self.max_model_len = settings.max_model_len
        self.threshold = settings.long_prefill_token_threshold
        self.chunked_prefill = settings.chunked_prefill
        self.reserve_full_input = settings.reserve_full_input
        self.by_priority = settings.scheduling_policy == "priority"
        self.asynchronous = settings.async_scheduling
        stages = settings.pipeline_parallel
        self.stagger = stages if self.rules.decode_stagger and self.asynchronous and stages > 1 else 0
        self.drafts = drafting.tokens if drafting else 0
        self.lookahead = drafting.tokens if drafting and drafting.lookahead else 0
        self.watermark_blocks = watermark_blocks
        self.progress = progress if progress is not None else KnownLengths()
        self.connected = connector is not None
        self.connector: Connector[RowRequest] = connector if connector is not None else Alone()
        self.transfers = Transfers(self)
        self.foreseen = self.progress.foreseen
        order = PriorityOrder if self.by_priority else ArrivalOrder
        aside = self.connector_rules.aside if self.connected else "none"
        self.waiting: WaitingQueue = (
            self.new_queue() if aside == "none" else SetAside(order, loads_only=aside == "loads")
        )
        self.running: list[RowRequest] = []
        self.calls = 0
        self._arrivals = 0

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.waiting) + len(self.running)

    @property
    def watches(self) -> bool:
        """Whether the loop goes on although nothing is unfinished, to hear that held blocks have been read."""
        return self.connector_rules.polls_held and bool(self.transfers.held)

    @property
    def free_blocks(self) -> int:
        """KV blocks nobody uses."""
        return self.cache.free

    @property
    def usable_blocks(self) -> int:
        """All KV blocks but the null block."""
        return self.cache.usable

    @property
    def hit_stats(self) -> HitStats:
        """Prefix-cache statistics."""
        return self.cache.hit_stats

    def common_prefix_blocks(self) -> int:
        """Blocks that all running requests share (0 where the version does not look)."""
        return self.cache.common_prefix(self.running)

    def add(self, request: RowRequest) -> None:
        """Put a new request in the waiting queue."""
        request.arrival = self._arrivals
        self._arrivals += 1
        self.waiting.add(request)
        self.connector.queued(request)

    def abort(self, request: RowRequest) -> None:
        """Take an unfinished request out and free its blocks; what is under way for it is thrown away."""
        if request.ended:
            return
        request.ended = True
        if request.running:
            request.running = False
            self.running.remove(request)
            self.transfers.part(request, False)
        else:
            self.waiting.remove(request)
            self.transfers.abandon(request)

    def schedule(self) -> VllmBatch:
        """Decide the next batch: running requests first, then the head of the queue."""
        batch = VllmBatch(self.calls)
        reserved = self.reserved_tokens()
        budget = serve_running(self, batch, self.budget - reserved) + reserved
        if not batch.preempted and self.waiting:
            admit_waiting(self, batch, budget)
        self._issue(batch)
        self.calls += 1
        batch.running = len(self.running)
        batch.waiting = len(self.waiting)
        batch.free_blocks = self.cache.free
        return batch

    def reserved_tokens(self) -> int:
        """Tokens of a call's budget that running requests leave to waiting ones."""
        return 0

    def new_queue(self) -> WaitingQueue:
        """The waiting queue, empty."""
        return PriorityOrder() if self.by_priority else ArrivalOrder()

    def repeat(self, batch: Batch[RowRequest]) -> bool:
        """Never: every call is decided row by row."""
        return False

    def complete(self, batch: Batch[RowRequest]) -> Sequence[RowRequest]:
        """Process the output of the oldest open batch; return the requests that ended with it."""
        assert isinstance(batch, VllmBatch)
        return process_output(self, batch)

    def forget(self) -> None:
        """The cache is empty; nobody may be unfinished."""
        self.cache.pool.forget()

    def report(self, received: Sequence[RowRequest], sent: Sequence[RowRequest]) -> list[RowRequest]:
        """Transfers that ended well; `transfers.report` also knows those that failed."""
        return self.transfers.report(received, sent)

    def _issue(self, batch: VllmBatch) -> None:
        """Advance the requests of all rows as if they were computed, and count the batch.

        What a row emits is fixed here: 1 + accepted tokens, unless it leaves known tokens, or tokens under way,
        uncomputed.
        """
        emitted = []
        ghosts = self.rules.ghost_rows
        for row in batch.rows:
            request = row.request
            tokens = row.tokens
            request.computed += tokens
            request.in_flight += tokens
            end = row.computed + tokens
            if row.prefill:
                batch.add_chunk(row.computed, tokens - row.drafts)
                batch.draft_tokens += row.drafts
            else:
                batch.add_decode(end)
                batch.draft_tokens += tokens - 1
            if row.kind == "x":
                # its runner goes by the counters of the row before: drafts may reach what is known
                if end < request.known:
                    continue
            else:
                if ghosts:
                    request.last_start = row.computed
                request.prefilling = end < request.known + request.placeholders
                if request.prefilling:
                    continue
            row.emits = True
            batch.emitting += 1
            if row.prefill:
                emitted.append(request)
            if row.drafts and not row.padded:
                row.accepted = self.progress.accepted(request, row.drafts)
                batch.accepted_tokens += row.accepted
            if self.asynchronous:
                request.placeholders += 1 + row.drafts
                request.drafts = self.drafts
                if self.stagger:
                    request.next_call = batch.number + self.stagger
        batch.emitted = emitted

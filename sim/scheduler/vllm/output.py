"""After a batch: deliver its tokens, take back rejected drafts, find the ends, propose new drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.scheduler.vllm.request import RowRequest, VllmBatch, VllmRow


if TYPE_CHECKING:
    from sim.scheduler.vllm.rows import RowBatching


def process_output(scheduler: RowBatching, batch: VllmBatch) -> list[RowRequest]:
    """Process the rows in order and fill the completed side of `batch`; returns the requests that ended.

    The tokens of a row belong to a request even if it has been preempted since. `follows` counts those whose request
    had its token before from another batch: the time between the two outputs is their inter-token latency.
    """
    delivered: list[tuple[RowRequest, int]] = []
    dropped: list[RowRequest] = []
    ended: list[RowRequest] = []
    emitted: list[RowRequest] = []
    follows: dict[int, int] = {}
    left_running = False
    for row in batch.rows:
        request = row.request
        if request.ended:
            if row.emits:
                dropped.append(request)
            continue
        request.in_flight -= row.tokens
        stale = request.stale > 0
        if stale:
            request.stale -= row.tokens
        if not row.emits:
            if row.drafts:
                # of a ghost: no token, so one less than none accepted (a defect of 0.10.2)
                request.computed -= row.drafts + 1
            continue
        tokens, ends = _deliver(scheduler, request, row, stale)
        delivered.append((request, tokens))
        before = request.last_batch
        if before >= 0:
            follows[before] = follows.get(before, 0) + 1
        request.last_batch = batch.number
        if row.prefill or before < 0:
            emitted.append(request)
        if ends:
            request.ended = True
            ended.append(request)
            if request.running:
                scheduler.transfers.part(request, True)
                left_running = True
            else:
                scheduler.waiting.remove(request)
                scheduler.transfers.abandon(request)
    if left_running:
        scheduler.running[:] = [request for request in scheduler.running if not request.ended]
    if scheduler.drafts and not scheduler.asynchronous:
        _propose(scheduler, batch)
    batch.delivered, batch.dropped, batch.finishing = delivered, dropped, ended
    batch.emitted, batch.follows = emitted, follows
    return ended


def _deliver(scheduler: RowBatching, request: RowRequest, row: VllmRow, stale: bool) -> tuple[int, bool]:
    """Give a request the tokens of its row; returns how many it keeps, and whether they end it."""
    rules = scheduler.rules
    rejected = row.drafts - row.accepted
    if rejected and not stale:
        if request.computed > 0:
            request.computed -= rejected
        if request.placeholders > 0:
            request.placeholders -= rejected
    sampled = 1 + row.accepted
    tokens, ends = _kept(scheduler, request, sampled)
    request.emitted += tokens
    request.known += tokens
    registers = False
    if scheduler.asynchronous and not stale:
        registers = request.placeholders > 0
        request.placeholders -= tokens
    if tokens < sampled and rules.trimmed_not_computed and not stale:
        request.computed -= sampled - tokens
    if rules.register_accepted and scheduler.drafts and not stale:
        registers = True
    if registers and request.running:
        under_way = request.in_flight if rules.drains_stale else request.placeholders
        scheduler.cache.register(request, request.computed - under_way)
    return tokens, ends


def _kept(scheduler: RowBatching, request: RowRequest, sampled: int) -> tuple[int, bool]:
    """How many of the sampled tokens come before an end, and whether there is one."""
    left = max(1, min(request.outputs - request.emitted, scheduler.max_model_len - request.known))
    tokens = min(sampled, left)
    if not scheduler.foreseen:
        for number in range(1, tokens + 1):
            if scheduler.progress.stops(request, request.emitted + number):
                return number, True
    return tokens, tokens == left


def _propose(scheduler: RowBatching, batch: VllmBatch) -> None:
    """Take up the drafts proposed after a batch that nothing overlaps."""
    ignored_in_prefill = not scheduler.rules.drafts_in_prefill
    for row in batch.rows:
        request = row.request
        if request.ended or (row.kind == "x" and not row.emits):
            continue
        emitted = 1 + row.accepted if row.emits else 0
        drafts = min(scheduler.progress.drafts(request, request.known, emitted), scheduler.drafts)
        request.drafts = 0 if request.prefilling and ignored_in_prefill else drafts

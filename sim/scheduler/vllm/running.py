"""First pass of a call: a row for each running request with tokens to compute, preempting where blocks are short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.scheduler.vllm.request import RowRequest, VllmBatch, VllmRow
from sim.scheduler.vllm.waiting import urgency


if TYPE_CHECKING:
    from sim.scheduler.vllm.rows import RowBatching


def serve_running(scheduler: RowBatching, batch: VllmBatch, budget: int) -> int:
    """Add rows to `batch` in order of admission; returns what is left of the budget.

    A request wants `known + drafts + placeholders - computed` tokens, cut at the threshold, the budget, and one token
    before `max_model_len`. One that wants nothing is passed over.
    """
    running, rows, cache = scheduler.running, batch.rows, scheduler.cache
    threshold = long_prefill_threshold(scheduler)
    lookahead = scheduler.lookahead
    last = scheduler.max_model_len - 1
    index = 0
    while index < len(running) and budget > 0:
        request = running[index]
        computed = request.computed
        if request.placeholders and _ends_under_way(request):
            index += 1
            continue
        if scheduler.stagger and batch.number < request.next_call:
            index += 1
            continue
        tokens = request.known + request.drafts + request.placeholders - computed
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget, last - computed)
        if tokens <= 0:
            index += 1
            continue
        blocks = cache.allocate(request, tokens, None, lookahead)
        while blocks is None and request.running:
            returned, index = _preempt(scheduler, batch, index)
            budget += returned
            if request.running:
                blocks = cache.allocate(request, tokens, None, lookahead)
        if blocks is None:  # it preempted itself
            if scheduler.rules.self_preemption_ends_pass:
                break
            continue
        row = VllmRow(request, tokens, computed, "c", blocks)
        if request.drafts:
            _attach_drafts(scheduler, request, row)
        rows.append(row)
        budget -= tokens
        index += 1
    return budget


def long_prefill_threshold(scheduler: RowBatching) -> int:
    """Most tokens of one row; 0: no bound."""
    if scheduler.threshold and not scheduler.rules.threshold_when_alone and scheduler.unfinished == 1:
        return 0
    return scheduler.threshold


def _ends_under_way(request: RowRequest) -> bool:
    """Whether rows under way bring the last token even if all their drafts are rejected.

    `computed + 1` tokens are known after them, less the `placeholders - 1` that may be drafts.
    """
    return request.computed + 2 - request.placeholders >= request.prompt + request.outputs


def _attach_drafts(scheduler: RowBatching, request: RowRequest, row: VllmRow) -> None:
    """Let the row verify the drafts that its tokens reach."""
    reached = row.computed + row.tokens - request.known - request.placeholders
    if reached > 0:
        row.drafts = min(reached, request.drafts)
    if not scheduler.rules.drafts_in_prefill:
        request.drafts = 0
    elif reached > 0:
        request.drafts = row.drafts


def _preempt(scheduler: RowBatching, batch: VllmBatch, index: int) -> tuple[int, int]:
    """Preempt one running request, the last or the least urgent, while the one at `index` needs blocks.

    Returns the budget that the victim's row gives back, and the new index.
    """
    running = scheduler.running
    returned = 0
    if scheduler.by_priority:
        victim = max(running, key=urgency)
        place = running.index(victim)
        del running[place]
        row = next((row for row in batch.rows if row.request is victim), None)
        if row is None:
            if place < index and not scheduler.rules.missed_turn:
                index -= 1
        elif scheduler.rules.ghost_rows:
            # the model runner still has the request, with the counters of its row before
            row.kind = "x"
            row.computed = victim.last_start
            row.blocks = [[] for _ in row.blocks]
        else:
            batch.rows.remove(row)
            returned = row.tokens
            index -= 1
    else:
        victim = running.pop()
    batch.preempted = [*batch.preempted, victim]
    if victim.computed >= victim.target:
        batch.interrupted = [*batch.interrupted, victim]
    _set_back(scheduler, victim)
    return returned, index


def _set_back(scheduler: RowBatching, victim: RowRequest) -> None:
    """Back to the waiting queue, with nothing computed; emitted tokens are kept."""
    rules = scheduler.rules
    scheduler.connector.preempted(victim)
    scheduler.cache.release(victim)
    victim.computed = 0
    victim.preemptions += 1
    victim.running = False
    if not rules.drafts_in_prefill:
        victim.drafts = 0
    if rules.drains_stale:
        victim.placeholders = 0
        victim.stale = victim.in_flight
    scheduler.waiting.put_back(victim)

"""Second pass of a call, if nobody was preempted in the first: waiting requests enter while there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.scheduler.hooks import NOTHING
from sim.scheduler.vllm.request import RowRequest, VllmBatch, VllmRow
from sim.scheduler.vllm.running import long_prefill_threshold


if TYPE_CHECKING:
    from sim.scheduler.vllm.rows import RowBatching


def admit_waiting(scheduler: RowBatching, batch: VllmBatch, budget: int) -> None:
    """Take the head of the queue while seats, budget and blocks last; nobody passes a blocked head.

    Passed over, and put back afterwards, are those that the version skips and those whose KV is on its way.
    """
    waiting, running, cache, rules = scheduler.waiting, scheduler.running, scheduler.cache, scheduler.rules
    threshold = long_prefill_threshold(scheduler)
    served = len(batch.rows)
    admitted: list[RowRequest] = []
    passed_over: list[RowRequest] = []
    while waiting and budget > 0 and len(running) < scheduler.max_num_seqs:
        request = waiting.head()
        if request.stale:
            passed_over.append(waiting.pop())
            continue
        if request.loads:
            if not request.reported:
                passed_over.append(waiting.pop())
                continue
            scheduler.transfers.take_up(request)
        hit = cache.lookup(request) if request.computed == 0 else None
        external = scheduler.connector.look_up(request, hit.tokens) if hit else NOTHING
        if external is None:
            passed_over.append(waiting.pop())
            continue
        spare = scheduler.watermark_blocks if running else 0
        if scheduler.reserve_full_input and hit and not cache.fits_full_input(request, hit, spare, external.tokens):
            break
        if hit and external.loads:
            if not scheduler.transfers.start(request, hit, external, spare):
                break
            passed_over.append(waiting.pop())
            scheduler.connector.allocated(request, external, cache.external_blocks(hit, external.tokens))
            continue
        computed = request.computed + hit.tokens + external.tokens if hit else request.computed
        tokens = request.known - computed
        padded = tokens == 1 and _pads(scheduler, batch.rows[:served], computed, threshold)
        if padded:
            tokens += scheduler.drafts
            if tokens > budget:
                break
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > budget:
            if not scheduler.chunked_prefill:
                if not rules.skip_oversized:
                    break
                passed_over.append(waiting.pop())
                continue
            tokens = budget
        lookahead = scheduler.lookahead if rules.lookahead_at_admission or hit is None else 0
        if cache.allocate(request, tokens, hit, lookahead, spare, external.tokens) is None:
            break
        waiting.pop()
        loaded = scheduler.transfers.loading.pop(request.index, None) is not None
        running.append(request)
        admitted.append(request)
        request.running = True
        request.target = request.known
        request.computed = computed
        if request.preemptions == 0:
            request.cached = computed
        if hit and external.tokens:
            scheduler.connector.allocated(request, external, cache.external_blocks(hit, external.tokens))
        row = VllmRow(request, tokens, computed, "r" if request.preemptions else "n", [*map(list, request.tables)])
        if tokens == 1 and (loaded or external.tokens):
            row.prefill = False  # one token on all of its context: to the device it is a decode
        if padded:
            row.padded = True
            row.drafts = scheduler.drafts
        batch.rows.append(row)
        budget -= tokens
    batch.admitted = admitted
    if passed_over:
        waiting.restore(passed_over, rules.aside_reversed)


def _pads(scheduler: RowBatching, served: list[VllmRow], computed: int, threshold: int) -> bool:
    """Whether an admission with one token left is padded to a decode row with drafts.

    It is if all running requests served in this call decode, at least one does or the new one brings cached tokens, and
    the row ends below `max_model_len`. (With a threshold below the padded row vLLM 0.33 ends in a failed assertion.)
    """
    drafts = scheduler.drafts
    if not drafts or not scheduler.rules.pads_admissions or computed + drafts + 2 > scheduler.max_model_len:
        return False
    if 0 < threshold <= drafts:
        return False
    if not served:
        return computed > 0
    return not any(row.request.prefilling for row in served)

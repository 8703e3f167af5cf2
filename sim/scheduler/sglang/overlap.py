"""What SGLang's overlap loop changes: a batch is launched before the output of the one before it is processed."""

from sim.scheduler.sglang.request import SglangBatch, SglangRequest
from sim.scheduler.sglang.running import Running


def ending_rows(pending: SglangBatch | None, running: Running) -> list[SglangRequest]:
    """Running requests that the pending batch takes to the length they are allowed: they need no further row."""
    if pending is None or not pending.finishing:
        return []
    return [r for r in pending.finishing if r.outputs >= r.max_new and r.index in running.rows]


def unfollow(batch: SglangBatch, before: int) -> None:
    """One row less that had its token before from the batch `before`."""
    batch.follows[before] -= 1
    if not batch.follows[before]:
        del batch.follows[before]


def lose_token(pending: SglangBatch, request: SglangRequest, before: int) -> None:
    """The token under way for a request that is being retracted is thrown away, and will be made again.

    It is then as if the batch had no row of it: its last token came from the batch `before`, or from that before
    the prefill if `pending` is that.
    """
    pending.dropped.append(request)
    if request in pending.emitted:
        before = request.before
    pending.forget(request)
    if before >= 0:
        unfollow(pending, before)
    request.last_batch = before

"""Conservation, checked in every run: nothing is lost, nothing is counted twice, no clock runs backwards."""

from collections.abc import Sequence

import numpy as np

from sim.report.result import FINISHED, OPEN, RequestTable, StageTable, StepTable, TransferTable
from sim.scheduler.base import Scheduler
from sim.workload.sessions.columns import Sessions


class ConservationError(RuntimeError):
    """An invariant of the simulation was broken: a defect of the simulator, not of the input."""


def check_conservation(
    requests: RequestTable,
    steps: StepTable,
    schedulers: Sequence[Scheduler],
    *,
    unseen_tokens: int = 0,
    accepted_tokens: int = 0,
    ends: int | None = None,
    cut_tokens: int = 0,
    committed: int | None = None,
    stages: Sequence[tuple[int, int, StageTable | None]] = (),
    transfers: TransferTable | None = None,
    every_byte: bool = True,
    sessions: Sessions | None = None,
    pools: bool = False,
) -> dict[str, bool]:
    """Check one finished run; returns what was checked, raises `ConservationError` on the first failure.

    - every request ended exactly once (finished, rejected or given up; `ends` were counted), in the order arrival <=
      queued <= scheduled < first token <= finish;
    - tokens out: the emitting rows of all steps, less `unseen_tokens` (rows of requests that were gone, the token of a
      prefill that is handed over), and `accepted_tokens` beyond one per row, give the requested output tokens, plus
      nothing (at most `cut_tokens` of requests that did not end, or began again, come on top);
    - with drafts, the tokens that rows kept (`committed`) are those that were emitted;
    - every block is free again;
    - batches of a replica follow each other, and in a pipeline on each stage, and each goes from stage to stage
      (`stages`: of the steps from one row up to another, those of a pool);
    - of `transfers`: what was handed over was asked for, begun and received once, in the order of its engine, before
      its first token; `every_byte` of it, and of what was broken off, counts on each link it went over;
    - where requests end with their prompt (`pools`), no row emits, and every prompt is computed: once, where nobody was
      preempted and nobody left half-way;
    - a round of `sessions` is sent its latency after the end of the one before, or never, where that did not finish.
    """
    done = requests.status == FINISHED
    emitted = int(steps.emitting.sum()) - unseen_tokens + accepted_tokens
    wanted = int(requests.output_tokens[done].sum())
    same = steps.replica[1:] == steps.replica[:-1]
    r = requests
    checks = {
        "every request ended once": not bool((requests.status == OPEN).any())
        and (ends is None or ends == len(requests.status)),
        "times of a request are in order": bool(
            (r.arrival_ns <= r.queued_ns)[done].all()
            and (r.queued_ns <= r.scheduled_ns)[done].all()
            and (r.scheduled_ns < r.first_token_ns)[done].all()
            and (r.first_token_ns <= r.finish_ns)[done].all()
        ),
        "tokens out = tokens asked for": _computed(r, steps, cut_tokens)
        if pools
        else 0 <= emitted - wanted <= cut_tokens,
        "every block is free again": all(s.free_blocks == s.usable_blocks for s in schedulers),
        "nobody is left in a queue": all(s.unfinished == 0 for s in schedulers),
        "clocks never run backwards": all(
            _in_order(steps.start_ns[a:b], steps.end_ns[a:b], same[a : max(a, b - 1)])
            if found is None
            else _in_order(found.start_ns, found.end_ns, same[a : max(a, b - 1), None])
            and bool((found.end_ns[:, :-1] <= found.start_ns[:, 1:]).all())
            for a, b, found in stages or [(0, len(steps), None)]
        ),
    }
    if committed is not None:
        checks["tokens committed = tokens emitted"] = committed == emitted
    if transfers is not None:
        checks["what is handed over arrives once"] = _arrives(requests, transfers)
        checks["bytes on links = bytes sent"] = every_byte
    if sessions is not None:
        checks["rounds of a session follow each other"] = _follow(requests, sessions)
    for name, holds in checks.items():
        if not holds:
            raise ConservationError(f"conservation broken: {name} (emitted {emitted} of {wanted} tokens)")
    return checks


def _computed(requests: RequestTable, steps: StepTable, cut_tokens: int) -> bool:
    """Whether steps emitted nothing, and computed the prompts of those that finished, less what was found."""
    done, begun = requests.status == FINISHED, requests.scheduled_ns >= 0
    need = int((requests.prompt_tokens - requests.cached_tokens)[done].sum())
    extra = int(steps.prefill_tokens.sum()) - need
    once = not cut_tokens and not steps.preempted.any() and bool((begun == done).all())
    silent = not (steps.emitting.any() or steps.decodes.any())
    return silent and (extra == 0 if once else extra >= 0)


def _follow(requests: RequestTable, sessions: Sessions) -> bool:
    """Whether every further round was sent when it should have been, and only then."""
    later = np.flatnonzero(~sessions.begins)
    went_on = requests.status[later - 1] == FINISHED
    sent_ns = requests.finish_ns[later - 1] + sessions.latency_ns[later]
    return bool(
        requests.sent[sessions.first[:-1]].all()
        and (requests.sent[later] == went_on).all()
        and (requests.arrival_ns[later] == np.where(went_on, sent_ns, -1)).all()
    )


def _arrives(requests: RequestTable, t: TransferTable) -> bool:
    """Whether every finished request that was prefilled elsewhere went all the way, in order."""
    ends = (t.received_ns, t.seated_ns, requests.first_token_ns)
    if t.decode_first:
        way = (t.queued_ns, t.allocated_ns, requests.queued_ns, t.prefilled_ns, *ends)
    else:
        way = (t.prefilled_ns, t.queued_ns, t.allocated_ns, t.begun_ns, *ends)
    moved = (requests.status == FINISHED) & (t.source >= 0)
    return all(bool((one[moved] <= other[moved]).all()) for one, other in zip(way, way[1:], strict=False)) and bool(
        (t.prefilled_ns[moved] > 0).all() and (t.begun_ns[moved] >= t.allocated_ns[moved]).all()
    )


def _in_order(start_ns: np.ndarray, end_ns: np.ndarray, same: np.ndarray) -> bool:
    """Whether each row starts when the one before has ended, where it is of the same replica."""
    between_ns = np.where(same, start_ns[1:] - end_ns[:-1], 0)
    return bool((start_ns <= end_ns).all() and (between_ns >= 0).all())

"""From a lane's log to what a person asks for: times per request, inter-token latencies, the table of steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from sim.report.result import ABORTED, FINISHED, REJECTED, RequestTable, StepTable
from sim.scan.jobs import LaneJob, servable
from sim.scan.loop import Ended
from sim.scan.pack import Graphs, Unit
from sim.scan.step import COMPLETES, DROPS, DROPS_PART, EVENT_BITS, RUNS


class Unbalanced(RuntimeError):
    """Blocks, requests or tokens were lost or counted twice: a defect of the simulator, not of the input."""


@dataclass(frozen=True, eq=False)
class UnitRun:
    """One replica's run. Request arrays have the axis of the unit's requests, step arrays that of its steps; ns."""

    sent_ns: np.ndarray
    queued_ns: np.ndarray
    scheduled_ns: np.ndarray
    first_token_ns: np.ndarray
    finish_ns: np.ndarray
    preemptions: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    itl_ns: np.ndarray
    itl_count: np.ndarray
    steps: StepTable | None


@dataclass(frozen=True, eq=False)
class LaneRun:
    """One job's run: its requests (all replicas, rejected ones too), all inter-token latencies as values and
    multiplicities, numbers of steps and preemptions, the last step's end, and the steps if they were logged."""

    requests: RequestTable
    itl_ns: np.ndarray
    itl_count: np.ndarray
    step_count: int
    preemptions: int
    makespan_ns: int
    steps: StepTable | None


def prices_fail(ended: Ended) -> bool:
    """Whether some step has a negative price, so that the clock runs backwards."""
    ends = ended.time_ns[ended.time_ns >= 0]
    return bool(np.any(np.diff(ends) < 0))


def recover_unit(ended: Ended, unit: Unit, job: LaneJob, graphs: Graphs) -> UnitRun:
    """All times of a unit that ran to its end. Raises `Unbalanced` if something was lost on the way."""
    _check_balance(ended, unit, job)
    count = len(unit.request)
    executed = ended.time_ns >= 0
    end_ns = ended.time_ns[executed].astype(np.int64)
    step_at = np.cumsum(executed) - executed
    at = np.flatnonzero(ended.event & ((1 << EVENT_BITS) - 1))
    bits, subject, step = ended.event[at], ended.event[at] >> EVENT_BITS, step_at[at]

    runs, completes, drops = (np.flatnonzero(bits & bit) for bit in (RUNS, COMPLETES, DROPS))
    scheduled, first, born = (np.full(count, -1) for _ in range(3))
    scheduled[subject[runs][::-1]] = step[runs][::-1]
    first[subject[completes][::-1]] = step[completes][::-1]
    born[subject[completes]] = step[completes]
    if min(scheduled.min(), first.min()) < 0:
        raise Unbalanced(f"{int((first < 0).sum())} of {count} requests never emitted a token")
    dropped = np.bincount(subject[drops], step[drops], count) - np.bincount(subject[completes], step[completes], count)
    last = born + unit.outputs - 1 - (dropped + born).astype(np.int64)
    preemptions = np.bincount(subject[np.flatnonzero(bits & (DROPS | DROPS_PART))], minlength=count)

    finish_ns = end_ns[last]
    sent_ns = unit.arrival_ns - job.pickup_ns
    if job.concurrency is not None and job.concurrency < count:
        sent_ns = sent_ns.copy()
        released = np.sort(finish_ns)[: count - job.concurrency]
        sent_ns[job.concurrency :] = np.maximum(sent_ns[job.concurrency :], released)
    arrival_ns = sent_ns + job.pickup_ns
    start_ns = np.concatenate([[0], end_ns[:-1]])
    np.maximum.at(start_ns, scheduled, arrival_ns)  # after an idle time a step starts at an arrival
    under_way = np.searchsorted(end_ns, arrival_ns)
    decodes = _decodes(len(end_ns), step[completes], step[drops], last)
    itl_ns, itl_count = _inter_token(end_ns, decodes, subject, step, completes, drops)
    return UnitRun(
        sent_ns=sent_ns,
        queued_ns=np.where(arrival_ns <= start_ns[under_way], arrival_ns, end_ns[under_way]),
        scheduled_ns=start_ns[scheduled],
        first_token_ns=end_ns[first],
        finish_ns=finish_ns,
        preemptions=preemptions,
        start_ns=start_ns,
        end_ns=end_ns,
        itl_ns=itl_ns,
        itl_count=itl_count,
        steps=_step_table(ended, unit, executed, start_ns, end_ns, arrival_ns, graphs),
    )


def _check_balance(ended: Ended, unit: Unit, job: LaneJob) -> None:
    """Each request ended once, every block is free again, tokens computed = tokens asked for."""
    wanted = int((unit.prompt + unit.outputs - 1).sum())
    for name, got, want in (
        ("finished requests", ended.finished, len(unit.request)),
        ("free blocks", ended.free_blocks, job.usable_blocks),
        ("computed tokens", int(ended.computed), wanted),
    ):
        if got != want:
            raise Unbalanced(f"{name} at the end of a lane: wanted {want}, got {got} (job {unit.job}, replica {unit.replica})")


def _decodes(steps: int, born: np.ndarray, dropped: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Decode rows of each step: a request decodes from the step after its prefill to its last, or until it is dropped."""
    change = np.bincount(born + 1, minlength=steps + 1)
    change = change - np.bincount(dropped, minlength=len(change))
    return np.cumsum(change - np.bincount(last + 1, minlength=len(change)))[:steps]


def _inter_token(end_ns, decodes, subject, step, completes, drops) -> tuple[np.ndarray, np.ndarray]:
    """Distances of consecutive tokens, with multiplicities.

    Decodes of a step got their last token from the step before; a request that resumes, from the one before it was dropped.
    """
    gaps, counts = np.diff(end_ns), decodes[1:]
    used = counts > 0
    order = completes[np.argsort(subject[completes], kind="stable")]
    again = order[1:][subject[order[1:]] == subject[order[:-1]]]
    before = drops[np.argsort(subject[drops], kind="stable")]
    resumed = end_ns[step[again]] - end_ns[step[before] - 1]
    return np.concatenate([gaps[used], resumed]), np.concatenate([counts[used], np.ones(len(resumed), np.int64)])


def _step_table(ended, unit, executed, start_ns, end_ns, arrival_ns, graphs) -> StepTable | None:
    if ended.steps is None:
        return None
    log = {name: column[executed].astype(np.int64) for name, column in ended.steps.items()}
    pure = (log["prefill_chunks"] == 0).astype(np.int64)
    tokens = log["prefill_tokens"] + log["decodes"]
    arrived = np.searchsorted(np.sort(arrival_ns), start_ns, side="right")
    log |= {
        "replica": np.full(len(end_ns), unit.replica),
        "start_ns": start_ns,
        "end_ns": end_ns,
        "padded_tokens": graphs.padded[pure, tokens],
        "graph_mode": graphs.mode[pure, tokens],
        "waiting": arrived - log["running"] - log["finished"],
    }
    return StepTable(**{field.name: log[field.name] for field in fields(StepTable)})


def merge_units(job: LaneJob, units: Sequence[Unit], runs: Sequence[UnitRun]) -> LaneRun:
    """One job from its replicas, in order, with the requests that could not be served."""
    served, outputs = servable(job)
    count = len(served)
    columns = {field.name: np.full(count, -1, np.int64) for field in fields(RequestTable)}
    columns["prompt_tokens"] = job.prompt_tokens.astype(np.int64)
    columns["output_tokens"] = np.where(served, outputs, job.output_tokens)
    columns["status"] = np.where(served, ABORTED, REJECTED)
    columns["arrival_ns"] = _sent_ns(job, served, runs)
    columns["cached_tokens"] = np.zeros(count, np.int64)
    columns["preemptions"] = np.zeros(count, np.int64)
    for unit, run in zip(units, runs, strict=True):
        mine = unit.request
        for name in ("queued_ns", "scheduled_ns", "first_token_ns", "finish_ns", "preemptions"):
            columns[name][mine] = getattr(run, name)
        columns["arrival_ns"][mine] = run.sent_ns
        columns["replica"][mine] = unit.replica
        columns["status"][mine] = FINISHED
    steps = [run.steps for run in runs if run.steps is not None]
    return LaneRun(
        requests=RequestTable(**columns),
        itl_ns=np.concatenate([np.zeros(0, np.int64), *(run.itl_ns for run in runs)]),
        itl_count=np.concatenate([np.zeros(0, np.int64), *(run.itl_count for run in runs)]),
        step_count=sum(len(run.end_ns) for run in runs),
        preemptions=sum(int(run.preemptions.sum()) for run in runs),
        makespan_ns=max((int(run.end_ns[-1]) for run in runs), default=0),
        steps=StepTable(**{f.name: np.concatenate([getattr(s, f.name) for s in steps]) for f in fields(StepTable)})
        if steps
        else None,
    )


def _sent_ns(job: LaneJob, served: np.ndarray, runs: Sequence[UnitRun]) -> np.ndarray:
    """When each request was sent; one that is rejected ends at once and holds up nobody."""
    sent = job.arrival_ns.astype(np.int64)
    if job.concurrency is None or not runs:
        return sent
    ends = np.sort(runs[0].finish_ns)
    behind = np.cumsum(served) - served - job.concurrency
    held = behind >= 0
    return np.where(held, np.maximum(sent, ends[np.maximum(behind, 0)]), sent)

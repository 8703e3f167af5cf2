"""From the lanes' logs to what a person asks for: times per request, inter-token latencies, the table of steps.

Lanes that end in one window are recovered together: their requests and steps are numbered through, lane after lane.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from sim.report.result import FINISHED, LOOKUPS, REJECTED, RequestTable, StepTable
from sim.scan.jobs import LaneJob
from sim.scan.loop import Ended
from sim.scan.pack import Graphs, Unit
from sim.scan.step import COMPLETES, DROPS, DROPS_PART, EVENT_BITS, RUNS


TOGETHER = 16
"""Lanes recovered at once: enough to spread numpy's fixed cost, few enough to stay in the caches."""


class Unbalanced(RuntimeError):
    """Blocks, requests or tokens were lost or counted twice: a defect of the simulator, not of the input."""


@dataclass(frozen=True, eq=False)
class UnitRun:
    """One replica's run. Request arrays have the axis of the unit's requests; ns."""

    unit: Unit
    requests: dict[str, np.ndarray]
    itl_ns: np.ndarray
    itl_count: np.ndarray
    step_count: int
    makespan_ns: int
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


@dataclass(frozen=True, eq=False)
class _Lives:
    """What happened to requests, in order of time within each: `subject` the request, `step` when.

    `born`: it completes a prefill, `dropped`: it is preempted as a decode. Per request: steps of its first schedule,
    first token and last token, and how often it was preempted.
    """

    born_subject: np.ndarray
    born_step: np.ndarray
    dropped_subject: np.ndarray
    dropped_step: np.ndarray
    scheduled: np.ndarray
    first: np.ndarray
    last: np.ndarray
    preemptions: np.ndarray


def clock_runs_back(ended: Ended) -> bool:
    """Whether some step had a negative price."""
    return bool(np.any(np.diff(ended.time_ns[ended.time_ns >= 0]) < 0))


def recover_units(
    ended: Sequence[Ended], units: Sequence[Unit], jobs: Sequence[LaneJob], graphs: Sequence[Graphs]
) -> list[UnitRun]:
    """All times of units that ran to their end; the arguments are parallel.

    **Raises:** `Unbalanced` if something was lost.
    """
    runs = []
    for i in range(0, len(ended), TOGETHER):
        group = slice(i, i + TOGETHER)
        runs += _recover(ended[group], units[group], jobs[group], graphs[group])
    return runs


def _recover(
    ended: Sequence[Ended], units: Sequence[Unit], jobs: Sequence[LaneJob], graphs: Sequence[Graphs]
) -> list[UnitRun]:
    for one, unit, job in zip(ended, units, jobs, strict=True):
        _check_balance(one, unit, job)
    sizes = np.array([len(unit.request) for unit in units])
    request_at = np.cumsum(sizes) - sizes
    owner = np.repeat(np.arange(len(units)), sizes)
    time_ns = np.concatenate([one.time_ns for one in ended])
    executed = time_ns >= 0
    iterations = np.array([len(one.time_ns) for one in ended])
    steps_done = np.cumsum(executed, dtype=np.int32)
    step_ends = steps_done[np.cumsum(iterations) - 1]
    step_at = np.concatenate([[0], step_ends[:-1]])
    end_ns = time_ns[executed].astype(np.int64)

    event = np.concatenate([one.event for one in ended])
    at = np.flatnonzero((event & ((1 << EVENT_BITS) - 1)) > 0)
    subject = (event[at] >> EVENT_BITS) + request_at[np.searchsorted(np.cumsum(iterations), at, side="right")]
    step = steps_done[at] - executed[at]
    lives = _lives(event[at], subject, step, np.concatenate([unit.outputs for unit in units]))
    finish_ns = end_ns[lives.last]
    pickup_ns = np.array([job.pickup_ns for job in jobs])[owner]
    arrival_ns = np.concatenate([unit.arrival_ns for unit in units])
    released = [
        _released(one, job.concurrency) for one, job in zip(np.split(finish_ns, request_at[1:]), jobs, strict=True)
    ]
    arrival_ns = np.maximum(arrival_ns, np.concatenate(released) + pickup_ns)
    before_ns = np.concatenate([[0], end_ns[:-1]])
    before_ns[step_at] = 0
    start_ns = before_ns.copy()
    np.maximum.at(start_ns, lives.scheduled, arrival_ns)  # after an idle time a step starts at an arrival
    under_way = np.concatenate(
        [
            start + np.searchsorted(end_ns[start:end], arrival_ns[r : r + size])
            for start, end, r, size in zip(step_at, step_ends, request_at, sizes, strict=True)
        ]
    )
    columns = {
        "arrival_ns": arrival_ns - pickup_ns,
        "queued_ns": np.where(arrival_ns <= start_ns[under_way], arrival_ns, end_ns[under_way]),
        "scheduled_ns": start_ns[lives.scheduled],
        "first_token_ns": end_ns[lives.first],
        "finish_ns": finish_ns,
        "preemptions": lives.preemptions,
    }
    decodes = _decodes(len(end_ns), lives)
    decoding = np.flatnonzero(decodes > 0)
    decoding_at = np.searchsorted(decoding, np.append(step_at, len(end_ns)))
    gap_ns, gap_count = (end_ns - before_ns)[decoding], decodes[decoding]
    resumed, resumed_ns = _resumed(end_ns, lives)
    resumed_at = np.searchsorted(resumed, np.append(request_at, len(owner)))
    logs = _step_columns(ended, executed, start_ns, end_ns)
    runs = []
    for i, unit in enumerate(units):
        mine, steps = slice(request_at[i], request_at[i] + sizes[i]), slice(step_at[i], step_ends[i])
        gaps = slice(decoding_at[i], decoding_at[i + 1])
        extra = resumed_ns[resumed_at[i] : resumed_at[i + 1]]
        runs.append(
            UnitRun(
                unit=unit,
                requests={name: column[mine] for name, column in columns.items()},
                itl_ns=np.concatenate([gap_ns[gaps], extra]),
                itl_count=np.concatenate([gap_count[gaps], np.ones(len(extra), np.int64)]),
                step_count=int(step_ends[i] - step_at[i]),
                makespan_ns=int(end_ns[step_ends[i] - 1]),
                steps=_step_table(
                    unit,
                    {k: v[steps] for k, v in logs.items()},
                    arrival_ns[mine],
                    lives.last[mine] - step_at[i],
                    jobs[i].block_size,
                    graphs[i],
                )
                if logs
                else None,
            )
        )
    return runs


def _check_balance(ended: Ended, unit: Unit, job: LaneJob) -> None:
    """Each request ended once, every block is free again, tokens computed = tokens asked for."""
    for name, got, want in (
        ("finished requests", ended.finished, len(unit.request)),
        ("free blocks", ended.free_blocks, job.usable_blocks),
        ("computed tokens", int(ended.computed), unit.tokens),
    ):
        if got != want:
            raise Unbalanced(f"{name} at the end of job {unit.job}, replica {unit.replica}: wanted {want}, got {got}")


def _lives(bits: np.ndarray, subject: np.ndarray, step: np.ndarray, outputs: np.ndarray) -> _Lives:
    """Read the events, in order: `bits` of `Log.event`, request and step of each."""
    count = len(outputs)
    runs, completes, drops = ((bits & bit) > 0 for bit in (RUNS, COMPLETES, DROPS))
    born_subject, born_step = subject[completes], step[completes]
    dropped_subject, dropped_step = subject[drops], step[drops]
    scheduled, first, born = np.full((3, count), -1)
    scheduled[subject[runs][::-1]] = step[runs][::-1]
    first[born_subject[::-1]] = born_step[::-1]
    born[born_subject] = born_step
    if count and first.min() < 0:
        raise Unbalanced(f"{int((first < 0).sum())} of {count} requests never emitted a token")
    # tokens of lives before the last one: the steps between births and drops
    lived = np.bincount(dropped_subject, dropped_step, count) - np.bincount(born_subject, born_step, count) + born
    return _Lives(
        born_subject=born_subject,
        born_step=born_step,
        dropped_subject=dropped_subject,
        dropped_step=dropped_step,
        scheduled=scheduled,
        first=first,
        last=born + outputs - 1 - lived.astype(np.int64),
        preemptions=np.bincount(subject[(bits & (DROPS | DROPS_PART)) > 0], minlength=count),
    )


def _released(finish_ns: np.ndarray, limit: int | None) -> np.ndarray:
    """When each request could be sent in a closed loop of K: when the (i - K + 1)-th has ended; the first at 0."""
    if limit is None or limit >= len(finish_ns):
        return np.zeros(len(finish_ns), np.int64)
    return np.concatenate([np.zeros(limit, np.int64), np.sort(finish_ns)[:-limit]])


def _decodes(steps: int, lives: _Lives) -> np.ndarray:
    """Decode rows of each step: a request decodes from the step after its prefill to its last, or until its drop."""
    ends = np.concatenate([lives.last + 1, lives.dropped_step])
    change = np.bincount(lives.born_step + 1, minlength=steps + 1) - np.bincount(ends, minlength=steps + 1)
    return np.cumsum(change[:steps])


def _resumed(end_ns: np.ndarray, lives: _Lives) -> tuple[np.ndarray, np.ndarray]:
    """Requests that went on after a preemption, ascending, and the gap: from the end of the step before the drop."""
    order = np.argsort(lives.born_subject, kind="stable")
    subject, step = lives.born_subject[order], lives.born_step[order]
    again = np.flatnonzero(subject[1:] == subject[:-1]) + 1
    before = np.argsort(lives.dropped_subject, kind="stable")
    return subject[again], end_ns[step[again]] - end_ns[lives.dropped_step[before] - 1]


def _step_columns(ended: Sequence[Ended], executed: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray):
    """The logged columns of all executed steps as int64, or nothing."""
    logs = [one.steps for one in ended if one.steps is not None]
    if not logs:
        return {}
    columns = {name: np.concatenate([log[name] for log in logs])[executed].astype(np.int64) for name in logs[0]}
    return columns | {"start_ns": start_ns, "end_ns": end_ns}


def _step_table(
    unit: Unit, log: dict[str, np.ndarray], arrival_ns: np.ndarray, last: np.ndarray, block_size: int, graphs: Graphs
) -> StepTable:
    """`last`: the step of each request's last token, which ends it; it then holds all its tokens but that one."""
    pure = (log["prefill_chunks"] == 0).astype(np.int64)
    tokens = log["prefill_tokens"] + log["decodes"]
    arrived = np.searchsorted(np.sort(arrival_ns), log["start_ns"], side="right")
    held = -(-(unit.prompt + unit.outputs - 1) // block_size)
    absent = (*LOOKUPS, "draft_tokens", "accepted_tokens")  # no prefixes are reused here, and nothing is drafted
    nothing = dict.fromkeys(absent, np.zeros(len(tokens), np.int64))
    log = (
        nothing
        | log
        | {
            "issued_ns": log["start_ns"],
            "ended": np.bincount(last, minlength=len(tokens)),
            "freed_blocks": np.bincount(last, held, len(tokens)).astype(np.int64),
            "replica": np.full(len(tokens), unit.replica),
            "padded_tokens": graphs.padded[pure, tokens],
            "graph_mode": graphs.mode[pure, tokens],
            "waiting": arrived - log["running"] - log["finished"],
        }
    )
    return StepTable(**{field.name: log[field.name] for field in fields(StepTable)})


def merge_units(
    job: LaneJob, served: np.ndarray, outputs: np.ndarray, runs: Sequence[UnitRun], log_steps: bool
) -> LaneRun:
    """One job from its replicas, in order, with the requests that could not be served. `outputs`: cut tokens.

    With `log_steps` there is a table of steps even where no step ran.
    """
    count = len(served)
    whole = served.all()
    columns = {
        "arrival_ns": _sent_ns(job, served, runs),
        "prompt_tokens": np.asarray(job.prompt_tokens, np.int64),
        "output_tokens": outputs if whole else np.where(served, outputs, job.output_tokens),
        "cached_tokens": np.zeros(count, np.int64),
        "status": np.where(served, FINISHED, REJECTED),
        "replica": np.full(count, -1),
        "preemptions": np.zeros(count, np.int64),
    }
    columns |= {name: np.full(count, -1) for name in ("queued_ns", "scheduled_ns", "first_token_ns", "finish_ns")}
    for run in runs:
        mine = run.unit.request
        for name, column in run.requests.items():
            columns[name][mine] = column
        columns["replica"][mine] = run.unit.replica
    nothing = np.zeros(0, np.int64)
    return LaneRun(
        requests=RequestTable(**columns),
        itl_ns=np.concatenate([nothing, *(run.itl_ns for run in runs)]),
        itl_count=np.concatenate([nothing, *(run.itl_count for run in runs)]),
        step_count=sum(run.step_count for run in runs),
        preemptions=int(columns["preemptions"].sum()),
        makespan_ns=max((run.makespan_ns for run in runs), default=0),
        steps=_one_after_another([run.steps for run in runs if run.steps is not None]) if log_steps else None,
    )


def _one_after_another(tables: Sequence[StepTable]) -> StepTable:
    if len(tables) == 1:
        return tables[0]
    names = [field.name for field in fields(StepTable)]
    nothing = np.zeros(0, np.int64)
    return StepTable(**{name: np.concatenate([nothing, *(getattr(table, name) for table in tables)]) for name in names})


def _sent_ns(job: LaneJob, served: np.ndarray, runs: Sequence[UnitRun]) -> np.ndarray:
    """When each request was sent; one that is rejected ends at once and holds up nobody."""
    sent = job.arrival_ns.astype(np.int64)
    if job.concurrency is None or not runs or served.all():
        return sent
    ends = np.sort(runs[0].requests["finish_ns"])
    behind = np.cumsum(served) - served - job.concurrency
    held = behind >= 0
    return np.where(held, np.maximum(sent, ends[np.maximum(behind, 0)]), sent)

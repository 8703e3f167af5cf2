"""A run that is stopped when few of its sessions are left, and what those still have to do somewhere else.

Each replica stops at the end of the step that is under way. What a request had by then follows from the steps: from its
first token to its last it has one token of every step of its replica, which `emitted_by` checks for all that ended.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from sim.report.result import FINISHED, RequestTable, StepTable
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import Workload


@dataclass(frozen=True)
class Stop:
    """A run stopped at `stop_ns`, when its last replica has ended its step; `live` sessions go on.

    `rest`: the workload they still have, None if there is none: the round that was under way has what was said in it as
    a prompt, and rounds that waited for their environment come when that is done, counted from where the rest begins.
    `done_tokens` were emitted before; `again_tokens` had been computed and are computed again.
    """

    stop_ns: int
    live: int
    rest: Workload | None
    done_tokens: int
    again_tokens: int


def ends_ns(workload: Workload, requests: RequestTable) -> Int[np.ndarray, " session"]:
    """When each session was over."""
    return np.asarray(requests.finish_ns)[_sessions(workload).last]


def switch_ns(workload: Workload, requests: RequestTable, share: float) -> int | None:
    """When the share of sessions that are live first is below `share`; None: not before the last has ended."""
    ends = np.sort(ends_ns(workload, requests))
    live = len(ends) - 1 - np.arange(len(ends))
    below = np.flatnonzero((live < share * len(ends)) & (live > 0))
    return int(ends[below[0]]) if len(below) else None


def stopped(workload: Workload, requests: RequestTable, steps: StepTable, at_ns: int, pause_ns: int = 0) -> Stop:
    """The run of `requests` and `steps`, stopped at `at_ns` or as soon as the steps under way then have ended.

    `pause_ns` pass before the rest begins, in which environments go on.

    **Raises:** `ValueError` for a run whose requests were preempted, did not all finish, or share steps otherwise.
    """
    sessions = _sessions(workload)
    if (np.asarray(requests.status) != FINISHED).any() or np.asarray(requests.preemptions).any():
        raise ValueError(
            "a run that is stopped wants every request to finish without a preemption: raise the KV cache, or lower "
            "workload.num_requests"
        )
    starts, finish = np.asarray(steps.start_ns), np.asarray(steps.end_ns)
    under_way = (starts < at_ns) & (finish > at_ns)
    stop_ns = np.full(int(np.max(requests.replica)) + 1, at_ns, np.int64)
    np.maximum.at(stop_ns, np.asarray(steps.replica)[under_way], finish[under_way])
    emitted = emitted_by(requests, steps, stop_ns)
    over = np.asarray(requests.finish_ns) <= stop_ns[requests.replica]
    last_ns = int(stop_ns.max())
    first, rows, offsets = [0], list[int](), list[int]()
    prompts, outputs, history = list[int](), list[int](), list[int]()
    again = 0
    for s in range(len(sessions)):
        begin, end = int(sessions.first[s]), int(sessions.first[s + 1])
        done = int(over[begin:end].sum())
        if begin + done == end:
            continue
        i = begin + done
        rows += range(i, end)
        first.append(len(rows))
        sent_ns = 0 if not done else int(requests.finish_ns[i - 1] + sessions.latency_ns[i])
        offsets.append(max(0, sent_ns - last_ns - pause_ns))
        said = int(emitted[i])
        again += int(workload.prompt_tokens[i]) + said - 1 if said else 0
        prompts += [int(workload.prompt_tokens[i]) + said, *workload.prompt_tokens[i + 1 : end].tolist()]
        outputs += [int(workload.output_tokens[i]) - said, *workload.output_tokens[i + 1 : end].tolist()]
        history += [0, *sessions.history_tokens[i + 1 : end].tolist()]
    rest = None
    if offsets:
        sizes, order = np.diff(first), np.argsort(offsets, kind="stable")
        take = np.concatenate([np.arange(first[k], first[k + 1]) for k in order])
        kept = np.array(rows)[take]
        bounds = np.concatenate([[0], np.cumsum(sizes[order])])
        latency = np.asarray(sessions.latency_ns)[kept].copy()
        latency[bounds[:-1]] = 0
        columns = Sessions(
            first=bounds,
            latency_ns=latency,
            history_tokens=np.array(history)[take],
            dropped_tokens=np.zeros(len(take), np.int64),
            system=np.zeros(len(offsets), np.int64),
        )
        arrival = np.repeat(np.array(offsets)[order], sizes[order])
        rest = Workload(workload.name, arrival, np.array(prompts)[take], np.array(outputs)[take], sessions=columns)
    return Stop(last_ns, len(offsets), rest, int(emitted.sum()), again)


def emitted_by(
    requests: RequestTable, steps: StepTable, stop_ns: Int[np.ndarray, " replica"]
) -> Int[np.ndarray, " request"]:
    """Tokens that each request has when its replica stops. `ValueError` unless the steps account for every token."""
    found = np.zeros(len(requests), np.int64)
    whole = np.zeros(len(requests), np.int64)
    for replica in np.unique(requests.replica):
        ends = np.asarray(steps.end_ns)[np.asarray(steps.replica) == replica]
        here = np.flatnonzero(np.asarray(requests.replica) == replica)
        first = np.searchsorted(ends, requests.first_token_ns[here])
        last = np.searchsorted(ends, requests.finish_ns[here], side="right")
        by = np.searchsorted(ends, stop_ns[replica], side="right")
        whole[here] = last - first
        found[here] = np.clip(np.minimum(by, last) - first, 0, None)
    if (whole != requests.output_tokens).any():
        raise ValueError(
            "a run that is stopped wants one token of a request in every step from its first to its last: use "
            "engine.async_scheduling=false and vLLM's scheduler, without drafts or pipeline stages"
        )
    return found


def _sessions(workload: Workload) -> Sessions:
    if workload.sessions is None or workload.sessions.dropped_tokens.any():
        raise ValueError(
            "a rollout wants trajectories: workload.sessions.rounds.law, with workload.sessions.reasoning_share=0"
        )
    return workload.sessions

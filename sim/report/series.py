"""Quantities over time: per-step values averaged exactly over equal bins."""

from dataclasses import dataclass

import numpy as np

from sim.report.result import RequestTable, SimulationResult, StepTable
from sim.units import NS_PER_S


IDLE_GAP_NS = 50_000_000
"""A pause between two steps of a replica longer than this is idleness, a shorter one host time between steps."""


def holds_until_ns(replica: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Until when a step's queue lengths hold: the replica's next step, or its own end before an idle pause.

    Shape `[step]`; steps of one replica are in time order (they overlap in pipeline stages).
    """
    until = np.array(end_ns, np.int64)
    replica, start = np.asarray(replica), np.asarray(start_ns, np.int64)
    for r in np.unique(replica):
        rows = np.flatnonzero(replica == r)
        gap = start[rows[1:]] - until[rows[:-1]]
        until[rows[:-1]] += np.where(gap <= IDLE_GAP_NS, gap, 0)
    return until


@dataclass(frozen=True)
class Series:
    """Axis `bin`, equal bins of `width_s` from the first arrival; `t_s` is where a bin starts.

    `running`, `waiting` (requests) and `kv_mean` (share of 1, mean over replicas) are time averages; `kv_max` is the
    fullest replica; `input_tokens_per_s` counts computed prompt tokens, `output_tokens_per_s` emitted ones.
    """

    width_s: float
    t_s: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    kv_mean: np.ndarray
    kv_max: np.ndarray
    input_tokens_per_s: np.ndarray
    output_tokens_per_s: np.ndarray
    preemptions: np.ndarray
    busy: np.ndarray


def bin_means(
    replica: np.ndarray, start_ns: np.ndarray, until_ns: np.ndarray, value: np.ndarray, edges_ns: np.ndarray
) -> np.ndarray:
    """Time average per bin of the sum over replicas of a value that holds from `start` to `until` and is 0 elsewhere.

    The integral up to t is piecewise linear in t, so it is interpolated at the edges without error.
    Shapes `[step]`, `[bin + 1]` -> `[bin]`.
    """
    total = np.zeros(len(edges_ns))
    for r in np.unique(replica):
        rows = np.flatnonzero(replica == r)
        start, until = start_ns[rows].astype(float), until_ns[rows].astype(float)
        area = np.cumsum(value[rows] * (until - start))
        knots = np.stack([start, until], 1).ravel()
        at_knots = np.stack([np.concatenate([[0.0], area[:-1]]), area], 1).ravel()
        total += np.interp(edges_ns, knots, at_knots, left=0.0)
    return np.diff(total) / np.diff(edges_ns)


def nice_width_s(span_s: float, most_bins: int) -> float:
    """The smallest 1, 2 or 5 x 10^k seconds that cuts the span into at most `most_bins`."""
    if span_s <= 0:
        return 1.0
    raw = span_s / most_bins
    power = 10.0 ** np.floor(np.log10(raw))
    return float(next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-12)))


def series(result: SimulationResult, width_s: float) -> Series:
    """The run in bins of `width_s`, the last one possibly cut short by the end of the run but still full width."""
    steps, requests = result.steps, result.requests
    t0_ns = requests.first_arrival_ns if len(requests) else 0
    ends = [int(np.max(column)) for column in (steps.end_ns, requests.finish_ns, requests.arrival_ns) if len(column)]
    bins = max(1, int(np.ceil((max(ends, default=t0_ns) - t0_ns) / (width_s * NS_PER_S))))
    edges_ns = t0_ns + np.arange(bins + 1) * (width_s * NS_PER_S)
    replica, start_ns, end_ns = (
        np.asarray(column, np.int64) for column in (steps.replica, steps.start_ns, steps.end_ns)
    )
    until_ns = holds_until_ns(replica, start_ns, end_ns) if len(steps) else end_ns
    used = 1 - np.asarray(steps.free_blocks, float) / np.maximum(result.step_blocks, 1)

    def mean(value: np.ndarray, until: np.ndarray = until_ns) -> np.ndarray:
        return bin_means(replica, start_ns, until, np.asarray(value, float), edges_ns)

    def per_bin(at_ns: np.ndarray, value: np.ndarray) -> np.ndarray:
        at = np.clip(((at_ns - t0_ns) / (width_s * NS_PER_S)).astype(np.int64), 0, bins - 1)
        return np.bincount(at, weights=np.asarray(value, float), minlength=bins)

    stages = result.stages
    runs = [(start_ns, end_ns)] if stages is None else list(zip(stages.start_ns.T, stages.end_ns.T, strict=True))
    always = np.ones(len(steps))
    busy = np.mean([bin_means(replica, start, end, always, edges_ns) for start, end in runs], axis=0)
    kv_max = np.zeros(bins)
    first, last = (
        np.clip(((x - t0_ns) / (width_s * NS_PER_S)).astype(np.int64), 0, bins - 1) for x in (start_ns, until_ns - 1)
    )
    np.maximum.at(kv_max, first, used)
    np.maximum.at(kv_max, last, used)
    for i in np.flatnonzero(last - first > 1):  # the few steps that fill whole bins between
        kv_max[first[i] : last[i]] = np.maximum(kv_max[first[i] : last[i]], used[i])
    return Series(
        width_s=width_s,
        t_s=np.arange(bins) * width_s,
        running=mean(steps.running),
        waiting=mean(steps.waiting),
        kv_mean=mean(used) / result.ranks,
        kv_max=kv_max,
        input_tokens_per_s=per_bin(end_ns, steps.prefill_tokens) / width_s,
        output_tokens_per_s=per_bin(end_ns, result.seen_tokens) / width_s,
        preemptions=per_bin(start_ns, steps.preempted),
        busy=busy / result.ranks,
    )


def running_and_waiting(requests: RequestTable, at_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Requests scheduled but unfinished, and taken up but unscheduled, at each instant; shapes `[instant]` each."""
    times = {}
    for name in ("queued_ns", "scheduled_ns", "finish_ns"):
        column = np.asarray(getattr(requests, name), np.int64)
        times[name] = np.sort(np.where(column < 0, np.iinfo(np.int64).max, column))
    queued, scheduled, finished = (np.searchsorted(times[name], at_ns, side="right") for name in times)
    return scheduled - finished, queued - scheduled


def emitted_per_second(requests: RequestTable, steps: StepTable | None, edges_ns: np.ndarray) -> np.ndarray:
    """Output tokens per second in each bin.

    From the steps, or, without steps, each answer spread evenly from its first token to its last.
    """
    # Cumulative counts at the edges: a token at an edge belongs to the bin it closes, as a sampler would count it.
    if steps is not None and len(steps):
        order = np.argsort(steps.end_ns, kind="stable")
        so_far = np.concatenate([[0.0], np.cumsum(np.asarray(steps.emitted, float)[order])])
        total = so_far[np.searchsorted(np.asarray(steps.end_ns)[order], edges_ns, side="right")]
    else:
        done = np.asarray(requests.finish_ns) >= 0
        first, finish = (np.asarray(column, float)[done] for column in (requests.first_token_ns, requests.finish_ns))
        rest = np.asarray(requests.output_tokens, float)[done] - 1
        total = np.searchsorted(np.sort(first), edges_ns, side="right").astype(float)
        total += np.clip((edges_ns[:, None] - first) / np.maximum(finish - first, 1.0), 0, 1) @ rest
    return np.diff(total) / (np.diff(edges_ns) / NS_PER_S)

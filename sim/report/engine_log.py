"""The engine's own log of a run: the lines its server would have printed, by engine and version.

vLLM prints a line per engine and interval: tokens delivered in it, and queues, KV cache and hit rate as of the last
output processed. It is silent while nothing was delivered in the interval or the one before. SGLang's lines are
in `sim.report.sglang_log`. Times are of the run's clock, 0 at the first arrival. What a line tells of a
quantity that was not simulated is `n/a`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.report.hit_rate import looked_up, recent_hit_rate
from sim.report.outputs import clock, outputs_of
from sim.report.result import SimulationResult
from sim.report.sglang_log import sglang_lines
from sim.units import NS_PER_S


ENGINE_LOG = "engine.log"


@dataclass(frozen=True)
class EngineSeries:
    """One replica at the ends of equal intervals, axis `tick`, as its log has it.

    `prompt_tokens_per_s` counts prompts when their first token is delivered; `kv_usage` is a share of 1, as is
    `hit_rate`, which is NaN where it is not known.
    """

    t_s: np.ndarray
    prompt_tokens_per_s: np.ndarray
    output_tokens_per_s: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    kv_usage: np.ndarray
    hit_rate: np.ndarray
    preemptions: np.ndarray

    @property
    def silent(self) -> np.ndarray:
        """Ticks without a line: nothing was delivered, nor before the tick before."""
        still = (self.prompt_tokens_per_s == 0) & (self.output_tokens_per_s == 0)
        return still & np.concatenate([[True], still[:-1]])


def check_interval(log_interval_s: float) -> None:
    """Raise `ValueError` unless the log can have a line every so many seconds."""
    if not (log_interval_s >= 1e-3 and np.isfinite(log_interval_s)):
        raise ValueError(f"log_interval_s wants seconds, 0.001 at least, got {log_interval_s:g}")


def engine_series(result: SimulationResult, replica: int) -> EngineSeries:
    """The series of one replica, every `result.log_interval_s`, until it has been silent for a whole interval."""
    steps, requests, rules = result.steps, result.requests, result.log
    t0_ns = requests.first_arrival_ns if len(requests) else 0
    interval_ns = int(result.log_interval_s * NS_PER_S)
    outputs = outputs_of(steps, replica)
    span_ns = int(outputs.end_ns[-1]) - t0_ns if len(outputs.end_ns) else 0
    ticks = np.arange(1, -(-span_ns // interval_ns) + 2)
    at_ns = t0_ns + ticks * interval_ns
    last = np.searchsorted(outputs.end_ns, at_ns, side="right")

    def as_of(values: np.ndarray) -> np.ndarray:
        """The value after the last output before each tick; 0 before the first."""
        return np.concatenate([[0], values])[last]

    def per_interval(values: np.ndarray) -> np.ndarray:
        return np.diff(np.concatenate([[0], as_of(np.cumsum(values))]))

    def first_tokens(values: np.ndarray) -> np.ndarray:
        mine = (np.asarray(requests.replica) == replica) & (np.asarray(requests.first_token_ns) >= 0)
        first_ns = np.asarray(requests.first_token_ns)[mine]
        order = np.argsort(first_ns, kind="stable")
        total = np.concatenate([[0], np.cumsum(values[mine][order])])
        return np.diff(np.concatenate([[0], total[np.searchsorted(first_ns[order], at_ns, side="right")]]))

    prompts = np.asarray(requests.prompt_tokens, np.int64)
    if not rules.get("whole_prompts"):
        prompts = prompts - np.asarray(requests.cached_tokens, np.int64)
    usable = max(result.num_gpu_blocks - 1, 1)
    return EngineSeries(
        t_s=ticks * (interval_ns / NS_PER_S),
        prompt_tokens_per_s=first_tokens(prompts) / result.log_interval_s,
        output_tokens_per_s=per_interval(steps.emitted[outputs.row]) / result.log_interval_s,
        running=as_of(outputs.running),
        waiting=as_of(outputs.waiting),
        kv_usage=as_of(1 - outputs.free_blocks / usable),
        hit_rate=as_of(reported_hit_rate(result, outputs.lookups)),
        preemptions=per_interval(np.asarray(steps.preempted)[outputs.row]),
    )


def reported_hit_rate(result: SimulationResult, lookups: np.ndarray) -> np.ndarray:
    """The hit rate of vLLM after each output.

    NaN where prefixes are reused but that was not simulated, or while the version tells none.
    """
    rules = result.log
    counts = lookups[:3] + lookups[3:] if rules.get("joins_preempted") else lookups[:3]
    rate = recent_hit_rate(counts[0], counts[1], counts[2], bool(rules.get("drops_one_update")))
    if unknown_hits(result):
        return np.full(len(rate), np.nan)
    return np.where(counts[0] > 0, rate, np.nan) if rules.get("hit_rate_once_known") else rate


def unknown_hits(result: SimulationResult) -> bool:
    """Whether the engine would reuse prefixes and the simulation did not, for lack of content or of a cache."""
    return bool(result.settings.get("prefix_caching", True)) and not looked_up(result.steps)


def hit_rates(result: SimulationResult, edges_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hit rates over bins between `edges_ns`: of the look-ups in each bin, and as vLLM reports it at the bin's end.

    The second is the mean over the replicas. Both are NaN where nothing was looked up (yet); shapes `[bin]`.
    """
    asked = found = np.zeros(len(edges_ns) - 1)
    reported = []
    for replica in np.unique(result.steps.replica):
        outputs = outputs_of(result.steps, replica)
        last = np.searchsorted(outputs.end_ns, edges_ns, side="right")
        counts = outputs.lookups[:3] + outputs.lookups[3:] if result.log.get("joins_preempted") else outputs.lookups[:3]
        at_edges = np.concatenate([np.zeros((3, 1), np.int64), counts], 1)[:, last]
        asked, found = asked + np.diff(at_edges[1]), found + np.diff(at_edges[2])
        rate = np.where(counts[0] > 0, reported_hit_rate(result, outputs.lookups), np.nan)
        reported.append(np.concatenate([[np.nan], rate])[last[1:]])
    in_bin = np.where(asked > 0, found / np.maximum(asked, 1), np.nan)
    known = ~np.isnan(reported)
    total = np.where(known, reported, 0.0).sum(0)
    return in_bin, np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def engine_log(result: SimulationResult) -> str:
    """The log as text, empty where the engine's format is not known or no step was recorded."""
    form = result.log.get("format")
    lines = vllm_lines(result) if form == "vllm" else sglang_lines(result) if form == "sglang" else ()
    return "".join(line + "\n" for line in lines)


def vllm_lines(result: SimulationResult) -> Iterator[str]:
    """The lines of vLLM by time, all engines in one log, as one server with several engines writes them."""
    unknown = unknown_hits(result)
    lines: list[tuple[float, int, str]] = []
    for replica in np.unique(result.steps.replica).tolist():
        series = engine_series(result, replica)
        for i in np.flatnonzero(~series.silent).tolist():
            text = _vllm_line(series, i, bool(result.log.get("tells_preemptions")), unknown)
            lines.append((float(series.t_s[i]), replica, text))
    for t_s, replica, text in sorted(lines, key=lambda line: line[:2]):
        yield f"INFO {clock(t_s):%m-%d %H:%M:%S} [headway] Engine {replica:03d}: {text}"


def _vllm_line(series: EngineSeries, i: int, tells_preemptions: bool, unknown: bool) -> str:
    parts = [
        f"Avg prompt throughput: {series.prompt_tokens_per_s[i]:.1f} tokens/s",
        f"Avg generation throughput: {series.output_tokens_per_s[i]:.1f} tokens/s",
        f"Running: {series.running[i]:.0f} reqs",
        f"Waiting: {series.waiting[i]:.0f} reqs",
    ]
    if tells_preemptions and series.preemptions[i]:
        parts.append(f"Preemptions: {series.preemptions[i]:.0f}")
    parts.append(f"GPU KV cache usage: {100 * series.kv_usage[i]:.1f}%")
    if unknown:
        parts.append("Prefix cache hit rate: n/a")
    elif not np.isnan(series.hit_rate[i]):
        parts.append(f"Prefix cache hit rate: {100 * series.hit_rate[i]:.1f}%")
    return ", ".join(parts)

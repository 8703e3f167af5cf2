"""What is measured of a run: vLLM's metrics under vLLM's names and definitions, and a few that only a simulator knows.

Latencies are of finished requests only. With the times of `RequestTable`:

- TTFT = first_token - arrival; queued TTFT = first_token - queued (what a server's own log counts).
- E2EL = finish - arrival = queue + prefill + decode: arrival to scheduled to first_token to finish; where something is
  retrieved first, the queue begins after that.
- TPOT = (E2EL - TTFT) / (output tokens - 1), per request with more than one output token.
- ITL: every gap between two tokens of a request, over all tokens.

The duration is the last finish minus the first arrival. Nothing is averaged over nothing: a statistic without samples
is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.report.hit_rate import LookupTotals, lookup_totals
from sim.report.percentile import Distribution, distribution
from sim.report.result import ABORTED, FINISHED, RequestTable, SimulationResult
from sim.report.speculation import cut_drafts
from sim.units import NS_PER_S


PERCENTILES = (90.0, 95.0, 99.0)
SLO_METRICS = ("ttft", "tpot", "itl", "e2el")

NOT_QUEUED_NS = 1_000_000
"""A request scheduled within 1 ms of being taken up was in the first batch it could be in: no engine step is shorter in
practice, and in recorded runs the gap is either below 0.05 ms or above 10 ms."""


@dataclass(frozen=True)
class Latencies:
    """Latencies of the finished requests, in seconds, axis `finished`; `request` is their row in the request table.

    `tpot_s` is 0 for one-token answers, whose `has_tpot` is False.
    """

    request: np.ndarray
    ttft_s: np.ndarray
    ttft_queued_s: np.ndarray
    tpot_s: np.ndarray
    e2el_s: np.ndarray
    retrieval_s: np.ndarray
    queue_s: np.ndarray
    prefill_s: np.ndarray
    decode_s: np.ndarray
    has_tpot: np.ndarray
    not_queued: np.ndarray


def latencies(requests: RequestTable) -> Latencies:
    """Per-request latencies (s) by the definitions above."""
    rows = np.flatnonzero(np.asarray(requests.status) == FINISHED)
    arrival, queued, scheduled, first, finish = (
        np.asarray(column)[rows].astype(np.int64)
        for column in (
            requests.arrival_ns,
            requests.queued_ns,
            requests.scheduled_ns,
            requests.first_token_ns,
            requests.finish_ns,
        )
    )
    asked = requests.asked_ns[rows]
    gaps = np.asarray(requests.output_tokens)[rows].astype(np.int64) - 1
    return Latencies(
        request=rows,
        ttft_s=(first - arrival) / NS_PER_S,
        ttft_queued_s=(first - queued) / NS_PER_S,
        tpot_s=np.where(gaps > 0, (finish - first) / NS_PER_S / np.maximum(gaps, 1), 0.0),
        e2el_s=(finish - arrival) / NS_PER_S,
        retrieval_s=(asked - arrival) / NS_PER_S,
        queue_s=(scheduled - asked) / NS_PER_S,
        prefill_s=(first - scheduled) / NS_PER_S,
        decode_s=(finish - first) / NS_PER_S,
        has_tpot=gaps > 0,
        not_queued=(scheduled - queued) < NOT_QUEUED_NS,
    )


@dataclass(frozen=True)
class Metrics:
    """A run in numbers. Seconds, tokens, shares of 1 and USD; None where there is nothing to measure.

    - `request_goodput` (1/s) and `goodput_share`: finished requests that meet every bound of the run's SLOs.
    - `aborted`: the client gave them up; `failed`: rejected, turned away, lost, or ended with an error.
    - `peak_output_throughput`: most tokens in one whole second from the first arrival on;
      `peak_concurrent_requests`: most finished requests in flight at one instant.
    - `kv_usage_mean`, `kv_usage_max`: share of KV blocks in use, over the time in which steps run.
    - `recomputed_tokens`: tokens computed beyond those each request needs once, the price of preemption.
    - `cached_tokens`: prompt tokens of finished requests that were found in the prefix cache at their first admission.
    - `prefix_cache`: the engine's own count of look-ups, all replicas; None where none was simulated.
    - `batch_requests_mean`, `batch_tokens_mean`: per step, unweighted; `busy_share`: step time / (duration x ranks),
      where a replica has pipeline stages the mean over them.
    - `output_throughput_per_user` = 1 / mean TPOT; `..._per_gpu` = output throughput / GPUs.
    - `usd_per_1m_*` = USD/h of all GPUs / (tokens/s x 3600) x 1e6.
    """

    completed: int
    aborted: int
    failed: int
    total_input: int
    total_output: int
    duration_s: float | None
    request_throughput: float | None
    request_goodput: float | None
    goodput_share: float | None
    input_throughput: float | None
    output_throughput: float | None
    total_token_throughput: float | None
    peak_output_throughput: float | None
    peak_concurrent_requests: int
    output_throughput_per_gpu: float | None
    output_throughput_per_user: float | None
    usd_per_1m_input: float | None
    usd_per_1m_output: float | None
    usd_per_1m_total: float | None
    latency: dict[str, Distribution]
    kv_usage_mean: float | None
    kv_usage_max: float | None
    preemptions: int
    preempted_requests: int
    recomputed_tokens: int | None
    cached_tokens: int
    prefix_cache: LookupTotals | None
    steps: int
    batch_requests_mean: float | None
    batch_tokens_mean: float | None
    busy_share: float | None


def check_slo(slo_ms: dict[str, float]) -> dict[str, float]:
    """The bounds, checked. Raises `ValueError` on an unknown metric or a bound that is not a positive number of ms."""
    for name, bound in slo_ms.items():
        if name not in SLO_METRICS:
            raise ValueError(
                f"slo wants bounds in ms for {', '.join(SLO_METRICS)}, got {name!r}; change the key slo.{name}_ms"
            )
        if not (isinstance(bound, int | float) and bound > 0 and np.isfinite(bound)):
            raise ValueError(f"slo.{name}_ms wants a positive number of milliseconds, got {bound!r}")
    return slo_ms


def meets(found: Latencies, slo_ms: dict[str, float]) -> np.ndarray:
    """Which finished requests meet every bound, shape `[finished]`.

    As in vLLM's `--goodput`, a one-token answer has TPOT 0. `itl` bounds the mean of a request's own gaps,
    which for an engine that emits one token per step is its TPOT.
    """
    samples = {"ttft": found.ttft_s, "tpot": found.tpot_s, "itl": found.tpot_s, "e2el": found.e2el_s}
    good = np.ones(len(found.request), bool)
    for name, bound_ms in check_slo(slo_ms).items():
        good &= samples[name] * 1e3 <= bound_ms
    return good


def duration_of(requests: RequestTable) -> float | None:
    """Seconds from the first arrival to the last token of a finished request; None if none finished, or in no time."""
    finished = np.asarray(requests.status) == FINISHED
    if not finished.any():
        return None
    return (int(np.max(np.asarray(requests.finish_ns)[finished])) - requests.first_arrival_ns) / NS_PER_S or None


def measure(
    result: SimulationResult, percentiles: Sequence[float] = PERCENTILES, duration_s: float | None = None
) -> Metrics:
    """All metrics of a run, or of a pool in a run of `duration_s`.

    **Raises:** `ValueError` for a percentile outside 0..100 or a malformed SLO.
    """
    requests, steps = result.requests, result.steps
    found = latencies(requests)
    completed = len(found.request)
    aborted = int((np.asarray(requests.status) == ABORTED).sum())
    total_input = int(np.sum(np.asarray(requests.prompt_tokens)[found.request], dtype=np.int64))
    total_output = int(np.sum(np.asarray(requests.output_tokens)[found.request], dtype=np.int64))
    if duration_s is None:
        duration_s = duration_of(requests)

    def per_second(count: float) -> float | None:
        return count / duration_s if duration_s else None

    def usd_per_1m(tokens: int) -> float | None:
        rate = per_second(tokens)
        return result.usd_per_gpu_hour * result.gpus / (rate * 3600) * 1e6 if rate and result.usd_per_gpu_hour else None

    good = int(meets(found, result.slo_ms).sum()) if result.slo_ms else None
    output_throughput = per_second(total_output)
    samples = {
        "ttft": found.ttft_s,
        "tpot": found.tpot_s[found.has_tpot],
        "e2el": found.e2el_s,
        "ttft_queued": found.ttft_queued_s,
        "ttft_not_queued": found.ttft_s[found.not_queued],
        "queue": found.queue_s,
        "prefill": found.prefill_s,
        "decode": found.decode_s,
    }
    latency = {name: distribution(values, percentiles=percentiles) for name, values in samples.items()}
    latency["itl"] = distribution(np.asarray(result.itl_ns) / NS_PER_S, result.itl_count, percentiles)
    mean_tpot_s = latency["tpot"].mean_s
    kv_mean, kv_max = kv_usage(result)
    rows = np.asarray(steps.prefill_chunks, float) + np.asarray(steps.decodes, float)
    tokens = np.asarray(steps.tokens, float)
    busy_s = float(np.sum(result.busy_ns)) / NS_PER_S
    preemptions = np.asarray(requests.preemptions)
    return Metrics(
        completed=completed,
        aborted=aborted,
        failed=len(requests) - completed - aborted,
        total_input=total_input,
        total_output=total_output,
        duration_s=duration_s,
        request_throughput=per_second(completed),
        request_goodput=per_second(good) if good is not None else None,
        goodput_share=good / len(requests) if good is not None and len(requests) else None,
        input_throughput=per_second(total_input),
        output_throughput=output_throughput,
        total_token_throughput=per_second(total_input + total_output),
        peak_output_throughput=peak_output_throughput(result),
        peak_concurrent_requests=peak_concurrent_requests(requests),
        output_throughput_per_gpu=output_throughput / result.gpus if output_throughput and result.gpus else None,
        output_throughput_per_user=1 / mean_tpot_s if mean_tpot_s else None,
        usd_per_1m_input=usd_per_1m(total_input),
        usd_per_1m_output=usd_per_1m(total_output),
        usd_per_1m_total=usd_per_1m(total_input + total_output),
        latency=latency,
        kv_usage_mean=kv_mean,
        kv_usage_max=kv_max,
        preemptions=int(preemptions.sum()),
        preempted_requests=int((preemptions > 0).sum()),
        recomputed_tokens=recomputed_tokens(result),
        cached_tokens=int(np.sum(np.asarray(requests.cached_tokens)[found.request], dtype=np.int64)),
        prefix_cache=lookup_totals(steps),
        steps=len(steps),
        batch_requests_mean=float(rows.mean()) if len(steps) else None,
        batch_tokens_mean=float(tokens.mean()) if len(steps) else None,
        busy_share=busy_s / (duration_s * result.ranks) if duration_s and len(steps) else None,
    )


def peak_output_throughput(result: SimulationResult) -> float | None:
    """Most tokens emitted in one second, over whole seconds counted from the first arrival (tokens/s)."""
    if not len(result.steps) or not len(result.requests):
        return None
    second = (np.asarray(result.steps.end_ns) - result.requests.first_arrival_ns) // NS_PER_S
    return float(np.bincount(np.maximum(second, 0), weights=np.asarray(result.seen_tokens, float)).max())


def peak_concurrent_requests(requests: RequestTable) -> int:
    """Most finished requests in flight at one instant, over half-open intervals [arrival, finish)."""
    rows = np.flatnonzero(np.asarray(requests.status) == FINISHED)
    if not len(rows):
        return 0
    arrival = np.sort(np.asarray(requests.arrival_ns)[rows])
    finish = np.sort(np.asarray(requests.finish_ns)[rows])
    # The peak lies at an arrival: there, arrivals so far minus those that have left by then.
    return int((np.arange(1, len(rows) + 1) - np.searchsorted(finish, arrival, side="right")).max())


def kv_usage(result: SimulationResult) -> tuple[float | None, float | None]:
    """Mean over step time and maximum of the share of KV blocks in use, all replicas together."""
    span_ns = np.asarray(result.steps.end_ns, np.int64) - np.asarray(result.steps.start_ns, np.int64)
    if not len(span_ns) or not span_ns.sum() or result.num_gpu_blocks <= 0:
        return None, None
    used = 1 - np.asarray(result.steps.free_blocks) / result.step_blocks
    return float((used * span_ns).sum() / span_ns.sum()), float(used.max())


def recomputed_tokens(result: SimulationResult) -> int | None:
    """Tokens computed beyond what every request needs once, `prompt - cached + output - 1`.

    A decode instance computes the last token of a prompt that was prefilled elsewhere again: one more.

    None where steps were not recorded or a request ended half-way, because then the need is not known.
    """
    requests, steps = result.requests, result.steps
    rows = np.asarray(requests.status) == FINISHED
    started = np.asarray(requests.scheduled_ns) >= 0
    if not len(steps) or (started & ~rows).any():
        return None
    columns = (requests.prompt_tokens, requests.cached_tokens, requests.output_tokens)
    prompt, cached, output = (np.asarray(c)[rows].astype(np.int64) for c in columns)
    need = int((prompt - cached + np.maximum(output - 1, 0)).sum())
    if result.transfers is not None:
        need += int((np.asarray(result.transfers.source)[rows] >= 0).sum())
    computed = int(np.sum(steps.kept_tokens, dtype=np.int64)) - cut_drafts(result)
    return max(computed - need, 0)

"""The numbers behind the page's charts: down-sampled to a size that does not grow with the run."""

from typing import Any

import numpy as np

from sim.report.engine_log import hit_rates
from sim.report.hit_rate import looked_up
from sim.report.metrics import Latencies, Metrics, latencies
from sim.report.percentile import weighted_percentiles
from sim.report.result import SimulationResult
from sim.report.series import nice_width_s, series
from sim.report.tables import GRAPH_MODES
from sim.units import NS_PER_S


TIME_BINS = 160
HISTOGRAM_BINS = 40
BATCH_BINS = 32
PREEMPTION_MARKS = 400

QUANTILES = np.concatenate([np.linspace(0, 98, 99), np.linspace(98.1, 100, 20)])


def rounded(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Numbers to `digits` significant digits, as many as a chart can show; None for those that are not finite."""
    values = np.asarray(values, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(values))))
        kept = np.where(values == 0, 0.0, np.round(values * scale) / scale)
    return [float(f"{x:.{digits}g}") if np.isfinite(x) else None for x in kept]


def chart_data(result: SimulationResult, metrics: Metrics) -> dict[str, Any]:
    """All chart data of a run as plain lists: about 100 kB whatever the number of steps and requests."""
    found = latencies(result.requests)
    return {
        "cdf": _cdfs(result, metrics, found),
        "parts": _parts(found),
        "time": _time(result),
        "batch": _batch(result),
        "workload": _workload(result),
        "memory": _memory(result),
    }


def _cdfs(result: SimulationResult, metrics: Metrics, found: Latencies) -> dict[str, Any]:
    samples = {
        "ttft": (found.ttft_s, None),
        "tpot": (found.tpot_s[found.has_tpot], None),
        "itl": (np.asarray(result.itl_ns) / NS_PER_S, np.asarray(result.itl_count)),
        "e2el": (found.e2el_s, None),
    }
    cdfs: dict[str, Any] = {}
    for name, (values, counts) in samples.items():
        weights = np.ones(len(values), np.int64) if counts is None else counts
        if not weights.sum():
            cdfs[name] = None
            continue
        quantiles_ms = weighted_percentiles(values, weights, QUANTILES) * 1e3
        p50, p99 = weighted_percentiles(values, weights, (50.0, 99.0)) * 1e3
        mean_s = metrics.latency[name].mean_s or 0.0
        cdfs[name] = {
            "ms": rounded(quantiles_ms),
            "share": rounded(QUANTILES / 100),
            "p50": float(p50),
            "p99": float(p99),
            "mean": 1e3 * mean_s,
            "count": int(weights.sum()),
        }
    return cdfs


def _parts(found: Latencies) -> list[dict[str, Any]]:
    """Mean queue, prefill and decode time (ms) of all requests and of the tenth with the longest TTFT."""
    if not len(found.request):
        return []
    groups = [("all requests", np.ones(len(found.request), bool))]
    if len(found.request) >= 20:
        groups.append(("slowest 10% to first token", found.ttft_s >= np.percentile(found.ttft_s, 90)))
    return [
        {"group": name, "queue": mean(found.queue_s), "prefill": mean(found.prefill_s), "decode": mean(found.decode_s)}
        for name, chosen in groups
        for mean in [lambda seconds, chosen=chosen: float(seconds[chosen].mean()) * 1e3]
    ]


def _time(result: SimulationResult) -> dict[str, Any] | None:
    steps = result.steps
    if not len(steps):
        return None
    t0_ns = result.requests.first_arrival_ns
    start_ns, end_ns = np.asarray(steps.start_ns), np.asarray(steps.end_ns)
    span_s = (int(end_ns.max()) - t0_ns) / NS_PER_S
    # A bin narrower than a few steps would show the steps' own rhythm, not the load.
    slow_s = 8 * float(np.percentile(end_ns - start_ns, 90)) / NS_PER_S
    width_s = nice_width_s(span_s, max(8, min(TIME_BINS, int(span_s / max(slow_s, 1e-9)))))
    found = series(result, width_s)
    at = np.clip(((start_ns - t0_ns) / (width_s * NS_PER_S)).astype(np.int64), 0, len(found.t_s) - 1)
    count = np.bincount(at, minlength=len(found.t_s))
    marks = np.flatnonzero(np.asarray(steps.preempted) > 0)
    shown = (
        marks[np.linspace(0, len(marks) - 1, min(len(marks), PREEMPTION_MARKS)).astype(int)] if len(marks) else marks
    )
    components = {}
    for name, seconds in result.components_s.items():
        total = np.bincount(at, weights=np.asarray(seconds, float), minlength=len(found.t_s))
        if total.any():
            components[name.removesuffix("_s")] = rounded(
                np.where(count > 0, 1e3 * total / np.maximum(count, 1), np.nan)
            )
    return {
        "width_s": found.width_s,
        "t": rounded(found.t_s, 7),
        "running": rounded(found.running),
        "waiting": rounded(found.waiting),
        "kv_mean": rounded(found.kv_mean),
        "kv_max": rounded(found.kv_max),
        "input": rounded(found.input_tokens_per_s),
        "output": rounded(found.output_tokens_per_s),
        "preemptions": rounded(found.preemptions),
        "marks": rounded((start_ns[shown] - t0_ns) / NS_PER_S, 7),
        "marks_total": int(np.sum(steps.preempted)),
        "components": components,
        "hits": _hits(result, t0_ns + np.append(found.t_s, found.t_s[-1] + width_s) * NS_PER_S),
        "seats": _number(result.settings.get("max_num_seqs"), result.ranks),
    }


def _hits(result: SimulationResult, edges_ns: np.ndarray) -> dict[str, Any] | None:
    """Hit rate of the prefix cache, in each bin and as vLLM's log reports it."""
    if not looked_up(result.steps):
        return None
    in_bin, reported = hit_rates(result, edges_ns)
    return {"bin": rounded(in_bin), "logged": rounded(reported) if result.log.get("format") == "vllm" else None}


def _number(value: Any, times: int) -> float | None:
    return float(value) * times if isinstance(value, int | float) else None


def _edges(values: np.ndarray, most: int) -> np.ndarray:
    """Equal integer-wide bins of a nice width that cover the values."""
    low, high = int(values.min()), int(values.max())
    width = max(1, int(nice_width_s(max(high - low + 1, 1), most)))
    first = low // width * width
    return np.arange(first, high + width + 1, width)


def _batch(result: SimulationResult) -> dict[str, Any] | None:
    """What is in a batch: steps by number of requests, and mean components of decode-only and of other steps."""
    steps = result.steps
    if not len(steps):
        return None
    span_ms = (np.asarray(steps.end_ns) - np.asarray(steps.start_ns)) / 1e6
    requests = np.asarray(steps.prefill_chunks) + np.asarray(steps.decodes)
    tokens = steps.tokens
    edges = _edges(requests, HISTOGRAM_BINS)
    by_mode = {}
    for mode, name in enumerate(GRAPH_MODES):
        chosen = np.asarray(steps.graph_mode) == mode
        if chosen.any():
            counts, _ = np.histogram(requests[chosen], edges)
            by_mode[name] = counts.tolist()
    decode_only = np.asarray(steps.prefill_tokens) == 0
    groups = {}
    for name, chosen, size in (("decode", decode_only, requests), ("prefill", ~decode_only, tokens)):
        if chosen.any() and result.components_s:
            groups[name] = _components_by(size[chosen], chosen, result, span_ms)
    return {"edges": edges.tolist(), "steps": by_mode, "groups": groups}


def _components_by(
    size: np.ndarray, chosen: np.ndarray, result: SimulationResult, span_ms: np.ndarray
) -> dict[str, Any]:
    edges = _edges(size, BATCH_BINS)
    at = np.searchsorted(edges, size, side="right") - 1
    count = np.bincount(at, minlength=len(edges) - 1)
    filled = np.flatnonzero(count)
    components = {}
    for name, seconds in result.components_s.items():
        total = np.bincount(at, weights=np.asarray(seconds, float)[chosen], minlength=len(edges) - 1)
        if total.any():
            components[name.removesuffix("_s")] = rounded(1e3 * total[filled] / count[filled])
    return {
        "edges": edges.tolist(),
        "bin": filled.tolist(),
        "steps": count[filled].tolist(),
        "components": components,
        "share": float(span_ms[chosen].sum() / span_ms.sum()) if span_ms.sum() else 0.0,
    }


def _histogram(values: np.ndarray) -> dict[str, Any] | None:
    """Counts up to the 99.5th percentile; the rest apart, so that one long prompt does not flatten the picture."""
    values = np.asarray(values)
    if not len(values):
        return None
    top = np.percentile(values, 99.5, method="higher")
    edges = _edges(values[values <= top], HISTOGRAM_BINS)
    counts, _ = np.histogram(values[values <= top], edges)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "beyond": int((values > top).sum()),
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "max": int(values.max()),
    }


def _workload(result: SimulationResult) -> dict[str, Any]:
    workload = result.workload
    arrivals = None
    if len(result.requests):
        sent_ns = np.asarray(result.requests.arrival_ns)[result.requests.sent]
        t_s = (sent_ns - result.requests.first_arrival_ns) / NS_PER_S
        span_s = float(t_s.max())
        if span_s > 0:
            width_s = nice_width_s(span_s, max(8, min(120, len(t_s) // 4)))
            counts = np.bincount((t_s / width_s).astype(int))
            arrivals = {
                "width_s": width_s,
                "t": rounded(np.arange(len(counts)) * width_s, 7),
                "rate": rounded(counts / width_s),
                "mean": (len(t_s) - 1) / span_s,
            }
    return {
        "prompt": _histogram(workload.prompt_tokens),
        "output": _histogram(workload.output_tokens),
        "arrivals": arrivals,
    }


def _memory(result: SimulationResult) -> dict[str, Any] | None:
    memory = result.memory
    if memory is None or not memory.terms:
        return None
    return {
        "kv": memory.kv_term,
        "device_bytes": float(memory.device_bytes),
        "terms": [{"name": term.name, "bytes": float(term.bytes)} for term in memory.terms],
    }

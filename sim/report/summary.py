"""`summary.json`: one flat object with vLLM's benchmark field names and ours; docs/summary.md describes every field."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.report.attention_ffn import attention_ffn_fields
from sim.report.cut import cut_outputs
from sim.report.experts import expert_fields
from sim.report.fleet import fleet_fields, fleet_verdict
from sim.report.graphs import graph_fields
from sim.report.hit_rate import LookupTotals
from sim.report.metrics import Metrics, measure
from sim.report.percentile import Distribution
from sim.report.plain import plain
from sim.report.priority import by_priority
from sim.report.result import ABORTED, FINISHED, REQUEST_STATUS, SimulationResult
from sim.report.retrieval import retrieval_figures
from sim.report.sessions import session_figures
from sim.report.speculation import speculation_fields
from sim.report.swap import swap_fields
from sim.report.tiers import begun_tokens, tier_fields
from sim.report.verdict import Verdict


SCHEMA = "headway.summary/1"

LATENCIES = ("ttft", "tpot", "itl", "e2el", "ttft_queued", "ttft_not_queued", "queue", "prefill", "decode")


def ms(seconds: float | None) -> float | None:
    """Seconds to milliseconds, None kept."""
    return None if seconds is None else seconds * 1e3


def percentile_word(p: float) -> str:
    """99.0 -> "99", 99.9 -> "99.9", as vLLM names its fields."""
    return str(int(p)) if int(p) == p else str(p)


def latency_fields(name: str, found: Distribution) -> dict[str, Any]:
    """`mean_ttft_ms`, `median_`, `std_`, `percentiles_ttft_ms` as [p, value] pairs, and `p99_ttft_ms` for each."""
    fields: dict[str, Any] = {
        f"mean_{name}_ms": ms(found.mean_s),
        f"median_{name}_ms": ms(found.median_s),
        f"std_{name}_ms": ms(found.std_s),
        f"min_{name}_ms": ms(found.min_s),
        f"max_{name}_ms": ms(found.max_s),
        f"percentiles_{name}_ms": [[p, ms(value)] for p, value in found.percentiles_s],
    }
    fields |= {f"p{percentile_word(p)}_{name}_ms": ms(value) for p, value in found.percentiles_s}
    return fields


def prefix_cache_fields(found: LookupTotals | None) -> dict[str, Any]:
    """The engine's count of prefix look-ups; null where none was simulated."""
    return {
        "prefix_cache_lookups": found and found.lookups,
        "prefix_cache_queries": found and found.queries,
        "prefix_cache_hits": found and found.hits,
        "prefix_cache_hit_rate": found and found.hit_rate,
        "preempted_prefix_cache_lookups": found and found.preempted_lookups,
        "preempted_prefix_cache_queries": found and found.preempted_queries,
        "preempted_prefix_cache_hits": found and found.preempted_hits,
        "prefix_cache_hit_rate_with_preempted": found and found.hit_rate_with_preempted,
    }


def failed_by_status(result: SimulationResult) -> dict[str, int]:
    """How many requests did not finish, by what became of them; those that their clients gave up are not here."""
    counts = np.bincount(np.asarray(result.requests.status, np.int64), minlength=len(REQUEST_STATUS))
    return {name: int(counts[i]) for i, name in enumerate(REQUEST_STATUS) if i not in (FINISHED, ABORTED) and counts[i]}


def priority_fields(result: SimulationResult) -> list[dict[str, Any]] | None:
    """TTFT (ms) of each priority class; None where requests have no priorities."""
    return [
        {
            "priority": one.priority,
            "completed": one.completed,
            "mean_ttft_ms": ms(one.ttft.mean_s),
            "median_ttft_ms": ms(one.ttft.median_s),
            "p99_ttft_ms": ms(one.ttft.percentile_s(99.0)),
        }
        for one in by_priority(result)
    ] or None


def session_fields(result: SimulationResult, percentiles: Sequence[float]) -> dict[str, Any] | None:
    """What came of sessions, times in ms; None where requests stand alone."""
    found = session_figures(result, percentiles)
    if found is None:
        return None
    shared, known = found.found_tokens, found.repeated_tokens
    return {
        "sessions": found.sessions,
        "completed": found.completed,
        "rounds": found.rounds,
        "unsent_rounds": found.unsent,
        "rounds_mean": found.rounds_mean,
        **latency_fields("answer_ttft", found.answer_ttft),
        **latency_fields("answer_from_start", found.answer_from_start),
        **latency_fields("session", found.duration),
        "latency_share": found.latency_share,
        "live_sessions_mean": found.live_mean,
        "hidden_round_throughput": found.hidden_rounds_per_s,
        "hidden_output_throughput": found.hidden_tokens_per_s,
        "further_prompt_tokens": found.further_prompt_tokens,
        "repeated_tokens": known,
        "found_tokens": shared,
        "found_share": shared / known if known else None,
        "same_replica_share": found.same_replica_share,
    }


def retrieval_fields(result: SimulationResult, percentiles: Sequence[float]) -> dict[str, Any] | None:
    """What came of retrieval, times in ms; None where nothing is retrieved."""
    found = retrieval_figures(result, percentiles)
    if found is None:
        return None
    return {
        **latency_fields("retrieval", found.latency),
        **latency_fields("ttft_after_retrieval", found.after),
        "distinct_chunks": found.distinct,
        "retrieved_tokens": found.retrieved_tokens,
        "repeated_tokens": found.repeated_tokens,
        "in_order_tokens": found.in_order_tokens,
        "found_tokens": found.found_tokens,
    }


def summary(result: SimulationResult, metrics: Metrics | None = None, found: Verdict | None = None) -> dict[str, Any]:
    """The summary of a run as plain data, ready for strict JSON. `metrics` and `found` may be passed to save time."""
    metrics = metrics or measure(result)
    found = found or fleet_verdict(result, metrics)
    cut = cut_outputs(result)
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "status": "ok",
        "reason": "",
        "model": result.model,
        "device": result.device,
        "engine": result.engine,
        "engine_label": result.engine_label,
        "gpus": result.gpus,
        "replicas": result.replicas,
        "data_parallel": result.data_parallel,
        "predictor": result.predictor,
        "taught": result.taught,
        "seed": result.seed,
        "workload": {
            "name": result.workload.name,
            "digest": result.workload.digest,
            "requests": len(result.workload),
            "concurrency": result.workload.concurrency,
            "provenance": result.workload.provenance,
            "notes": result.workload.notes,
        },
        "versions": result.versions,
        "duration": metrics.duration_s,
        "completed": metrics.completed,
        "aborted": metrics.aborted,
        "failed": metrics.failed,
        "failed_by_status": failed_by_status(result),
        "retried_requests": len(result.retries),
        "cut_requests": cut.requests,
        "cut_tokens": cut.tokens,
        "total_input": metrics.total_input,
        "total_output": metrics.total_output,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "max_concurrent_requests": metrics.peak_concurrent_requests,
    }
    for name in LATENCIES:
        fields |= latency_fields(name, metrics.latency[name])
    fields |= {
        "ttft_not_queued_requests": metrics.latency["ttft_not_queued"].count,
        "slo_ms": result.slo_ms,
        "goodput_share": metrics.goodput_share,
        "input_throughput": metrics.input_throughput,
        "output_throughput_per_gpu": metrics.output_throughput_per_gpu,
        "output_throughput_per_user": metrics.output_throughput_per_user,
        "usd_per_gpu_hour": result.usd_per_gpu_hour or None,
        "usd_per_1m_input_tokens": metrics.usd_per_1m_input,
        "usd_per_1m_output_tokens": metrics.usd_per_1m_output,
        "usd_per_1m_total_tokens": metrics.usd_per_1m_total,
        "num_gpu_blocks": result.num_gpu_blocks,
        "block_size": result.block_size,
        "kv_usage_mean": metrics.kv_usage_mean,
        "kv_usage_max": metrics.kv_usage_max,
        "preemptions": metrics.preemptions,
        "preempted_requests": metrics.preempted_requests,
        "recomputed_tokens": metrics.recomputed_tokens,
        "cached_tokens": metrics.cached_tokens,
        **prefix_cache_fields(metrics.prefix_cache),
        "ttft_by_priority": priority_fields(result),
        "sessions": session_fields(result, [p for p, _ in metrics.latency["ttft"].percentiles_s]),
        "retrieval": retrieval_fields(result, [p for p, _ in metrics.latency["ttft"].percentiles_s]),
        "steps": metrics.steps,
        "step_time_rel_error": result.claim and result.claim.rel_error,
        "step_time_outside_calibration": result.claim and result.claim.outside_share,
        "batch_requests_mean": metrics.batch_requests_mean,
        "batch_tokens_mean": metrics.batch_tokens_mean,
        "busy_share": metrics.busy_share,
        "cuda_graphs": graph_fields(result),
        "step_time_s": {name.removesuffix("_s"): values.sum() for name, values in result.components_s.items()},
        "bottleneck": found,
        **fleet_fields(result),
        "experts": expert_fields(result),
        "speculation": speculation_fields(result.speculation),
        "cache_tiers": tier_fields(result.cache_tiers, result.block_size, begun_tokens(result)),
        "kv_swap": swap_fields(result.swap, result.block_size),
        "attention_ffn": attention_ffn_fields(result.attention_ffn),
        "memory": result.memory,
        "settings": result.settings,
        "assumptions": [{"what": what, "value": value, "source": source} for what, value, source in result.assumptions],
        "not_modelled": result.not_modelled,
        "checks": result.checks,
        "timing": result.timing,
    }
    return plain(fields)


def failure_summary(status: str, reason: str, **known: Any) -> dict[str, Any]:
    """The summary of a configuration that could not run: its status, why in a sentence, what is `known` of it."""
    return plain({"schema": SCHEMA, "status": status, "reason": reason, **known})


# MISSING

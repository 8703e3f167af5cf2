"""The block everyone recognises, in the wording and order of vLLM's benchmark, and what only a simulator knows."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from sim.report.cut import cut_note
from sim.report.experts import expert_fields
from sim.report.fleet import WORDS, cut_transfers, link_rows, pool_shares, ttft_parts
from sim.report.graphs import graph_fields
from sim.report.metrics import Metrics
from sim.report.priority import by_priority
from sim.report.result import SimulationResult
from sim.report.retrieval import retrieval_lines
from sim.report.sessions import session_figures
from sim.report.speculation import speculation_fields
from sim.report.summary import failed_by_status, ms, percentile_word
from sim.report.swap import swap_fields
from sim.report.tiers import begun_tokens, tier_fields
from sim.report.verdict import Verdict
from sim.units import GB


WIDTH = 50
LABEL = 40

OUTSIDE_SHARE = 0.1
"""More step time outside calibration than this is said on top."""

REPEATED_LOOKUPS = 2
"""More prefix look-ups than this per admission are worth a word."""

SECTIONS = (
    ("ttft", "TTFT", "Time to First Token"),
    ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
    ("itl", "ITL", "Inter-token Latency"),
    ("e2el", "E2EL", "End-to-end Latency"),
)


def line(label: str, value: Any) -> str:
    """One row: the label in 40 columns, then an integer as it is, a float with two decimals, or n/a."""
    text = "n/a" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<{LABEL}} {text}"


def header(title: str, mark: str = "-") -> str:
    """A title centred in a rule of `mark`."""
    return f"{title:{mark}^{WIDTH}}"


def benchmark_block(result: SimulationResult, metrics: Metrics, percentiles: Sequence[float] = (99.0,)) -> list[str]:
    """The lines of the benchmark's own block, without the closing rule."""
    lines = [
        header(" Serving Benchmark Result ", "="),
        line("Successful requests:", metrics.completed),
        line("Failed requests:", metrics.failed),
    ]
    if metrics.aborted:
        lines.append(line("Aborted requests (client gave up):", metrics.aborted))
    failed = failed_by_status(result)
    if failed.keys() - {"rejected"}:
        lines.append(line("- of these:", ", ".join(f"{count:,} {name}" for name, count in failed.items())))
    if result.retries:
        lines.append(line("Requests sent again (replica failed):", len(result.retries)))
    if cut := cut_transfers(result):
        lines.append(line("KV transfers broken off:", cut))
    if result.workload.concurrency is not None:
        what = "request concurrency" if result.workload.sessions is None else "sessions under way"
        lines.append(line(f"Maximum {what}:", result.workload.concurrency))
    configured = result.config.get("workload") or {}
    rate = configured.get("rate")
    drawn = configured.get("arrival") in ("poisson", "gamma", "constant")
    if drawn and isinstance(rate, int | float) and math.isfinite(rate):
        what = "Request rate configured (RPS):" if result.workload.sessions is None else "Session rate configured (/s):"
        lines.append(line(what, float(rate)))
    lines += [
        line("Benchmark duration (s):", metrics.duration_s),
        line("Total input tokens:", metrics.total_input),
        line("Total generated tokens:", metrics.total_output),
        line("Request throughput (req/s):", metrics.request_throughput),
    ]
    if result.slo_ms:
        lines.append(line("Request goodput (req/s):", metrics.request_goodput))
    lines += [
        line("Output token throughput (tok/s):", metrics.output_throughput),
        line("Peak output token throughput (tok/s):", metrics.peak_output_throughput),
        line("Peak concurrent requests:", float(metrics.peak_concurrent_requests)),
        line("Total Token throughput (tok/s):", metrics.total_token_throughput),
    ]
    for name, short, title in SECTIONS:
        found = metrics.latency[name]
        lines += [
            header(title),
            line(f"Mean {short} (ms):", ms(found.mean_s)),
            line(f"Median {short} (ms):", ms(found.median_s)),
        ]
        lines += [line(f"P{percentile_word(p)} {short} (ms):", ms(found.percentile_s(p))) for p in percentiles]
    return lines


def pair(first: float | None, second: float | None, digits: int = 1) -> str:
    """`12.3 / 45.6`."""
    return " / ".join("n/a" if value is None else f"{value:.{digits}f}" for value in (first, second))


def percent(share: float | None) -> float | None:
    """A share of 1 in percent."""
    return None if share is None else 100 * share


def insight_block(result: SimulationResult, metrics: Metrics, found: Verdict | None) -> list[str]:
    """What a benchmark client cannot see: where requests wait, the KV cache, preemptions, price, and the bottleneck."""
    latency = metrics.latency
    lines = [
        header("Inside the engine"),
        line("Mean queue / prefill time (ms):", pair(ms(latency["queue"].mean_s), ms(latency["prefill"].mean_s), 2)),
        line("Mean TTFT, scheduled at once (ms):", ms(latency["ttft_not_queued"].mean_s)),
        _kv_line(metrics),
        line("Preemptions:", metrics.preemptions),
    ]
    if metrics.preemptions:
        lines.append(line("Tokens recomputed:", metrics.recomputed_tokens))
    if metrics.cached_tokens:
        lines.append(
            line("Prefix cache hits (% of input tokens):", 100 * metrics.cached_tokens / max(metrics.total_input, 1))
        )
    lines += _hit_lines(metrics)
    lines += [
        line("Steps:", metrics.steps),
        line("Mean batch, requests / tokens:", pair(metrics.batch_requests_mean, metrics.batch_tokens_mean)),
        line("Step time / duration (%):", percent(metrics.busy_share)),
        *_graph_lines(result),
        *_claim_lines(result),
        *_stage_lines(result, metrics),
        *_expert_lines(result),
        *_sides_lines(result),
        *_draft_lines(result),
        *_tier_lines(result),
        *_swap_lines(result),
        line(
            "Output tok/s per GPU / per user:",
            pair(metrics.output_throughput_per_gpu, metrics.output_throughput_per_user),
        ),
    ]
    if metrics.usd_per_1m_total is not None:
        lines += [
            line("USD per 1M tokens, input / output:", pair(metrics.usd_per_1m_input, metrics.usd_per_1m_output, 3)),
            line("USD per 1M tokens, total:", f"{metrics.usd_per_1m_total:.3f}"),
        ]
    lines += _priority_lines(result)
    lines += _session_lines(result)
    retrieved = [line(label, value) for label, value in retrieval_lines(result)]
    lines += [header("Retrieval"), *retrieved] if retrieved else []
    lines += _fleet_lines(result)
    if found is not None:
        lines.append(header("Bottleneck"))
        lines += textwrap.wrap(found.sentence, 78)
        lines += textwrap.wrap(found.change, 78, initial_indent="Try ", subsequent_indent="    ")
    return lines


def _claim_lines(result: SimulationResult) -> list[str]:
    """What the cost model says of its own step times."""
    claim = result.claim
    if claim is None:
        return []
    shares = pair(percent(claim.rel_error), percent(claim.outside_share))
    return [line("Step times: error / uncalibrated (%):", shares)]


def claim_warning(result: SimulationResult) -> list[str]:
    """The sentence on top of a run of whose step time more than a tenth lies outside calibration."""
    if result.pools:
        said = [(pool.name, claim_warning(pool.result)) for pool in result.pools]
        return [text for name, lines in said if lines for text in (f"Pool {name}:", *lines)]
    claim = result.claim
    if claim is None or claim.outside_share <= OUTSIDE_SHARE:
        return []
    what = (
        f"estimated: {result.device} is priced by the analytic model, not by measured kernels"
        if claim.estimated
        else f"{claim.outside_share:.0%} of the step time lies outside what was measured on {result.device}"
    )
    return textwrap.wrap(f"Note: {what}; half of the step times are expected within {claim.rel_error:.0%}.", 78)


def _hit_lines(metrics: Metrics) -> list[str]:
    """The hit rate as the engine counts it, n/a without a look-up, and a word where blocked requests count often."""
    found = metrics.prefix_cache
    rate, whole = (found.hit_rate, found.hit_rate_with_preempted) if found else (None, None)
    lines = [line("Hit rate, without / with preempted (%):", pair(percent(rate), percent(whole)))]
    admissions = metrics.completed + metrics.aborted + metrics.failed + metrics.preemptions
    if found and found.lookups + found.preempted_lookups > REPEATED_LOOKUPS * admissions:
        lines += textwrap.wrap(
            f"({found.lookups + found.preempted_lookups:,} look-ups for {admissions:,} admissions: a blocked head of "
            "the queue is looked up again in every step, as the engine counts)",
            78,
        )
    return lines


def _priority_lines(result: SimulationResult) -> list[str]:
    """TTFT by priority, where requests have one."""
    classes = by_priority(result)
    if not classes:
        return []
    rows = [
        line(
            f"Priority {one.priority} ({one.completed:,} requests):",
            pair(ms(one.ttft.median_s), ms(one.ttft.percentile_s(99.0)), 2),
        )
        for one in classes
    ]
    return [header("TTFT by priority, median / P99 (ms)"), *rows]


def _session_lines(result: SimulationResult) -> list[str]:
    """Sessions: how many, when the last answer comes, and what further rounds found again."""
    found = session_figures(result)
    if found is None:
        return []
    further, repeated = found.found_tokens, found.repeated_tokens
    lines = [
        header("Sessions"),
        line("Sessions completed:", f"{found.completed:,} of {found.sessions:,}"),
        line("Rounds / mean per session:", f"{found.rounds:,} / {found.rounds_mean:.1f}"),
    ]
    if found.unsent:
        lines.append(line("Rounds never sent:", found.unsent))
    for label, times in (
        ("Answer TTFT, median / P99 (ms):", found.answer_ttft),
        ("- from session start (ms):", found.answer_from_start),
        ("Session duration, median / P99 (ms):", found.duration),
    ):
        lines.append(line(label, pair(ms(times.median_s), ms(times.percentile_s(99.0)), 2)))
    lines += [
        line("Time between rounds (%):", percent(found.latency_share)),
        line("Hidden rounds/s / their tok/s:", pair(found.hidden_rounds_per_s, found.hidden_tokens_per_s, 2)),
    ]
    if repeated:
        lines.append(line("Repeated tokens found again (%):", 100 * further / repeated))
    if result.ranks > 1:
        lines.append(line("Rounds on the replica before (%):", percent(found.same_replica_share)))
    return lines


def _kv_line(metrics: Metrics) -> str:
    return line("KV cache usage, mean / max (%):", pair(percent(metrics.kv_usage_mean), percent(metrics.kv_usage_max)))


def _fleet_lines(result: SimulationResult) -> list[str]:
    """A fleet's pools, and of what hands over the parts of the time to the first token and the busiest link."""
    if not result.pools:
        return []
    lines = []
    for share in pool_shares(result):
        pool, metrics = share.pool, share.metrics
        lines += [
            header(f"Pool {pool.name} ({pool.role})"),
            line("Replicas:", share.what),
            line("Step time / duration (%):", percent(metrics.busy_share)),
            line("Mean batch, requests / tokens:", pair(metrics.batch_requests_mean, metrics.batch_tokens_mean)),
            *_graph_lines(pool.result),
            _kv_line(metrics),
            line("Mean queue time (ms):", ms(metrics.latency["queue"].mean_s)),
            *_claim_lines(pool.result),
            *_expert_lines(pool.result),
            *_sides_lines(pool.result),
        ]
    parts = ttft_parts(result)
    if parts:
        lines.append(header("TTFT by part, mean / P99 (ms)"))
        for name, found in parts.items():
            words = WORDS[name]
            label = f"{words[:1].upper()}{words[1:]}:"
            lines.append(line(label, pair(ms(found.mean_s), ms(found.percentile_s(99.0)), 2)))
    for row in link_rows(result)[:1]:
        lines.append(line("Busiest link:", f"{row['link']}, {row['busy_share']:.1%} of the time"))
    return lines


def _stage_lines(result: SimulationResult, metrics: Metrics) -> list[str]:
    """How busy each pipeline stage is, where there are several."""
    if result.stages is None or not metrics.duration_s:
        return []
    busy_s = (result.stages.end_ns - result.stages.start_ns).sum(axis=0) / 1e9
    shares = " / ".join(f"{100 * float(s) / (metrics.duration_s * result.ranks):.1f}" for s in busy_s)
    return [line("Pipeline stages busy (%):", shares)]


def _graph_lines(result: SimulationResult) -> list[str]:
    """How many decode batches ran without a CUDA graph, how much padding graphs cost, and which sizes would help."""
    found = graph_fields(result)
    if found is None or not found["sizes"] or found["eager_decode_share"] is None:
        return []
    shares = pair(percent(found["eager_decode_share"]), percent(found["decode_padding_share"]))
    lines = [line("Decode batches eager / padding (%):", shares)]
    if found["sizes_to_add"]:
        lines.append(line("Graph sizes that would help, tokens:", ", ".join(map(str, found["sizes_to_add"]))))
    return lines


def _expert_lines(result: SimulationResult) -> list[str]:
    """How uneven the experts' ranks are, where that was drawn."""
    found = expert_fields(result)
    if found is None or found["imbalance_mean"] is None:
        return []
    lines = []
    if found["ranks"] > 1:
        lines.append(
            line("Fullest expert rank / mean, mean / P95:", pair(found["imbalance_mean"], found["imbalance_p95"], 2))
        )
        lines.append(line("Experts' ranks wait (%):", percent(found["wait_share"])))
    return lines


def _sides_lines(result: SimulationResult) -> list[str]:
    """How busy attention devices, FFN devices and the links between them are in a step, where they are apart."""
    found = result.attention_ffn
    if found is None:
        return []
    return [
        line("Attention / FFN devices, micro-batches:", f"{found.sizes}, {found.micro_batches}"),
        line("Busy in a step (%):", pair(percent(found.attention_busy), percent(found.ffn_busy))),
        line("Bubble (%):", pair(percent(found.attention_bubble), percent(found.ffn_bubble))),
        line("Links in use, to FFN / back (%):", pair(percent(found.there_occupied), percent(found.back_occupied))),
        line("Transfer time hidden (%):", percent(found.hidden_share)),
    ]


def _draft_lines(result: SimulationResult) -> list[str]:
    """What became of drafts, where there were some."""
    found = speculation_fields(result.speculation)
    if found is None:
        return []
    rates = " / ".join("n/a" if rate is None else f"{100 * rate:.1f}" for rate in found["acceptance_by_position"][:6])
    more = " ..." if len(found["acceptance_by_position"]) > 6 else ""
    return [
        line("Drafted / accepted tokens:", f"{found['drafted_tokens']:,} / {found['accepted_tokens']:,}"),
        line("Accepted by position (%):", f"{rates}{more}"),
        line("Tokens per row, all / with drafts:", pair(found["tokens_per_step"], found["mean_accepted_length"], 2)),
    ]


def _tier_lines(result: SimulationResult) -> list[str]:
    """What was recalled from each tier behind the cache, where there are some."""
    found = tier_fields(result.cache_tiers, result.block_size, begun_tokens(result))
    lines = []
    for tier in found or ():
        name = f"Cache tier {tier['name']}"
        lines += [
            line(f"{name}, recalled (% of prompts):", percent(tier["recalled_share"])),
            line(f"{name}, recall mean / P99 (ms):", pair(tier["recall_ms_mean"], tier["recall_ms_p99"])),
            line(f"{name}, GB written / recalled:", pair(tier["written_bytes"] / GB, tier["recalled_bytes"] / GB)),
            line(f"{name}, most used (%):", percent(tier["most_used_share"])),
        ]
    return lines


def _swap_lines(result: SimulationResult) -> list[str]:
    """What became of preempted requests' KV in the host, where it goes there."""
    found = swap_fields(result.swap, result.block_size)
    if found is None:
        return []
    return [
        line("Preemptions swapped / without room:", f"{found['swaps']:,} / {found['refused']:,}"),
        line("Swapped, GB out / in:", pair(found["out_bytes"] / GB, found["in_bytes"] / GB, 2)),
        line("Steps waited for swaps, out / in (s):", pair(found["out_wait_s"], found["in_wait_s"], 3)),
        line("Swapped requests away, mean / P99 (ms):", pair(found["away_ms_mean"], found["away_ms_p99"])),
        line("Host memory for swaps, most used (%):", percent(found["most_used_share"])),
    ]


def assumption_block(result: SimulationResult) -> list[str]:
    """Every assumption with its value and source, then what is not modelled."""
    lines = [header("Assumptions")]
    for what, value, source in result.assumptions:
        lines += textwrap.wrap(f"{what} = {value}  [{source}]", 100, subsequent_indent="    ")
    lines.append(header("Not modelled"))
    for sentence in result.not_modelled or ["nothing known to be missing"]:
        lines += textwrap.wrap(sentence, 100, initial_indent="- ", subsequent_indent="  ")
    return lines


def console(
    result: SimulationResult,
    metrics: Metrics,
    found: Verdict | None,
    percentiles: Sequence[float] = (99.0,),
    assumptions: bool = False,
) -> str:
    """The text printed at the end of a run. `percentiles` must be among those measured, else `ValueError`."""
    lines = [*cut_note(result), *claim_warning(result), *benchmark_block(result, metrics, percentiles)]
    lines += insight_block(result, metrics, found)
    if assumptions:
        lines += assumption_block(result)
    return "\n".join([*lines, "=" * WIDTH])


# MISSING

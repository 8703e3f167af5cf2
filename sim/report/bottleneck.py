"""Why it is not faster: one verdict with its evidence and the setting to change.

While requests wait, an engine stops admitting for one of four reasons, which the step table tells apart: every seat
is taken (`running = max_num_seqs`), the step's token budget is spent (`max_num_batched_tokens`), there are no KV blocks
for the next request (`sim.report.blocked`), or, with all three to spare, the scheduler's own rule. Where nobody waits,
the verdict is about where a step's time goes.
"""

from dataclasses import dataclass

import numpy as np

from sim.report.attention_ffn import attention_ffn_bottleneck
from sim.report.blocked import Limits, limits
from sim.report.measures import (
    capture_more,
    could_reuse,
    fewer_bytes,
    larger_batch,
    less_launching,
    load_key,
    more_blocks,
)
from sim.report.metrics import Metrics, latencies
from sim.report.result import SimulationResult
from sim.report.verdict import Verdict
from sim.units import NS_PER_S


QUEUE_SHARE = 0.10
"""Requests waiting for more than this share of step time is a queue worth a verdict."""

RECOMPUTE_SHARE = 0.05
"""So is recomputing more than this share of all computed tokens after preemptions."""

THRASH_SHARE = 0.25
"""From this share on, recomputing is the verdict, whatever keeps requests out besides."""

SERVER_SHARE = 0.7
"""Of the time to the first token: where more passes before the engine, the API server is the bottleneck."""

RULE_QUEUE_SHARE = 0.05
"""A scheduler's rule is to blame only where queueing is this share of E2E latency: less is waiting for a step."""

BUBBLE_RATIO = 1.5
"""Pipeline stages stand idle too much where some stage runs this many times as long as each does on average."""


@dataclass(frozen=True)
class StepShares:
    """Shares of step time: requests waiting, split by what kept them out, and what the steps were made of."""

    waiting: float
    seats: float
    budget: float
    kv: float
    rule: float
    decode_only: float
    eager_decode: float
    component: dict[str, float]


def step_shares(result: SimulationResult) -> StepShares | None:
    """The shares the verdict rests on, weighted by step time; None without steps."""
    steps, settings = result.steps, result.settings
    span = result.busy_ns.astype(float)
    if not len(span) or span.sum() <= 0:
        return None

    def share(chosen: np.ndarray) -> float:
        return float(span[chosen].sum() / span.sum())

    waiting = np.asarray(steps.waiting) > 0
    found: Limits = limits(result)
    decode_only = np.asarray(steps.prefill_tokens) == 0
    eager = decode_only & (np.asarray(steps.graph_mode) == 0) & bool(len(settings.get("graph_sizes", ())))
    totals = {name: float(np.sum(seconds)) for name, seconds in result.components_s.items()}
    whole = sum(totals.values())
    return StepShares(
        waiting=share(waiting),
        seats=share(waiting & found.seats),
        budget=share(waiting & found.budget),
        kv=share(waiting & found.blocks),
        rule=share(waiting & found.rule),
        decode_only=share(decode_only),
        eager_decode=share(eager),
        component={name: total / whole for name, total in totals.items()} if whole > 0 else {},
    )


def verdict(result: SimulationResult, metrics: Metrics) -> Verdict | None:
    """The bottleneck of a run, or None if nothing ran."""
    shares = step_shares(result)
    if shares is None or not metrics.completed:
        return None
    return _server_verdict(result) or _queue_verdict(result, metrics, shares) or _step_verdict(result, metrics, shares)


def _server_verdict(result: SimulationResult) -> Verdict | None:
    """Of a run whose requests spend most of their time to the first token before the engine has them.

    Those that were sent again, or found nobody in service, waited for something else.
    """
    found = latencies(result.requests)
    here = ~np.isin(found.request, [*result.retries, *result.unserved_ns])
    before_s, ttft_s = float((found.ttft_s - found.ttft_queued_s)[here].sum()), float(found.ttft_s[here].sum())
    step_s = float(np.max(result.busy_ns)) / NS_PER_S  # a request waits at most so long for the loop to look
    if not here.any() or before_s < SERVER_SHARE * ttft_s or before_s < 2.0 * step_s * here.sum():
        return None
    share = before_s / ttft_s
    return Verdict(
        "server-bound",
        f"Server-bound: {share:.0%} of the time to the first token passes before the engine has a request: the API "
        "server takes them one at a time.",
        "deployment.replicas: each has a server of its own.",
        {"before_engine": share},
    )


def _queue_verdict(result: SimulationResult, metrics: Metrics, shares: StepShares) -> Verdict | None:
    steps = result.steps
    computed = float(np.sum(steps.tokens))
    recomputed = (metrics.recomputed_tokens or 0) / computed if computed else 0.0
    found = latencies(result.requests)
    queued_s = found.queue_s + found.retrieval_s - (found.ttft_s - found.ttft_queued_s)  # in the engine
    queue_share = float(queued_s.sum() / found.e2el_s.sum()) if found.e2el_s.sum() > 0 else 0.0
    reasons = {"seats": shares.seats, "token_budget": shares.budget, "kv": shares.kv, "scheduler": shares.rule}
    evidence = {"waiting": shares.waiting, **reasons, "queue_share_of_e2el": queue_share, "recomputed": recomputed}
    if queue_share < RULE_QUEUE_SHARE:
        del reasons["scheduler"]
    queued = sum(reasons.values()) >= QUEUE_SHARE
    if not queued and recomputed <= RECOMPUTE_SHARE:
        return None
    if recomputed >= THRASH_SHARE:
        return _thrash_verdict(result, metrics, recomputed, computed, evidence)
    reason = max(reasons, key=lambda name: reasons[name]) if queued else "kv"
    waits = f"requests wait during {shares.waiting:.0%} of step time, and queueing is {queue_share:.0%} of E2E latency"
    kv_mean, kv_max = metrics.kv_usage_mean or 0.0, metrics.kv_usage_max or 0.0
    if reason == "seats":
        seats = result.settings["max_num_seqs"]
        return Verdict(
            "admission-bound",
            f"Admission-bound (seats): {waits}; for {shares.seats:.0%} all {seats} seats are taken, "
            f"while KV use peaks at {kv_max:.0%}.",
            "engine.max_num_seqs (--max-num-seqs): raise it; TPOT will rise with the batch."
            if kv_max < 0.9
            else "deployment.replicas: seats and KV blocks run out together, so add replicas or lower the load.",
            evidence,
        )
    if reason == "token_budget":
        budget = result.settings["max_num_batched_tokens"]
        return Verdict(
            "prefill-bound",
            f"Prefill-bound: {waits}; for {shares.budget:.0%} the step's budget of {budget} tokens is spent.",
            "engine.max_num_batched_tokens (--max-num-batched-tokens): raise it for TTFT at the expense of ITL, "
            "or add deployment.replicas.",
            evidence,
        )
    if reason == "scheduler":
        policy = (result.config.get("engine") or {}).get("scheduler")
        return Verdict(
            "scheduler-bound",
            f"Scheduler-bound: {waits}; for {shares.rule:.0%} seats, token budget and KV blocks are all to be had "
            f"(mean batch {metrics.batch_tokens_mean or 0:.0f} tokens, KV use at most {kv_max:.0%}), "
            f"so it is a rule of the scheduler{f' ({policy})' if policy else ''} that keeps them out.",
            "engine: one that admits requests in every step (continuous batching), or add deployment.replicas.",
            evidence,
        )
    thrown = "" if not metrics.preemptions else f", and {metrics.preemptions:,} preemptions"
    if metrics.recomputed_tokens:
        thrown += f" recompute {metrics.recomputed_tokens:,} tokens"
    return Verdict(
        "kv-bound",
        f"KV-bound: {waits}; for {shares.kv:.0%} seats are free but KV blocks are too few "
        f"(mean use {kv_mean:.0%}){thrown}.",
        more_blocks(result),
        evidence,
    )


def _thrash_verdict(
    result: SimulationResult, metrics: Metrics, share: float, computed: float, evidence: dict[str, float]
) -> Verdict:
    return Verdict(
        "kv-bound",
        f"KV-bound (thrashing): {metrics.preemptions:,} preemptions for want of KV blocks make the engine compute "
        f"{metrics.recomputed_tokens or 0:,} tokens again, {share:.0%} of the {computed:,.0f} it computes "
        f"(input is {metrics.total_input:,}).",
        "engine.max_num_seqs (--max-num-seqs): lower it to what the KV cache holds, or " + more_blocks(result),
        evidence,
    )


def _step_verdict(result: SimulationResult, metrics: Metrics, shares: StepShares) -> Verdict:
    part = shares.component
    busy = metrics.busy_share or 0.0
    rows = metrics.batch_requests_mean or 0.0
    overhead = part.get("launch_s", 0.0) + part.get("host_s", 0.0)
    evidence = {"waiting": shares.waiting, "busy": busy, "decode_only": shares.decode_only}
    evidence |= {name.removesuffix("_s"): share for name, share in part.items()}
    if shares.eager_decode > 0.2:
        return Verdict(
            "graph-miss",
            f"Graph-miss: for {shares.eager_decode:.0%} of step time decode batches run without a CUDA graph "
            "although graphs are captured.",
            capture_more(result),
            evidence | {"eager_decode": shares.eager_decode},
        )
    if overhead > 0.3:
        return Verdict(
            "launch-bound",
            f"Launch-bound: kernel launches and host work are {overhead:.0%} of step time "
            f"at a mean batch of {rows:.0f}.",
            less_launching(result),
            evidence,
        )
    if part.get("collective_s", 0.0) > 0.3:
        return Verdict(
            "communication-bound",
            f"Communication-bound: collectives are {part['collective_s']:.0%} of step time.",
            f"{_ranks_key(result)}: lower it and add deployment.replicas.",
            evidence,
        )
    if result.attention_ffn is not None and busy >= 0.5:
        kind, sentence, change, sides = attention_ffn_bottleneck(result.attention_ffn)
        return Verdict(kind, sentence, change, evidence | sides)
    filled = _some_stage_busy(result, metrics)
    if filled is not None and filled > BUBBLE_RATIO * busy:
        return Verdict(
            "pipeline-bound",
            f"Pipeline-bound: some stage runs {filled:.0%} of the time, but each of them only {busy:.0%} on average: "
            "too few batches are under way to fill the stages.",
            "deployment.tensor_parallel instead of deployment.pipeline_parallel, or more load where the engine's "
            "stages overlap.",
            evidence | {"some_stage_busy": filled},
        )
    if busy < 0.5:
        return Verdict(
            "under-loaded",
            f"Under-loaded: steps run {busy:.0%} of the time and requests seldom wait.",
            f"{load_key(result)}: the deployment can take more{', or use fewer GPUs' if result.gpus > 1 else ''}.",
            evidence,
        )
    if shares.decode_only < 0.5:
        return Verdict(
            "prefill-bound",
            f"Prefill-bound: {1 - shares.decode_only:.0%} of step time is in steps that carry prefill; "
            "nobody queues for seats or KV blocks.",
            ("engine.enable_prefix_caching, or " if could_reuse(result) else "")
            + "deployment.tensor_parallel / deployment.replicas for more compute.",
            evidence,
        )
    reads = part.get("gemm_s", 0.0) + part.get("moe_s", 0.0) + part.get("head_s", 0.0)
    return Verdict(
        "bandwidth-bound",
        f"Bandwidth-bound (decode): {shares.decode_only:.0%} of step time is decode-only "
        f"with {rows:.0f} request{'' if f'{rows:.0f}' == '1' else 's'} per step on average; "
        f"weights take {reads:.0%} and attention {part.get('attention_s', 0.0):.0%} of it.",
        larger_batch(result, rows) if rows < 16 else fewer_bytes(result),
        evidence,
    )


def _some_stage_busy(result: SimulationResult, metrics: Metrics) -> float | None:
    """Share of the time in which at least one stage of a replica runs; None without pipeline stages."""
    if result.stages is None or not metrics.duration_s:
        return None
    total_ns = 0
    for r in np.unique(result.steps.replica):
        rows = result.steps.replica == r
        start, end = result.stages.start_ns[rows].ravel(), result.stages.end_ns[rows].ravel()
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        covered_from = np.maximum(start[1:], end[:-1])
        total_ns += int(end[0] - start[0]) + int(np.maximum(end[1:] - covered_from, 0).sum())
    return total_ns / 1e9 / (metrics.duration_s * result.ranks)


def _ranks_key(result: SimulationResult) -> str:
    """The key of the ranks that exchange the most: those of tensor parallelism, if there are any."""
    deployment = result.config.get("deployment") or {}
    if deployment.get("tensor_parallel") == 1 and deployment.get("data_parallel", 1) > 1:
        return "deployment.data_parallel (--data-parallel-size)"
    return "deployment.tensor_parallel (--tensor-parallel-size)"

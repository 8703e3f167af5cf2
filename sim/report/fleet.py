"""What a fleet of several pools has beside a single deployment: each pool's share, and the way of KV between them.

The time to the first token, as the client sees it, of a request that is prefilled on one instance and decoded on
another falls into parts: waiting and computing at the prefill side, the hand-over, waiting for blocks at the decode
side, the transfer (set-up, then bytes), the seat there, and the step that gives out the token. Where the decode side
has blocks first, hand-over and waiting for them come before the prefill, and of the transfer what is left after it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.report.attention_ffn import attention_ffn_fields
from sim.report.bottleneck import verdict
from sim.report.experts import expert_fields
from sim.report.graphs import graph_fields
from sim.report.metrics import Metrics, duration_of, measure
from sim.report.moment import CUT
from sim.report.percentile import Distribution, distribution
from sim.report.result import FINISHED, PoolResult, SimulationResult
from sim.report.unserved import unserved_verdict
from sim.report.verdict import Verdict
from sim.units import NS_PER_S


PARTS = ("queue", "prefill", "hand_over", "decode_queue", "set_up", "transfer", "seat", "first_step")
DECODE_FIRST = ("hand_over", "decode_queue", "queue", "prefill", "transfer", "seat", "first_step")
"""Of the time to the first token, in order."""

WORDS = {
    "queue": "wait for the prefill",
    "prefill": "prefill",
    "hand_over": "hand-over",
    "decode_queue": "wait at the decode instance",
    "set_up": "set-up of the transfer",
    "transfer": "KV transfer",
    "seat": "wait for a seat",
    "first_step": "first token",
}


@dataclass(frozen=True)
class PoolShare:
    """One pool: what it is, its metrics, and what limits it."""

    pool: PoolResult
    metrics: Metrics
    verdict: Verdict | None

    @property
    def what(self) -> str:
        """`2 x 4 H100 SXM`."""
        result = self.pool.result
        each = result.gpus // result.replicas
        return f"{result.replicas} x {f'{each} x ' if each > 1 else ''}{result.device}"


def pool_shares(result: SimulationResult) -> list[PoolShare]:
    """Each pool of a fleet; none for a single deployment."""
    found, duration_s = [], duration_of(result.requests)
    for pool in result.pools:
        metrics = measure(pool.result, duration_s=duration_s)
        found.append(PoolShare(pool, metrics, verdict(pool.result, metrics)))
    return found


def fleet_verdict(result: SimulationResult, metrics: Metrics) -> Verdict | None:
    """What limits a run: who was not served; of a fleet, the pool whose requests wait the most, or is busiest."""
    unserved = unserved_verdict(result, metrics)
    if unserved is not None:
        return unserved
    if not result.pools:
        return verdict(result, metrics)
    shares = [share for share in pool_shares(result) if share.verdict is not None]
    if not shares:
        return None
    worst = max(shares, key=_pressure)
    found = worst.verdict
    assert found is not None
    pool = worst.pool
    evidence = {f"{share.pool.name}_busy": share.metrics.busy_share or 0.0 for share in shares}
    sentence = f"Pool {pool.name} ({pool.role}): {found.sentence}"
    change = found.change.replace("deployment.", f"deployment.pools.{pool.name}.").replace(
        "engine.", f"deployment.pools.{pool.name}.settings."
    )
    return Verdict(found.kind, sentence, change, found.evidence | evidence)


def _pressure(share: PoolShare) -> tuple[bool, float, float]:
    """How hard pressed a pool is: at all; by the share of their time there that requests wait; by how busy it is.

    The share counts in fifths, so that small queues tie.
    """
    queue, whole = share.metrics.latency["queue"].mean_s or 0.0, share.metrics.latency["e2el"].mean_s or 0.0
    loaded = share.verdict is not None and share.verdict.kind != "under-loaded"
    return loaded, round(5 * queue / whole) if whole else 0.0, share.metrics.busy_share or 0.0


def ttft_parts(result: SimulationResult) -> dict[str, Distribution]:
    """The parts of the time to the first token of finished requests that were handed over; empty if none was."""
    moved = result.transfers
    if moved is None:
        return {}
    rows = (np.asarray(result.requests.status) == FINISHED) & (np.asarray(moved.source) >= 0)
    if not rows.any():
        return {}
    return {name: distribution((end - start)[rows] / NS_PER_S) for name, start, end in part_times(result)}


def part_times(result: SimulationResult) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Begin and end (ns) of each part of the time to the first token, axis `request`; nothing where KV did not move."""
    moved, requests = result.transfers, result.requests
    if moved is None:
        return []
    prefill, decode = (requests.scheduled_ns, moved.prefilled_ns), (moved.queued_ns, moved.allocated_ns)
    between = (*decode, *prefill) if moved.decode_first else (*prefill, *decode, moved.begun_ns)
    marks = (requests.asked_ns, *between, moved.received_ns, moved.seated_ns, requests.first_token_ns)
    times = [np.asarray(mark, np.int64) for mark in marks]
    return list(zip(DECODE_FIRST if moved.decode_first else PARTS, times, times[1:], strict=False))


def link_rows(result: SimulationResult) -> list[dict[str, Any]]:
    """Links that carried KV, the busiest first: bytes, rate, and the share of the run in which a flow used it."""
    links, requests = result.links, result.requests
    if links is None or not len(requests):
        return []
    span_ns = max(int(np.max(requests.finish_ns)) - requests.first_arrival_ns, 1)
    rows = [
        {
            "link": name,
            "bytes": float(links.bytes[i]),
            "bytes_per_s": float(links.bytes_per_s[i]),
            "busy_share": float(links.busy_ns[i] / span_ns),
            "most_flows": int(links.most_flows[i]),
        }
        for i, name in enumerate(links.names)
        if links.bytes[i] > 0
    ]
    return sorted(rows, key=lambda row: (-row["busy_share"], row["link"]))


def cut_transfers(result: SimulationResult) -> int:
    """How many transfers were broken off: an instance failed, or nobody waited any more."""
    return sum(moment.what == CUT for moment in result.moments)


def fleet_fields(result: SimulationResult) -> dict[str, Any]:
    """What a summary has of a fleet: `pools`, `ttft_parts_ms` and `links`; null without pools."""
    if not result.pools:
        none = ("pools", "ttft_parts_ms", "links", "failed_transfers", "cut_transfers")
        return dict.fromkeys(none)
    parts = ttft_parts(result)
    return {
        "pools": [_pool_fields(share) for share in pool_shares(result)],
        "ttft_parts_ms": {
            name: {"mean": _ms(found.mean_s), "median": _ms(found.median_s), "p99": _ms(found.percentile_s(99.0))}
            for name, found in parts.items()
        }
        or None,
        "links": link_rows(result) or None,
        "failed_transfers": None if result.transfers is None else int((result.transfers.failed > 0).sum()),
        "cut_transfers": None if result.transfers is None else cut_transfers(result),
    }


def _pool_fields(share: PoolShare) -> dict[str, Any]:
    pool, metrics = share.pool, share.metrics
    result = pool.result
    return {
        "name": pool.name,
        "role": pool.role,
        "device": result.device,
        "engine_label": result.engine_label,
        "gpus": result.gpus,
        "replicas": result.replicas,
        "data_parallel": result.data_parallel,
        "requests": len(result.requests),
        "num_gpu_blocks": result.num_gpu_blocks,
        "steps": metrics.steps,
        "busy_share": metrics.busy_share,
        "batch_requests_mean": metrics.batch_requests_mean,
        "batch_tokens_mean": metrics.batch_tokens_mean,
        "kv_usage_mean": metrics.kv_usage_mean,
        "kv_usage_max": metrics.kv_usage_max,
        "preemptions": int(np.sum(result.steps.preempted)),
        "mean_queue_ms": _ms(metrics.latency["queue"].mean_s),
        "step_time_rel_error": result.claim and result.claim.rel_error,
        "step_time_outside_calibration": result.claim and result.claim.outside_share,
        "bottleneck": share.verdict,
        "cuda_graphs": graph_fields(result),
        "experts": expert_fields(result),
        "attention_ffn": attention_ffn_fields(result.attention_ffn),
        "memory": result.memory,
        "settings": result.settings,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds

"""What came of retrieval: its part of TTFT, and how much of the retrieved chunks was found in the prefix cache again.

A chunk is found by prefix only where it comes behind the same chunks in the same order: `in_order_tokens` counts those
exactly, as a cache that forgets nothing would find them, beside all that were retrieved before at any place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.report.metrics import PERCENTILES, latencies
from sim.report.percentile import Distribution, distribution
from sim.report.result import FINISHED, SimulationResult


@dataclass(frozen=True)
class RetrievalFigures:
    """Retrieval in numbers; times and tokens are of finished requests.

    - `latency`: from sending a request until its prompt goes to the engine; `after`: from there to its first token.
    - `distinct`: different chunks that were retrieved; `retrieved_tokens`: of all chunks; of these `repeated_tokens`
      had been retrieved for an earlier request, `in_order_tokens` behind the same chunks in the same order, and
      `found_tokens` were in the prefix cache. Earlier: its prompt went to the engine before.
    """

    latency: Distribution
    after: Distribution
    distinct: int
    retrieved_tokens: int
    repeated_tokens: int
    in_order_tokens: int
    found_tokens: int


def retrieval_figures(result: SimulationResult, percentiles: Sequence[float] = PERCENTILES) -> RetrievalFigures | None:
    """The figures of a run whose workload retrieves; None of any other."""
    retrieval, requests = result.workload.retrieval, result.requests
    if retrieval is None:
        return None
    found = latencies(requests)
    finished = np.flatnonzero(np.asarray(requests.status) == FINISHED)
    order = finished[np.argsort(requests.asked_ns[finished], kind="stable")]
    chunks, size = retrieval.chunks[order], retrieval.chunk_tokens
    cached = np.asarray(requests.cached_tokens)[finished] - retrieval.system_tokens
    return RetrievalFigures(
        latency=distribution(found.retrieval_s, percentiles=percentiles),
        after=distribution(found.ttft_s - found.retrieval_s, percentiles=percentiles),
        distinct=len(np.unique(chunks)),
        retrieved_tokens=chunks.size * size,
        repeated_tokens=(chunks.size - len(np.unique(chunks))) * size,
        in_order_tokens=in_order(chunks) * size,
        found_tokens=int(np.clip(cached, 0, retrieval.retrieved_tokens).sum()),
    )


def in_order(chunks: np.ndarray) -> int:
    """How many chunks, axes `request chunk`, stand behind the same chunks in the same order as in some row before."""
    after: dict[tuple[int, int], int] = {}
    count = 0
    for row in chunks.tolist():
        node = 0
        for chunk in row:
            there = after.get((node, chunk))
            count += there is not None
            node = after.setdefault((node, chunk), len(after) + 1)
    return count


def retrieval_lines(result: SimulationResult) -> list[tuple[str, Any]]:
    """Labels and values of the console's block; none without retrieval."""
    found = retrieval_figures(result)
    if found is None:
        return []

    def both(times: Distribution) -> str:
        values = (times.median_s, times.percentile_s(99.0))
        return " / ".join("n/a" if value is None else f"{1e3 * value:.2f}" for value in values)

    lines: list[tuple[str, Any]] = [
        ("Retrieval, median / P99 (ms):", both(found.latency)),
        ("TTFT after it, median / P99 (ms):", both(found.after)),
    ]
    if found.retrieved_tokens:
        share = 100 / found.retrieved_tokens
        lines += [
            ("Retrieved tokens:", found.retrieved_tokens),
            ("- retrieved before (%):", share * found.repeated_tokens),
            ("- in the same order (%):", share * found.in_order_tokens),
            ("- found in the cache (%):", share * found.found_tokens),
        ]
    return lines

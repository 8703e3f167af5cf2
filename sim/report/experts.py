"""How unevenly tokens were spread over the experts' ranks: what a summary, the console and the page have of it."""

from typing import Any

import numpy as np

from sim.report.result import SimulationResult


def expert_fields(result: SimulationResult) -> dict[str, Any] | None:
    """`experts` of a summary; None where they were priced as evenly spread, or the model has none."""
    table = result.experts
    if table is None:
        return None
    return {
        "law": table.law,
        "detail": table.detail,
        "ranks": len(table.busy_s),
        "imbalance_mean": float(np.mean(table.imbalance)) if len(table.imbalance) else None,
        "imbalance_p95": float(np.percentile(table.imbalance, 95)) if len(table.imbalance) else None,
        "wait_share": wait_share(result),
        "by_rank": [
            {"rank": rank, "rows_share": float(rows), "busy_s": float(busy), "wait_s": float(wait)}
            for rank, (rows, busy, wait) in enumerate(zip(table.rows, table.busy_s, table.wait_s, strict=True))
        ],
        "steps_looked_at": table.looked_at,
    }


def wait_share(result: SimulationResult) -> float | None:
    """Of the time that ranks are in their experts, the part in which they wait for the slowest."""
    table = result.experts
    if table is None:
        return None
    whole = float(table.busy_s.sum() + table.wait_s.sum())
    return float(table.wait_s.sum()) / whole if whole else None

"""What became of drafts: what a summary, the console and the page have of speculative decoding."""

from typing import Any

import numpy as np

from sim.report.result import SimulationResult, SpeculationTable


def speculation_fields(table: SpeculationTable | None) -> dict[str, Any] | None:
    """`speculation` of a summary; None where nothing was drafted.

    `acceptance_by_position`: of the rows that verified a draft at this position, those in which it and all before it
    were right. `mean_accepted_length`: tokens of a row that verified drafts, the one after them included;
    `tokens_per_step`: of any row that gave a client some, after those beyond a request's end were cut.
    """
    if table is None:
        return None
    verified = table.verified
    most = len(verified) - 1
    drafted = [int(verified[place:].sum()) for place in range(1, most + 1)]
    accepted = [int(verified[:, place:].sum()) for place in range(1, most + 1)]
    rows = drafted[0] if drafted else 0
    return {
        "method": table.method,
        "num_speculative_tokens": most,
        "verifying_rows": rows,
        "drafted_tokens": sum(drafted),
        "accepted_tokens": sum(accepted),
        "committed_tokens": table.committed,
        "cut_tokens": table.cut,
        "draft_acceptance_rate": sum(accepted) / sum(drafted) if sum(drafted) else None,
        "acceptance_by_position": [a / d if d else None for a, d in zip(accepted, drafted, strict=True)],
        "mean_accepted_length": 1.0 + sum(accepted) / rows if rows else None,
        "tokens_per_step": table.committed / table.rows if table.rows else None,
    }


def cut_drafts(result: SimulationResult) -> int:
    """Accepted drafts beyond a request's end: they were computed, and are no output."""
    return 0 if result.speculation is None else result.speculation.cut


def merged(tables: list[SpeculationTable]) -> SpeculationTable | None:
    """Those of several replicas together."""
    if not tables:
        return None
    return SpeculationTable(
        tables[0].method,
        np.sum([table.verified for table in tables], axis=0),
        sum(table.rows for table in tables),
        sum(table.committed for table in tables),
        sum(table.cut for table in tables),
    )

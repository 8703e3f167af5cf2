"""What drafting costs: the drafter's passes behind each step, priced like steps of their own.

After a step the drafter runs over its tokens, and samples once for each of the n rows, decodes and chunks; then, for
every further draft, over one token of each row, on the context that the row has:

    draft_s = price(tokens, rows n) + passes price(n tokens, rows n, n decodes)

What follows from sums: rows n = decodes + chunks; their lengths sum to decode_sum + prefill_kv_tokens, the longest is
that of both, and the squares are taken as if all chunks were of one length.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.cost.lengths import batch_s, decodes_s
from sim.cost.model import CostModel
from sim.cost.table import PriceTable, price_steps, price_table
from sim.deployment.engine import EngineSettings
from sim.deployment.graphs import draft_runs_as
from sim.deployment.plan import DraftPlan, PlanArrays


class DraftTables(NamedTuple):
    """Prices of a drafter's passes. `runs_as[tokens]`: padded tokens and graph mode; the rest as in `DraftPlan`."""

    first: PriceTable
    later: PriceTable
    passes: int
    of_rows: bool
    runs_as: list[tuple[int, int]]


class DraftedPrices(NamedTuple):
    """Prices of steps with drafts: of the model that verifies, and of the drafter if it is a model."""

    verify: PriceTable
    draft: DraftTables | None


def drafted_prices(
    cost: CostModel,
    plan: PlanArrays,
    draft: DraftPlan | None,
    settings: EngineSettings,
    max_tokens: int,
    max_rows: int,
    draft_tokens: int,
) -> DraftedPrices:
    """Tabulate a plan and its drafter up to `max_tokens` padded tokens and `max_rows` rows of `draft_tokens` drafts."""
    verify = price_table(cost, plan, max_tokens, max_rows * (1 + draft_tokens))
    if draft is None:
        return DraftedPrices(verify, None)
    first = price_table(cost, draft.first, max_tokens, max_rows)
    later = price_table(cost, draft.later, max_tokens, max_rows) if draft.passes else first
    return DraftedPrices(
        verify, DraftTables(first, later, draft.passes, draft.of_rows, _runs_as(settings, draft, max_tokens))
    )


def draft_s(tables: DraftTables, batch: Any) -> float:
    """Seconds of all passes behind a batch, a thing with the sums of `BatchStats` and its `tokens`."""
    rows = batch.decodes + batch.prefill_chunks
    if not rows:
        return 0.0
    keys = _keys(batch)
    padded, graph = tables.runs_as[rows]
    if tables.of_rows:
        one_s = float(tables.first.token_s[graph, padded] + tables.first.row_s[rows])
        return one_s + decodes_s(tables.first.lengths, rows, *keys)
    later_s = 0.0
    if tables.passes:
        one_s = float(tables.later.token_s[graph, padded] + tables.later.row_s[rows])
        later_s = tables.passes * (one_s + decodes_s(tables.later.lengths, rows, *keys))
    padded, graph = tables.runs_as[batch.tokens]
    first_s = float(tables.first.token_s[graph, padded] + tables.first.row_s[rows])
    return first_s + batch_s(tables.first.lengths, batch) + later_s


def with_drafts(
    found: dict[str, np.ndarray], cost: CostModel, draft: DraftPlan | None, settings: EngineSettings, steps: Any
) -> dict[str, np.ndarray]:
    """Steps as `price_steps` found them, with `draft_s`, what drafting takes behind each; `steps`: their table."""
    if draft is None:
        return found | {"draft_s": np.zeros(len(steps))}
    rows = np.asarray(steps.decodes) + np.asarray(steps.prefill_chunks)
    runs_as = np.array(_runs_as(settings, draft, int(max(np.max(steps.tokens, initial=0), np.max(rows, initial=0)))))
    longer = dict(zip(("decode_sum", "decode_max", "decode_sumsq"), _keys(steps, np.maximum), strict=True))
    small = _columns(runs_as, rows, {"decodes": rows, "emitting": rows} | longer)
    passes = [(draft.first, 1, small)]
    if not draft.of_rows:
        names = [name for name in vars(steps) if name.startswith(("prefill_", "decode")) or name == "draft_tokens"]
        whole = {name: np.asarray(getattr(steps, name)) for name in names}
        first = _columns(runs_as, steps.tokens, whole | {"emitting": rows - whole["draft_tokens"]})
        passes = [(draft.first, 1, first), (draft.later, draft.passes, small)]
    sums = dict.fromkeys(("total_s", "error_s", "outside_s", "memory_bytes", "flops"), np.zeros(len(rows)))
    for arrays, times, columns in passes:
        one = price_steps(cost, arrays, columns)
        one["error_s"], one["outside_s"] = (one[name] * one["total_s"] for name in ("rel_error", "outside_share"))
        sums = {name: value + times * one[name] for name, value in sums.items()}
    whole_s = found["total_s"] + sums["total_s"]
    shares = {
        name: np.divide(
            found[name] * found["total_s"] + sums[of], whole_s, out=np.zeros_like(whole_s), where=whole_s > 0
        )
        for name, of in (("rel_error", "error_s"), ("outside_share", "outside_s"))
    }
    more = {name: found[name] + sums[name] for name in ("memory_bytes", "flops")}
    return found | shares | more | {"draft_s": sums["total_s"], "total_s": whole_s}


def _runs_as(settings: EngineSettings, draft: DraftPlan, most: int) -> list[tuple[int, int]]:
    mode, sizes = settings.graph_mode, settings.graph_sizes
    return [draft_runs_as(mode, tokens, sizes, draft.graphs) for tokens in range(most + 1)]


def _keys(batch: Any, maximum: Any = max) -> tuple[Any, Any, Any]:
    """Sum, maximum and sum of squares of the lengths of all rows."""
    chunks, held = batch.prefill_chunks, batch.prefill_kv_tokens
    squares = batch.decode_sumsq + held * held / maximum(chunks, 1)
    return batch.decode_sum + held, maximum(batch.decode_max, batch.prefill_max_tokens), squares


def _columns(runs_as: np.ndarray, tokens: np.ndarray, rest: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    padded, graph = runs_as[np.asarray(tokens)].T
    return {"padded_tokens": padded, "graph_mode": graph, **rest}

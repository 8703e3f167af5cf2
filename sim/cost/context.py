r"""Attention of context-parallel ranks (`sim.deployment.context`): what one of them computes, and what they send.

**Prefill.** With c ranks a chunk of T tokens after P earlier ones is cut into 2 c pieces of s = T/(2 c) tokens, and a
rank takes pieces i and 2 c - 1 - i, whatever i:

    rows          2 s = T/c
    keys before   (P + i s) + (P + (2 c - 1 - i) s) = 2 P + T (1 - 1/(2 c))
    keys in all   2 P + T (1 + 1/(2 c))

and its rows see as many keys as those of the whole chunk in the mean: its share of the query-key pairs is 1/c.

**Decode.** With d ranks each attends to 1/d of a row's keys with the query heads of all d. In a kernel that decodes
share with prefills that is as much work as its own heads over all keys, of which it streams 1/d.

**Collectives** are priced by the rows that the lengths of a batch give (`ContextSlots`). Their times are tabulated once
per plan, as `sim.cost.collective` finds them, and read by linear interpolation, alike on floats and arrays.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.cost.collective import CollectiveTerms, collective_s, collective_terms
from sim.cost.grid import Grid, Steps, factor, grid, single, stacked_grids
from sim.cost.number import Number
from sim.cost.priced import Priced
from sim.cost.slots import slots_first
from sim.deployment.plan import ContextArrays


ROWS = Steps((0.0, *(16.0 * 4.0**i for i in range(11))), tuple(4.0**i for i in range(11)))
"""Rows of a collective: every one up to 16, every fourth up to 64, ... up to 16.8 million."""
LEAST_ROWS = 1e-3


class MovedTerms(NamedTuple):
    """One kind of collectives: rows that a prefilled token, a decoding row and an earlier token are.

    `grid`: seconds by `ROWS`.
    """

    prefills: Number
    decodes: Number
    prior: Number
    grid: Grid


class ContextTerms(NamedTuple):
    """How ranks divide attention: one over the ranks that divide keys, ranks that divide queries, what they send."""

    query_ranks: Number
    key_share: Number
    moved: tuple[MovedTerms, ...] = ()


class ContextPrices(NamedTuple):
    """The same of plans, leaves `[*config]`, and of all slots together, `[slot, *config]`; `claims` of their times."""

    terms: ContextTerms
    moved: MovedTerms
    claims: CollectiveTerms


def context_prices(arrays: ContextArrays | None) -> ContextPrices | None:
    """The constants of plans; None where none has context parallelism."""
    if arrays is None:
        return None
    claims, slots = collective_terms(arrays.moved), slots_first(arrays.moved)
    nodes = jnp.maximum(jnp.asarray(ROWS.nodes(), slots.count.dtype), LEAST_ROWS)
    seconds = jax.vmap(lambda rows: collective_s(claims, rows, 0.0 * rows), out_axes=-1)(nodes)
    moved = MovedTerms(slots.prefills, slots.decodes, slots.prior, grid(seconds))
    return ContextPrices(ContextTerms(arrays.query_ranks, 1.0 / arrays.key_ranks), moved, claims)


def used_context(prices: ContextPrices | None) -> ContextTerms | None:
    """Those of one plan as Python floats, its unused slots left out."""
    if prices is None:
        return None
    moved = prices.moved
    weights = np.stack([moved.prefills, moved.decodes, moved.prior])
    used = np.flatnonzero(weights.any(axis=0) & (np.asarray(prices.claims.times) > 0.0)).tolist()
    rows = [
        MovedTerms(float(prefills), float(decodes), float(prior), single(moved.grid, index))
        for index, (prefills, decodes, prior) in zip(used, weights[:, used].T, strict=True)
    ]
    return ContextTerms(float(prices.terms.query_ranks), float(prices.terms.key_share), tuple(rows))


def stacked_context(tables: list[ContextTerms | None]) -> ContextTerms | None:
    """Those of several plans with a leading axis, float64; a plan without any gets ones that change nothing."""
    if all(table is None for table in tables):
        return None
    found = [ContextTerms(1.0, 1.0) if table is None else table for table in tables]
    width = max(len(table.moved) for table in found)
    moved = tuple(_stacked([t.moved[index] if index < len(t.moved) else None for t in found]) for index in range(width))
    ranks: Any = np.array([table.query_ranks for table in found], np.float64)
    shares: Any = np.array([table.key_share for table in found], np.float64)
    return ContextTerms(ranks, shares, moved)


def _stacked(kinds: list[MovedTerms | None]) -> MovedTerms:
    table: Any = stacked_grids([None if kind is None else kind.grid for kind in kinds])
    rows: Any = np.array([(0.0, 0.0, 0.0) if kind is None else kind[:3] for kind in kinds], np.float64)
    return MovedTerms(rows[:, 0], rows[:, 1], rows[:, 2], table)


def pieces(
    xp: Any, ranks: Number, tokens: Number, chunks: Number, context: Number, prior: Number
) -> tuple[Number, Number, Number, Number]:
    """Tokens, pieces, keys in all and keys before the pieces of one of `ranks` ranks, of those of whole chunks."""
    half = 0.5 * tokens / ranks
    several = ranks > 1.0
    return (
        tokens / ranks,
        xp.where(several, 2.0 * chunks, chunks),
        xp.where(several, 2.0 * context - tokens + half, context),
        xp.where(several, 2.0 * prior + tokens - half, prior),
    )


def moved_s(xp: Any, terms: MovedTerms, prefill_tokens: Number, decodes: Number, prior: Number) -> Number:
    """Seconds of the collectives of a batch; 0 where they have no rows."""
    rows = terms.prefills * prefill_tokens + terms.decodes * decodes + terms.prior * prior
    return xp.where(rows > 0.0, factor(xp, terms.grid, (ROWS,), rows), 0.0)


def moved_price(prices: ContextPrices, prefill_tokens: Any, decodes: Any, prior: Any) -> Priced:
    """The same of all slots, `[slot, *config]`, with the error to expect and what lies beyond measurements."""
    terms, claims = prices.moved, prices.claims
    seconds: Any = moved_s(jnp, terms, prefill_tokens, decodes, prior)
    rows = terms.prefills * prefill_tokens + terms.decodes * decodes + terms.prior * prior
    beyond = jnp.where(rows * claims.row_bytes > claims.largest, 1.0, claims.estimated)
    return Priced(seconds, seconds * claims.rel_error, seconds * beyond)

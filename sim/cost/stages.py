"""What a pipeline costs: a price table per stage, and the way of activations and tokens between stages."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.cost.collective import collective_s, collective_terms
from sim.cost.experts.times import RoutedExperts
from sim.cost.model import CostModel
from sim.cost.table import PriceTable, price_table
from sim.deployment.plan import CollectiveSlots, PlanArrays


class StagePrices(NamedTuple):
    """Prices of a replica in pipeline stages, float64.

    - `tables`: one per stage, first to last; equal stages share the object.
    - `hand_over_s`: `[tokens + 1]`: from the end of a stage to the start of the next one, by padded tokens.
    - `return_s`: from the end of the last stage to where the first one has the sampled tokens.
    """

    tables: tuple[PriceTable, ...]
    hand_over_s: np.ndarray
    return_s: float


def stage_prices(
    cost: CostModel,
    stages: Sequence[PlanArrays],
    hand_over: CollectiveSlots,
    tokens_back: CollectiveSlots,
    max_tokens: int,
    max_rows: int,
    experts: Sequence[RoutedExperts | None] = (),
) -> StagePrices:
    """Tabulate `cost` for each stage up to `max_tokens` padded tokens and `max_rows` emitting rows.

    `experts`: how unevenly those of each stage are spread; nothing: as the cost model expects.

    `hand_over` are the transfers between neighbouring stages, `tokens_back` the one from the last to the first, whose
    latency counts (a token id per row is nothing to carry).
    """
    found: dict[bytes, PriceTable] = {}
    tables = []
    for arrays, routed in zip(stages, experts or [None] * len(stages), strict=True):
        key = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(arrays)) + str(id(routed)).encode()
        if key not in found:
            found[key] = price_table(cost, arrays, max_tokens, max_rows, routed)
        tables.append(found[key])
    return StagePrices(
        tuple(tables), transfer_s(hand_over, np.arange(max_tokens + 1.0)), float(transfer_s(tokens_back, np.ones(1))[0])
    )


def transfer_s(slots: CollectiveSlots, tokens: np.ndarray) -> np.ndarray:
    """Seconds of all transfers of `slots`, one after the other, for each number of tokens; float64."""
    with jax.enable_x64(True):
        terms = collective_terms(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), slots))
        each = jax.vmap(lambda count: jnp.sum(collective_s(terms, count, jnp.zeros_like(count)), axis=0))
        return np.asarray(each(jnp.asarray(tokens, jnp.float64)))

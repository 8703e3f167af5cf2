"""How long each rank computes its experts, and how long it waits for the slowest one in every layer."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sim.cost.experts.times import AT_ONCE, RoutedExperts


MOST_STEPS = 2048


class RankWaits(NamedTuple):
    """`busy_s`, `wait_s` and the share of all `rows`, by rank, over all steps; `imbalance` of each looked-at step.

    Imbalance: rows of the fullest rank over the mean of all, averaged over layers. Of many steps some are `looked_at`,
    evenly spread, and the seconds scaled to all.
    """

    rows: Float[np.ndarray, " rank"]
    busy_s: Float[np.ndarray, " rank"]
    wait_s: Float[np.ndarray, " rank"]
    imbalance: Float[np.ndarray, " step"]
    looked_at: int


def rank_waits(
    experts: RoutedExperts, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"]
) -> RankWaits:
    """Steps of so many tokens (above 0) with these draws, layer by layer, in either detail."""
    ranks = experts.loads.mean.shape[1]
    chosen = np.unique(np.linspace(0, max(len(tokens) - 1, 0), min(len(tokens), MOST_STEPS)).astype(np.int64))
    rows_of, busy_s, wait_s = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    imbalance = np.zeros(len(chosen))
    for start in range(0, len(chosen), AT_ONCE):
        part = chosen[start : start + AT_ONCE]
        rows, _ = experts.loads.of_steps(tokens[part], draw[part])
        seconds = experts.layer_seconds(tokens[part], draw[part])
        rows_of += rows.sum(axis=(0, 1))
        busy_s += seconds.sum(axis=(0, 1))
        wait_s += (seconds.max(axis=-1, keepdims=True) - seconds).sum(axis=(0, 1))
        imbalance[start : start + AT_ONCE] = (rows.max(axis=-1) / rows.mean(axis=-1)).mean(axis=-1)
    scale = len(tokens) / max(len(chosen), 1)
    return RankWaits(rows_of / max(rows_of.sum(), 1e-300), scale * busy_s, scale * wait_s, imbalance, len(chosen))

"""How many rows each rank's experts get in each layer, and how many of its experts are active: windows of drawn tokens.

The choices of a row of tokens are drawn once (`sim.workload.experts.choices`). A step of N tokens reads the window of N
neighbours that begins where its draw says; its rows are a difference of two running sums, whole numbers that add up to
N k in every layer. Beyond a quarter of the row the deviation of a window w of that size is scaled:

    rows = N mean + (rows of w - w mean) sqrt(N/w)

The mean number of active experts at this N, layer and rank is counted in windows of the row; one with more rows than
the mean has more of them by the slope of that curve, `active (1 + slope (rows/mean - 1))`.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sim.deployment.placement import Placement


PER_OCTAVE = 2
WINDOWS = 8
LARGEST_WINDOW = 4
"""The row has so many windows of the largest size."""


class ExpertLoads(NamedTuple):
    """`counts`: rows of the first tokens by layer and rank; `mean` per token; `sizes` of windows with the `active`
    experts in them and the `slope` of their logarithm over that of the size; `local`: copies that a rank holds."""

    counts: Int[np.ndarray, "token layer rank"]
    mean: Float[np.ndarray, "layer rank"]
    sizes: Float[np.ndarray, " size"]
    active: Float[np.ndarray, "size layer rank"]
    slope: Float[np.ndarray, "size layer rank"]
    local: Float[np.ndarray, "layer rank"]

    def of_steps(
        self, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"]
    ) -> tuple[Float[np.ndarray, "step layer rank"], Float[np.ndarray, "step layer rank"]]:
        """Rows and active experts of steps of so many tokens; `draw` in [0, 1) says where their windows begin."""
        drawn = len(self.counts) - 1
        window = np.minimum(tokens, drawn // LARGEST_WINDOW).astype(np.int64)
        first = (draw * (drawn - window + 1)).astype(np.int64)
        rows = (self.counts[first + window] - self.counts[first]).astype(np.float64)
        ratio = tokens / window
        if (ratio > 1.0).any():
            each = window[:, None, None] * self.mean
            ratio = ratio[:, None, None]
            rows = np.maximum(each * ratio + (rows - each) * np.sqrt(ratio), 0.0)
        place = np.log2(np.minimum(tokens, self.sizes[-1])) * PER_OCTAVE
        below = np.minimum(place.astype(np.int64), len(self.sizes) - 2)
        weight = (place - below)[:, None, None]
        active = self.active[below] * (1.0 - weight) + self.active[below + 1] * weight
        more = rows / (tokens[:, None, None] * self.mean) - 1.0
        active = active * (1.0 + self.slope[below] * more)
        return rows, np.minimum(np.maximum(active, np.minimum(rows, 1.0)), np.minimum(self.local, rows))


def expert_loads(chosen: Int[np.ndarray, "token layer choice"], placement: Placement, ranks: int) -> ExpertLoads:
    """Sums and curves of the drawn choices, with experts placed so."""
    tokens, layers, top_k = chosen.shape
    layer = np.arange(layers)[:, None]
    turn = np.arange(tokens)[:, None, None] % placement.copies[layer, chosen]
    at = placement.copy[layer, chosen, turn]
    rank = placement.rank[layer, at]
    counts = np.zeros((tokens + 1, layers, ranks), np.int32)
    cell = (np.arange(tokens)[:, None, None] * layers + layer) * ranks + rank
    counts[1:] = np.bincount(cell.ravel(), minlength=tokens * layers * ranks).reshape(tokens, layers, ranks)
    np.cumsum(counts, axis=0, out=counts)
    sizes = 2.0 ** (np.arange(PER_OCTAVE * int(math.log2(tokens)) + 1) / PER_OCTAVE)
    active = np.stack([_active(at, placement.rank, ranks, round(size)) for size in sizes])
    floor = np.maximum(active, 1e-9)
    slope = np.clip(np.diff(np.log(floor), axis=0) * PER_OCTAVE / math.log(2.0), 0.0, 1.0)
    held = np.stack([np.bincount(line, minlength=ranks) for line in placement.rank]).astype(np.float64)
    mean = np.maximum(counts[-1] / tokens, 1e-12)
    return ExpertLoads(counts, mean, sizes, active, np.concatenate([slope, slope[-1:]]), held)


def _active(
    at: Int[np.ndarray, "token layer choice"], rank: Int[np.ndarray, "layer place"], ranks: int, size: int
) -> Float[np.ndarray, "layer rank"]:
    """Mean number of copies that windows of `size` tokens reach."""
    tokens, layers, _ = at.shape
    places = rank.shape[1]
    starts = np.unique(np.linspace(0, tokens - size, WINDOWS).astype(np.int64))
    layer = np.arange(layers)[:, None]
    total = np.zeros((layers, ranks))
    for start in starts:
        reached = np.zeros(layers * places, bool)
        reached[(layer * places + at[start : start + size]).ravel()] = True
        cell = (layer * ranks + rank).ravel()[reached]
        total += np.bincount(cell, minlength=layers * ranks).reshape(layers, ranks)
    return total / len(starts)

"""What one expert layer takes on one rank under given loads, and the sum over layers of the slowest rank.

    step's experts = sum over layers of max over ranks t(N, rows of the rank, its active experts)

`t` is the cost model's price, tabulated over tokens, rows and active experts and interpolated linearly. In detail
`layers` the sum is taken for every step. Collapsed, it is taken for `DRAWS` windows at each of some numbers of tokens
when the plan is compiled; a step takes the quantile that its draw says, linear in between: the same law, in mean and
tail, at the price of a look-up.
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sim.cost.experts.loads import ExpertLoads


DRAWS = 128
AT_ONCE = 256
ACTIVE = np.arange(17) / 16


class LayerTimes(NamedTuple):
    """Seconds of one layer on one rank: `table` over `tokens`, rows over the mean of all ranks (`ratios`), and active
    experts over those held (`ACTIVE`). `layers`: which of the plan's expert layers are of this kind."""

    layers: Int[np.ndarray, " layer"]
    local: float
    tokens: Float[np.ndarray, " size"]
    ratios: Float[np.ndarray, " ratio"]
    table: Float[np.ndarray, "size ratio active"]

    def seconds(
        self,
        tokens: Float[np.ndarray, " step"],
        ratio: Float[np.ndarray, "step layer rank"],
        active: Float[np.ndarray, "step layer rank"],
    ) -> Float[np.ndarray, "step layer rank"]:
        """Linear between the points of the table."""
        size = np.clip(np.searchsorted(self.tokens, tokens, side="right") - 1, 0, len(self.tokens) - 2)
        low = self.tokens[size]
        weight = ((tokens - low) / (self.tokens[size + 1] - low))[:, None, None]
        plane = self.table[size] * (1.0 - weight) + self.table[size + 1] * weight
        row = np.minimum(np.searchsorted(self.ratios, ratio, side="right"), len(self.ratios) - 1) - 1
        low = self.ratios[row]
        across = np.minimum((ratio - low) / (self.ratios[row + 1] - low), 1.0)
        share = active * ((len(ACTIVE) - 1) / self.local)
        column = np.minimum(share.astype(np.int64), len(ACTIVE) - 2)
        along = np.minimum(share - column, 1.0)
        flat = plane.reshape(-1)
        width = len(ACTIVE)
        at = np.arange(len(tokens))[:, None, None] * (plane.shape[1] * width) + row * width + column
        upper = flat[at] + along * (flat[at + 1] - flat[at])
        at = at + width
        lower = flat[at] + along * (flat[at + 1] - flat[at])
        found: np.ndarray = upper + across * (lower - upper)
        return found


class RoutedExperts:
    """The experts of one plan under a law of popularity; `ranks` share them, `tokens` is the most of one step."""

    def __init__(self, loads: ExpertLoads, kinds: tuple[LayerTimes, ...], detail: str, seed: int):
        self.loads, self.kinds, self.detail, self.seed = loads, kinds, detail, seed
        self._sizes = kinds[0].tokens.tolist()
        self._ordered = self._quantiles() if detail == "collapsed" else np.zeros((0, 0))
        self._rows = self._ordered.tolist()

    def layer_seconds(
        self, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"]
    ) -> Float[np.ndarray, "step layer rank"]:
        """What each rank computes in each layer."""
        rows, active = self.loads.of_steps(tokens, draw)
        ratio = rows / (tokens[:, None, None] * self.loads.mean.mean(axis=-1, keepdims=True))
        if len(self.kinds) == 1:
            return self.kinds[0].seconds(tokens, ratio, active)
        found = np.empty_like(rows)
        for kind in self.kinds:
            found[:, kind.layers] = kind.seconds(tokens, ratio[:, kind.layers], active[:, kind.layers])
        return found

    def __call__(self, tokens: int, draw: float) -> float:
        """Seconds of all layers of one step."""
        if self.detail == "layers":
            each = self.layer_seconds(np.array([tokens], np.float64), np.array([draw]))
            return float(each.max(axis=-1).sum())
        size = min(max(bisect_right(self._sizes, tokens) - 1, 0), len(self._sizes) - 2)
        low, high = self._sizes[size], self._sizes[size + 1]
        place = min(max(draw * DRAWS - 0.5, 0.0), DRAWS - 1.000001)
        first = int(place)
        rest, weight = place - first, (tokens - low) / (high - low)
        below, above = self._rows[size], self._rows[size + 1]
        lower = below[first] + rest * (below[first + 1] - below[first])
        upper = above[first] + rest * (above[first + 1] - above[first])
        return float(lower + weight * (upper - lower))

    def step_seconds(
        self, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"]
    ) -> Float[np.ndarray, " step"]:
        """`__call__` of many steps."""
        if self.detail == "collapsed":
            return np.array([self(*pair) for pair in zip(tokens.tolist(), draw.tolist(), strict=True)])
        found = np.empty(len(tokens))
        for start in range(0, len(tokens), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            found[part] = self.layer_seconds(tokens[part], draw[part]).max(axis=-1).sum(axis=-1)
        return found

    def _quantiles(self) -> Float[np.ndarray, "size draw"]:
        draw = (np.arange(DRAWS) + 0.5) / DRAWS
        sums = [
            self.layer_seconds(np.full(DRAWS, size), draw).max(axis=-1).sum(axis=-1) for size in self.kinds[0].tokens
        ]
        return np.sort(np.stack(sums), axis=-1)

"""What one expert layer takes on one rank under given loads, and the sum over layers of the slowest rank.

    step's experts = sum over layers of max over ranks t(N, rows of the rank, its active experts)

Where tokens go straight to their experts, the exchange waits for the fullest rank too, and what that adds is counted
with the experts. `t` is the cost model's price, tabulated over tokens, rows and active experts and interpolated
linearly. In detail `layers` the sum is taken for every step. Collapsed, it is taken for `DRAWS` windows at each of some
numbers of tokens when the plan is compiled; a step takes the quantile that its draw says, linear in between: the same
law, in mean and tail, at the price of a look-up.
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

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


class ExchangeTimes(NamedTuple):
    """Seconds in which one layer's tokens go to their experts and back, by evenly spread tokens; one table or two.

    The second is for steps with a prefill. The rank with the most rows receives, and sends back, as many as each would
    if `fullest` times the tokens were spread evenly.
    """

    tokens: Float[np.ndarray, " size"]
    tables: tuple[Float[np.ndarray, " size"], ...]

    def more_s(
        self, way: int, tokens: Float[np.ndarray, " step"], fullest: Float[np.ndarray, "step layer"]
    ) -> Float[np.ndarray, " step"]:
        """What the fullest ranks of all layers add to an even spread."""
        table = self.tables[way]
        layers = np.interp(tokens[:, None] * fullest, self.tokens, table).sum(axis=-1)
        found: np.ndarray = layers - fullest.shape[1] * np.interp(tokens, self.tokens, table)
        return found


class RoutedExperts:
    """The experts of one plan under a law of popularity; `exchange` where its traffic follows them, `seed` of draws."""

    def __init__(
        self,
        loads: ExpertLoads,
        kinds: tuple[LayerTimes, ...],
        detail: str,
        seed: int,
        exchange: ExchangeTimes | None = None,
    ):
        self.loads, self.kinds, self.detail, self.seed, self.exchange = loads, kinds, detail, seed, exchange
        self._sizes = kinds[0].tokens.tolist()
        ways = range(len(exchange.tables) if exchange else 1)
        self._rows = [self._quantiles(way).tolist() for way in ways] if detail == "collapsed" else [[] for _ in ways]

    def layer_seconds(
        self, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"]
    ) -> Float[np.ndarray, "step layer rank"]:
        """What each rank computes in each layer."""
        return self._seconds(tokens, *self.loads.of_steps(tokens, draw))

    def _seconds(
        self,
        tokens: Float[np.ndarray, " step"],
        rows: Float[np.ndarray, "step layer rank"],
        active: Float[np.ndarray, "step layer rank"],
    ) -> Float[np.ndarray, "step layer rank"]:
        ratio = rows / (tokens[:, None, None] * self.loads.mean.mean(axis=-1, keepdims=True))
        if len(self.kinds) == 1:
            return self.kinds[0].seconds(tokens, ratio, active)
        found = np.empty_like(rows)
        for kind in self.kinds:
            found[:, kind.layers] = kind.seconds(tokens, ratio[:, kind.layers], active[:, kind.layers])
        return found

    def __call__(self, tokens: int, draw: float, prefills: bool) -> float:
        """Seconds of all layers of one step, with what they add to the exchange; `prefills`: whether some do."""
        way = int(prefills and len(self._rows) > 1)
        if self.detail == "layers":
            return float(self._waited(way, np.array([tokens], np.float64), np.array([draw]))[0])
        size = min(max(bisect_right(self._sizes, tokens) - 1, 0), len(self._sizes) - 2)
        low, high = self._sizes[size], self._sizes[size + 1]
        place = min(max(draw * DRAWS - 0.5, 0.0), DRAWS - 1.000001)
        first = int(place)
        rest, weight = place - first, (tokens - low) / (high - low)
        below, above = self._rows[way][size : size + 2]
        lower = below[first] + rest * (below[first + 1] - below[first])
        upper = above[first] + rest * (above[first + 1] - above[first])
        return float(lower + weight * (upper - lower))

    def step_seconds(
        self, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"], prefills: Bool[np.ndarray, " step"]
    ) -> Float[np.ndarray, " step"]:
        """`__call__` of many steps."""
        if self.detail == "collapsed":
            each = zip(tokens.tolist(), draw.tolist(), prefills.tolist(), strict=True)
            return np.array([self(*step) for step in each], np.float64)
        found = np.empty(len(tokens))
        for way in range(len(self._rows)):
            mine = np.flatnonzero(prefills == bool(way)) if len(self._rows) > 1 else np.arange(len(tokens))
            for start in range(0, len(mine), AT_ONCE):
                part = mine[start : start + AT_ONCE]
                found[part] = self._waited(way, tokens[part], draw[part])
        return found

    def _waited(
        self, way: int, tokens: Float[np.ndarray, " step"], draw: Float[np.ndarray, " step"]
    ) -> Float[np.ndarray, " step"]:
        rows, _ = loads = self.loads.of_steps(tokens, draw)
        slowest: np.ndarray = self._seconds(tokens, *loads).max(axis=-1).sum(axis=-1)
        if self.exchange is None:
            return slowest
        return slowest + self.exchange.more_s(way, tokens, rows.max(axis=-1) / rows.mean(axis=-1))

    def _quantiles(self, way: int) -> Float[np.ndarray, "size draw"]:
        draw = (np.arange(DRAWS) + 0.5) / DRAWS
        return np.sort([self._waited(way, np.full(DRAWS, size), draw) for size in self.kinds[0].tokens], axis=-1)

"""A learned factor on a closed form, tabulated on a regular grid and read by multilinear interpolation.

A network is too slow to price one step of the exact engine and too slow for millions of the wide one. So it is evaluated once
per plan on the nodes of a grid over what a batch is told by, and what it makes of the closed form is read from there:
the same few operations on Python floats and on arrays, so that the engines agree to the bit.

The axis of a coordinate is regular in its fourth root (`Roots`: lengths), or in the coordinate itself with a step that grows
(`Steps`: counts, which lie on nodes as long as they are small). Beyond its ends an axis is constant.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sim.cost.number import Number


class Roots(NamedTuple):
    """An axis of `count` nodes from `low`, above 0, to `high`, at equal distances of the fourth root."""

    low: float
    high: float
    count: int

    def nodes(self) -> Float[np.ndarray, " node"]:
        """The coordinate at each node."""
        return np.linspace(_root(self.low), _root(self.high), self.count) ** 4

    def place(self, xp: Any, value: Number) -> Number:
        """Where `value` lies: 0 at the first node, 1 at the second ..."""
        per_root = (self.count - 1) / (_root(self.high) - _root(self.low))
        inside = xp.minimum(xp.maximum(value, self.low), self.high)
        return (xp.sqrt(xp.sqrt(inside)) - _root(self.low)) * per_root


class Steps(NamedTuple):
    """An axis with a node every `steps[i]` (a power of two) from `ends[i]` to `ends[i + 1]`."""

    ends: tuple[float, ...]
    steps: tuple[float, ...]

    @property
    def count(self) -> int:
        """Nodes."""
        return len(self.nodes())

    def nodes(self) -> Float[np.ndarray, " node"]:
        """The coordinate at each node."""
        parts = [np.arange(start, end, step) for start, end, step in self._spans()]
        return np.concatenate([*parts, [self.ends[-1]]])

    def place(self, xp: Any, value: Number) -> Number:
        """Where `value` lies: 0 at the first node, 1 at the second ... Whole numbers give it without rounding."""
        place: Any = 0.0
        for start, end, step in self._spans():
            place = place + xp.minimum(xp.maximum(value - start, 0.0), end - start) * (1.0 / step)
        return place

    def _spans(self) -> zip:
        return zip(self.ends[:-1], self.ends[1:], self.steps, strict=True)


Axis = Roots | Steps


class Grid(NamedTuple):
    """The factor at the nodes, last axis fastest: those of plan (or slot) after plan.

    - `values`: all nodes of all plans, one after the other; a list for `FLOATS`.
    - `start`: where a plan's own begin; 0, or an array of the shape of the coordinates.
    """

    values: Float[Array, " plan*node"] | list[float]
    start: Int[Array, "..."] | int = 0


def mesh(axes: Sequence[Axis]) -> list[Float[np.ndarray, " node"]]:
    """The coordinates of all nodes of a grid, in the order of `Grid.values`, one array per axis."""
    return [axis.ravel() for axis in np.meshgrid(*(axis.nodes() for axis in axes), indexing="ij")]


def grid(values: Float[Array, "*batch node"]) -> Grid:
    """The grids of a batch of plans and slots, from their factors at the nodes."""
    *batch, nodes = values.shape
    start = np.arange(math.prod(batch), dtype=np.int32).reshape(batch) * np.int32(nodes)
    return Grid(values.reshape(-1), start)


def factor(xp: Any, table: Grid, axes: Sequence[Axis], *coordinates: Number) -> Number:
    """The interpolated factor at `coordinates`, one per axis."""
    cell: Any = 0.0
    shares = []
    corners = [0]
    for axis, value in zip(axes, coordinates, strict=True):
        count = axis.count
        place = axis.place(xp, value)
        low = xp.minimum(xp.floor(place), count - 2.0)
        shares.append(place - low)
        cell = cell * float(count) + low
        corners = [corner * count + more for corner in corners for more in (0, 1)]
    first = _whole(xp, cell) + table.start
    values = [xp.take(table.values, first + corner) for corner in corners]
    for share in reversed(shares):
        values = [low + (high - low) * share for low, high in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _whole(xp: Any, number: Number) -> Any:
    """As an index; `numpy` and `jax.numpy` have no name for it."""
    return number.astype(np.int32) if xp is np or xp is jnp else xp.whole(number)


def _root(value: float) -> float:
    """Rounded as `Roots.place` rounds it."""
    return math.sqrt(math.sqrt(value))

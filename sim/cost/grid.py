"""A learned factor on a closed form, tabulated on a regular grid and read by multilinear interpolation.

A network is too slow to price one step of the exact engine and too slow for millions of the wide one. So it is
evaluated once
per plan on the nodes of a grid over what a batch is told by, and what it makes of the closed form is read from there:
the same few operations on Python floats and on arrays, so that the engines agree to the bit.

The axis of a coordinate is regular in its fourth root (`Roots`: lengths), or in the coordinate itself with a step
that grows
(`Steps`: counts, which lie on nodes as long as they are small). Beyond its ends an axis is constant.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sim.cost.number import FLOATS, Number


class Roots(NamedTuple):
    """An axis of `count` nodes from `low`, above 0, to `high`, at equal distances of the fourth root."""

    low: float
    high: float
    count: int  # type: ignore[assignment]

    def nodes(self) -> Float[np.ndarray, " node"]:
        """The coordinate at each node."""
        return np.linspace(_root(self.low), _root(self.high), self.count) ** 4

    def place(self, xp: Any, value: Number) -> Number:
        """Where `value` lies: 0 at the first node, 1 at the second ..."""
        low, high, _ = self
        first, per_root = _scale(self)
        inside = xp.minimum(xp.maximum(value, low), high)
        return (xp.sqrt(xp.sqrt(inside)) - first) * per_root


class Steps(NamedTuple):
    """An axis with a node every `steps[i]` (a power of two) from `ends[i]` to `ends[i + 1]`."""

    ends: tuple[float, ...]
    steps: tuple[float, ...]

    @property
    def count(self) -> int:  # type: ignore[override]
        """Nodes."""
        spans = (round((end - start) / step) for start, end, step in self._spans())
        return 1 + sum(spans)

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
    places: Any = start
    return Grid(values.reshape(-1), places)


def factor(xp: Any, table: Grid, axes: tuple["Axis", ...], *coordinates: Number) -> Number:
    """The interpolated factor at `coordinates`, one per axis."""
    counts, corners = _layout(axes)
    at: Any = 0.0
    shares = []
    for axis, count, value in zip(axes, counts, coordinates, strict=True):
        place = axis.place(xp, value)
        cell = xp.minimum(xp.floor(place), count - 2.0)
        shares.append(place - cell)
        at = at * count + cell
    first = _whole(xp, at) + table.start
    values: Any = [xp.take(table.values, first + corner) for corner in corners]
    for share in reversed(shares):
        values = [low + (high - low) * share for low, high in zip(values[::2], values[1::2], strict=True)]
    return values[0]


@cache
def _layout(axes: tuple["Axis", ...]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Nodes of each axis, and how far the corners of a cell lie behind its first."""
    corners = [0]
    for axis in axes:
        corners = [corner * axis.count + more for corner in corners for more in (0, 1)]
    return tuple(float(axis.count) for axis in axes), tuple(corners)


def float_reader(axes: tuple[Steps, Roots, Roots]) -> Callable[[Any, float, float, float], float]:
    """A function of a grid's values and its coordinates that gives what `factor` gives on numbers, bit for bit, in a
    tenth of the time. The first coordinate must be a whole number."""
    steps, second, third = axes
    rows_end, last2, last3 = int(steps.ends[-1]), second.count - 2, third.count - 2
    stride2, stride1 = third.count, third.count * second.count
    places = [steps.place(FLOATS, float(rows)) for rows in range(rows_end + 1)]
    cells = [min(int(place), steps.count - 2) for place in places]
    rows_at = [(cell * stride1, place - cell) for cell, place in zip(cells, places, strict=True)]
    low2, high2, root2, per2 = second.low, second.high, *_scale(second)
    low3, high3, root3, per3 = third.low, third.high, *_scale(third)
    root = math.sqrt

    def read(values: Any, rows: float, one: float, other: float) -> float:
        at, share = rows_at[int(rows) if rows < rows_end else rows_end]
        one = high2 if one > high2 else one if one > low2 else low2
        place = (root(root(one)) - root2) * per2
        cell = int(place)
        if cell > last2:
            cell = last2
        share2 = place - cell
        other = high3 if other > high3 else other if other > low3 else low3
        place = (root(root(other)) - root3) * per3
        last = int(place)
        if last > last3:
            last = last3
        share3 = place - last
        a = at + cell * stride2 + last
        b = a + stride2
        c = a + stride1
        d = c + stride2
        p, q, r, s = values[a], values[b], values[c], values[d]
        p = p + (values[a + 1] - p) * share3
        q = q + (values[b + 1] - q) * share3
        r = r + (values[c + 1] - r) * share3
        s = s + (values[d + 1] - s) * share3
        p = p + (q - p) * share2
        r = r + (s - r) * share2
        return p + (r - p) * share

    return read


def of_plans(terms: Any, plan: Int[Array, " lane"]) -> Any:
    """The terms of the plan that each lane runs, from those of all plans (leaves with a leading axis of plans)."""

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, Grid):
            places: Any = leaf.start
            return Grid(leaf.values, places[plan])
        return leaf[plan]

    return jax.tree.map(chosen, terms, is_leaf=lambda leaf: isinstance(leaf, Grid))


def single(table: Grid, index: int) -> Grid:
    """The grid of one slot, from those of all slots of one plan, as a list of Python floats."""
    slots = np.asarray(table.values, np.float64).reshape(np.size(table.start), -1)
    return Grid(slots[index].tolist())


def stacked_grids(tables: Sequence[Grid | None]) -> Grid | None:
    """Single grids with a leading axis of plans, float64; a plan without one gets a factor of 1. None: none has one."""
    nodes = max((len(table.values) for table in tables if table is not None), default=0)
    if not nodes:
        return None
    values = [np.ones(nodes) if table is None else np.asarray(table.values, np.float64) for table in tables]
    stacked: Any = np.stack(values)
    return grid(stacked)


def _whole(xp: Any, number: Any) -> Any:
    """As an index; `numpy` and `jax.numpy` have no name for it."""
    return number.astype(np.int32) if xp is np or xp is jnp else xp.whole(number)


@cache
def _scale(axis: Roots) -> tuple[float, float]:
    """The fourth root of the first node, and nodes per unit of the root."""
    first = _root(axis.low)
    return first, (axis.count - 1) / (_root(axis.high) - first)


def _root(value: float) -> float:
    """Rounded as `Roots.place` rounds it."""
    return math.sqrt(math.sqrt(value))

"""Arithmetic on arrays that rounds after every operation, as Python's floats do.

The compiler contracts `a * b + c` into one operation with one rounding, and rearranges quotients of quotients, of roots
and by constants. The last bit of a price then differs from that of the exact engine, and where a price lies between two
nanoseconds, so does the clock. Here a zero that the compiler does not know is added to each product, quotient and root:
all it can make of `a * b + 0` is the rounded product, at no cost.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64


class Rounded:
    """A float64 array. Compared, it gives a plain array of truth values."""

    __slots__ = ("value", "zero")

    def __init__(self, value: Float64[Array, "..."], zero: Float64[Array, "..."]):
        self.value = value
        self.zero = zero

    def _with(self, value: Float64[Array, "..."]) -> "Rounded":
        return Rounded(value, self.zero)

    def __add__(self, other: Any) -> "Rounded":
        return self._with(self.value + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Rounded":
        return self._with(self.value - _plain(other))

    def __rsub__(self, other: Any) -> "Rounded":
        return self._with(_plain(other) - self.value)

    def __neg__(self) -> "Rounded":
        return self._with(-self.value)

    def __mul__(self, other: Any) -> "Rounded":
        return self._with(self.value * _plain(other) + self.zero)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Rounded":
        divisor = _plain(other) + self.zero  # not one number for all, by whose reciprocal the compiler would multiply
        return self._with(self.value / divisor + self.zero)

    def __rtruediv__(self, other: Any) -> "Rounded":
        return self._with(_plain(other) / self.value + self.zero)

    def __gt__(self, other: Any) -> Bool[Array, "..."]:
        return self.value > _plain(other)

    def __le__(self, other: Any) -> Bool[Array, "..."]:
        return self.value <= _plain(other)


class RoundedNumpy:
    """The functions of `numpy` that the closed form of the lengths needs, on `Rounded` arrays and numbers."""

    @staticmethod
    def maximum(one: Any, other: Any) -> Rounded:
        """The larger of each pair."""
        return _apply(jnp.maximum, one, other)

    @staticmethod
    def minimum(one: Any, other: Any) -> Rounded:
        """The smaller of each pair."""
        return _apply(jnp.minimum, one, other)

    @staticmethod
    def sqrt(one: Rounded) -> Rounded:
        """Square roots."""
        return Rounded(jnp.sqrt(one.value) + one.zero, one.zero)

    @staticmethod
    def ceil(one: Rounded) -> Rounded:
        """The next integer above or at each."""
        return _apply(jnp.ceil, one)

    @staticmethod
    def floor(one: Any) -> Rounded:
        """The next integer below or at each."""
        return _apply(jnp.floor, one)

    @staticmethod
    def whole(one: Rounded) -> Rounded:
        """Whole numbers, at least 0, as indices."""
        return _apply(lambda value: value.astype(jnp.int32), one)

    @staticmethod
    def take(values: Rounded, index: Rounded) -> Rounded:
        """The values at the indices, which must lie among them."""
        return _apply(
            lambda value, at: value.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False), values, index
        )

    @staticmethod
    def where(condition: Bool[Array, "..."], this: Any, other: Any) -> Rounded:
        """`this` where `condition` holds, else `other`."""
        return _apply(lambda a, b: jnp.where(condition, a, b), this, other)


def rounded(tree: Any, zero: Float64[Array, "lane"]) -> Any:
    """The same tree with `Rounded` leaves.

    `zero` must be an argument of the compiled function, not a constant, and have the axis that results have.
    """
    return jax.tree.map(lambda leaf: Rounded(leaf, zero), tree)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Rounded) else value


def _apply(function: Callable, *values: Any) -> Rounded:
    zero = next(value.zero for value in values if isinstance(value, Rounded))
    return Rounded(function(*map(_plain, values)), zero)

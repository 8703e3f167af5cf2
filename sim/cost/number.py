"""What the closed forms compute on: Python floats, or arrays of any library with the functions of `numpy`."""

import math
from types import SimpleNamespace

from jaxtyping import Array, Float


Number = float | Float[Array, "..."]


def _where(condition: bool, this: float, other: float) -> float:
    return this if condition else other


def _take(values: list[float], index: int) -> float:
    return values[index]


# The functions of `numpy` that the closed forms need, on Python floats; `whole` makes an index of a whole number.
FLOATS = SimpleNamespace(
    maximum=max,
    minimum=min,
    sqrt=math.sqrt,
    ceil=math.ceil,
    floor=math.floor,
    where=_where,
    whole=int,
    take=_take,
)

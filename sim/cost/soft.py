"""A smooth maximum of two times: what overlaps, but not perfectly."""

from typing import Any

from jaxtyping import Array, Float


# Below it a time counts as nothing: its inverse square still fits float32.
SHORTEST_S = 1e-15


def soft_maximum(xp: Any, a: Float[Array, "*shape"], b: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`(a^4 + b^4)^(1/4)` for seconds a, b >= 0, without powers that leave float32; finite gradient at 0.

    `xp`: `numpy` or `jax.numpy`.
    """
    high = xp.maximum(xp.maximum(a, b), SHORTEST_S)
    ratio = xp.minimum(a, b) / high
    square = ratio * ratio
    return high * xp.sqrt(xp.sqrt(1.0 + square * square))

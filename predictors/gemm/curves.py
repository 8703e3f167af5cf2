"""What profiled shapes differ by: a curve over rows for each, kept for kernels of which few shapes were measured.

Such a kernel is a model's layers as an engine ran them. A shape (kernel, n, k) keeps the mean of what is left,
log(measured/predicted), linear in log m between `KNOTS`: a ridge fit, so that single spikes move it little. The steps
of tiles and waves stay in the form. Other shapes have none.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


KNOTS = tuple(float(2**step) for step in range(15))
RIDGE = 0.3
LARGEST = 0.5
SAME = 1e-6
"""Sizes are whole numbers, but of the plan computed in its own type."""


def hats(xp: Any, m: Any) -> Any:
    """Weight of each knot, `[*axes, knot]`: 1 at it, linear in log m to 0 at its neighbours, constant beyond."""
    place = xp.clip(xp.log2(xp.maximum(m, 1.0)), 0.0, float(len(KNOTS) - 1))
    return xp.maximum(0.0, 1.0 - xp.abs(place[..., None] - xp.arange(float(len(KNOTS)), dtype=place.dtype)))


def keys_of(code: Int[np.ndarray, " row"], n: Any, k: Any) -> Float[np.ndarray, "row 3"]:
    """Kernel and shape of each row."""
    return np.stack([np.asarray(part, np.float32) for part in (code, n, k)], axis=-1)


def fit_curves(
    keys: Float[np.ndarray, "row 3"], m: Float[np.ndarray, " row"], left: Float[np.ndarray, " row"]
) -> dict[str, np.ndarray]:
    """Curves of all shapes. `left`: log(measured/predicted)."""
    distinct, found = np.unique(keys, axis=0, return_inverse=True)
    place: Any = found
    weight, target = hats(np, m), np.clip(left, -LARGEST, LARGEST)
    knots = len(KNOTS)
    gram, moment = np.zeros((len(distinct), knots, knots)), np.zeros((len(distinct), knots))
    for one in range(knots):
        np.add.at(moment, (place, one), weight[:, one] * target)
        for other in range(max(0, one - 1), min(knots, one + 2)):
            np.add.at(gram, (place, one, other), weight[:, one] * weight[:, other])
    curves = np.linalg.solve(gram + RIDGE * np.eye(knots), moment[..., None])[..., 0]
    return {"keys": distinct.astype(np.float32), "values": curves.astype(np.float32)}


def curves_of(found: Mapping[str, Any], keys: Float[np.ndarray, "row 3"]) -> Float[np.ndarray, "row knot"]:
    """Curve of each row, 0 where its shape was not profiled; numpy."""
    index = {tuple(key): place for place, key in enumerate(np.asarray(found["keys"]).tolist())}
    distinct, place = np.unique(keys, axis=0, return_inverse=True)
    values = np.concatenate([np.asarray(found["values"], np.float64), np.zeros((1, len(KNOTS)))])
    return values[np.array([index.get(tuple(key), -1) for key in distinct.tolist()], int)][place]


def profiled(found: Mapping[str, Any], code: Any, n: Any, k: Any) -> Float[Array, "*axes knot"]:
    """Curve of each product of a plan, 0 where none is known."""
    keys = jnp.stack(jnp.broadcast_arrays(code.astype(n.dtype), n, k), axis=-1)
    known = jnp.asarray(found["keys"], keys.dtype)
    same = jnp.all(jnp.abs(keys[..., None, :] - known) <= SAME * jnp.maximum(known, 1.0), axis=-1)
    return same.astype(keys.dtype) @ jnp.asarray(found["values"], keys.dtype)

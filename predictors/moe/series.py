"""What profiled layouts of models differ by from form and residual: a curve over tokens for each.

Whether an engine has a tuned tile for a shape, and which, is no function of the shape. A layout (kernel, model, tensor
and expert parallelism) that was profiled keeps the mean of what is left, log(measured/predicted), as a curve that is
linear in log tokens between `KNOTS`: one for even routing, whose rows fill tiles in steps, one for skewed. It is a
ridge fit, so that few rows or scattered ones move it little; residuals count up to `LARGEST`. Other layouts have none.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from predictors.moe.form import Experts


KNOTS = tuple(float(2 ** (1.5 * step)) for step in range(11))
RIDGE = 1.0
LARGEST = 0.3
SAME = 1e-6
"""Sizes are whole numbers, but of the plan computed in its own type."""


def keys_of(code: Any, work: Experts, xp: Any = np) -> Any:
    """Layout of each row, `[*axes, 7]`: kernel, hidden, inter of the rank, experts, local experts, top_k, matrices."""
    parts = (code, work.hidden, work.inter, work.experts, work.local_experts, work.top_k, work.matrices)
    return xp.stack(xp.broadcast_arrays(*(xp.asarray(part, work.hidden.dtype) for part in parts)), axis=-1)


def hats(xp: Any, tokens: Any) -> Any:
    """Weight of each knot, `[*axes, knot]`: 1 at it, linear in log tokens to 0 at its neighbours, constant beyond."""
    at = xp.log(xp.asarray(KNOTS, tokens.dtype))
    place = xp.clip(xp.log(xp.maximum(tokens, 1.0)), at[0], at[-1])
    return xp.maximum(0.0, 1.0 - xp.abs(place[..., None] - at) / (at[1] - at[0]))


def fit_curves(
    keys: Float[np.ndarray, "row 7"],
    skewed: Int[np.ndarray, " row"],
    tokens: Float[np.ndarray, " row"],
    left: Float[np.ndarray, " row"],
) -> dict[str, np.ndarray]:
    """Curves of all layouts. `left`: log(measured/predicted); `skewed`: 1 for rows of skewed routing."""
    distinct, found = np.unique(np.column_stack([keys, skewed]), axis=0, return_inverse=True)
    place: Any = found
    weight, target = hats(np, tokens), np.clip(left, -LARGEST, LARGEST)
    knots = len(KNOTS)
    gram = np.zeros((len(distinct), knots, knots))
    moment = np.zeros((len(distinct), knots))
    for one in range(knots):
        np.add.at(moment, (place, one), weight[:, one] * target)
        for other in range(max(0, one - 1), min(knots, one + 2)):
            np.add.at(gram, (place, one, other), weight[:, one] * weight[:, other])
    curves = np.linalg.solve(gram + RIDGE * np.eye(knots), moment[..., None])[..., 0]
    return {"keys": distinct.astype(np.float32), "curves": curves.astype(np.float16)}


def curves_of(
    found: Mapping[str, Any], keys: Float[np.ndarray, "row 7"], skewed: Int[np.ndarray, " row"]
) -> Float[np.ndarray, "row knot"]:
    """Curve of each row, 0 where its layout was not profiled; numpy."""
    index = {tuple(key): place for place, key in enumerate(np.asarray(found["keys"]).tolist())}
    distinct, place = np.unique(np.column_stack([keys, skewed]).astype(np.float32), axis=0, return_inverse=True)
    curves = np.asarray(found["curves"], np.float64)
    nothing = np.zeros(len(KNOTS))
    rows = [curves[index[tuple(key)]] if tuple(key) in index else nothing for key in distinct.tolist()]
    return np.array(rows)[place]


def profiled(found: Mapping[str, Any], keys: Float[Array, "*axes 7"]) -> Float[Array, "*axes knot"]:
    """Curve of each layout of a plan, 0 where none is known: the mean over routing laws. Real routing is even in the
    mean, but does not fill tiles in step.
    """
    known = jnp.asarray(found["keys"], keys.dtype)[:, :-1]
    same = jnp.all(jnp.abs(keys[..., None, :] - known) <= SAME * jnp.maximum(known, 1.0), axis=-1).astype(keys.dtype)
    share = same / jnp.maximum(jnp.sum(same, axis=-1, keepdims=True), 1.0)
    return share @ jnp.asarray(found["curves"], keys.dtype)

"""How often a token chooses an expert, where it chooses k different ones."""

import numpy as np
from jaxtyping import Float


def inclusion(shares: Float[np.ndarray, "*axes expert"], top_k: int) -> Float[np.ndarray, "*axes expert"]:
    """Chances that a token chooses each expert: `min(1, c share)`, c so that they sum to k.

    A token chooses an expert at most once, so one whose share of all choices is above 1/k is chosen by every token,
    and the others get what that leaves. Experts of share 0 are chosen only where fewer than k have more.
    """
    shares = np.asarray(shares, np.float64)
    least = 1e-9 / shares.shape[-1]
    shares = np.maximum(shares / shares.sum(axis=-1, keepdims=True), least)
    ordered = -np.sort(-shares, axis=-1)
    # with the m most popular at 1, c = (k - m) / (sum of the others); the smallest m that leaves none above 1
    rest = np.cumsum(ordered[..., ::-1], axis=-1)[..., ::-1]
    full = np.arange(shares.shape[-1])
    scale = (top_k - full) / rest
    fits = (scale * ordered <= 1.0) & (full < top_k)
    first = np.argmax(fits, axis=-1, keepdims=True)
    scale = np.where(fits.any(axis=-1, keepdims=True), np.take_along_axis(scale, first, axis=-1), np.inf)
    return np.minimum(scale * shares, 1.0)

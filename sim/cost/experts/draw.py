"""A random number for each batch, from nothing but what the batch contains.

So any engine, and the report afterwards, draws the same for the same step; and two steps that differ in anything draw
independently. SplitMix64 (Steele, Lea, Flood, 2014) of the batch's sums.
"""

import numpy as np
from jaxtyping import Float

from sim.workload.draws import FIELD, GOLDEN, MASK, MIX, STIR


def step_draw(seed: int, decode_sum: int, decodes: int, prefill_area: int, prefill_tokens: int) -> float:
    """A number in [0, 1) for a batch with these sums."""
    key = ((((seed * FIELD + decode_sum) * FIELD + decodes) * FIELD + prefill_area) * FIELD + prefill_tokens) & MASK
    key = (key + GOLDEN) & MASK
    key = ((key ^ (key >> 30)) * MIX) & MASK
    key = ((key ^ (key >> 27)) * STIR) & MASK
    return ((key ^ (key >> 31)) >> 11) * 2.0**-53


def step_draws(seed: int, *sums: np.ndarray) -> Float[np.ndarray, " step"]:
    """`step_draw` of many batches."""
    key = np.full(len(sums[0]), seed, np.uint64)
    for values in sums:
        key = key * np.uint64(FIELD) + np.asarray(values).astype(np.int64).astype(np.uint64)
    key = key + np.uint64(GOLDEN)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(MIX)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(STIR)
    found: np.ndarray = ((key ^ (key >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found

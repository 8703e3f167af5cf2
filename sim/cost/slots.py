"""The axis order of the kernels: slots first, configurations last.

Plans keep slots on their last axis, so that one plan of a sweep is one index. XLA's CPU compiler computes along the
last axis: with the few slots of a plan there, kernels run five times slower than with the configurations there.
"""

from typing import Any

import jax
import jax.numpy as jnp


def slots_first[Tree](slots: Tree, xp: Any = jnp) -> Tree:
    """Every leaf `[*config, slot]` as `[slot, *config]`. `xp`: `numpy` or `jax.numpy`."""
    return jax.tree.map(lambda leaf: xp.moveaxis(leaf, -1, 0), slots)

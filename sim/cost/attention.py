"""From a plan's attention and state slots to the constants of the lengths' closed form (`sim.cost.lengths`)."""

from typing import Any

import jax
import numpy as np

from sim.cost.decode import DecodeTerms
from sim.cost.grid import Grid, single
from sim.cost.kernel import LengthKernel
from sim.cost.lengths import AttentionTerms, LengthTerms
from sim.cost.prefill import PrefillTerms
from sim.cost.recurrent import RecurrentTerms
from sim.cost.slots import slots_first
from sim.deployment.plan import UNLIMITED, AttentionSlots, DeviceArrays


def attention_terms(
    xp: Any,
    slots: AttentionSlots,
    device: DeviceArrays,
    decode: LengthKernel[DecodeTerms],
    prefill: LengthKernel[PrefillTerms],
) -> AttentionTerms:
    """Closed-form constants of all slots at once, leaves `[kind, *config]`. `xp`: `numpy` or `jax.numpy`."""
    slots = slots_first(slots, xp)
    return AttentionTerms(
        layers=slots.count,
        decode=decode.terms(xp, slots, device),
        prefill=prefill.terms(xp, slots, device),
        window=slots.window,
        chunked=slots.chunked,
    )


def used_terms(attention: AttentionTerms, recurrent: RecurrentTerms) -> LengthTerms:
    """The kinds with any layer of one plan (leaves `[kind]`, numpy), as Python floats; no window: None."""

    def row(terms, index: int):
        return jax.tree.map(
            lambda leaf: single(leaf, index) if isinstance(leaf, Grid) else float(leaf[index]),
            terms,
            is_leaf=lambda leaf: isinstance(leaf, Grid),
        )

    kinds = [row(attention, index) for index in np.flatnonzero(attention.layers).tolist()]
    states = [row(recurrent, index) for index in np.flatnonzero(recurrent.layers).tolist()]
    return LengthTerms(
        tuple(kind if kind.window < UNLIMITED else kind._replace(window=None, chunked=None) for kind in kinds),
        tuple(states),
    )

"""From a plan's attention and state slots to the constants of the lengths' closed form (`sim.cost.lengths`)."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from sim.cost.context import ContextPrices, used_context
from sim.cost.decode import DecodeTerms
from sim.cost.grid import Grid, single
from sim.cost.kernel import LengthKernel
from sim.cost.lengths import AttentionTerms, LengthTerms
from sim.cost.prefill import PrefillTerms
from sim.cost.recurrent import RecurrentTerms
from sim.cost.slots import slots_first
from sim.deployment.plan import UNLIMITED, AttentionSlots, ContextArrays, DeviceArrays


def attention_terms(
    xp: Any,
    slots: AttentionSlots,
    device: DeviceArrays,
    decode: LengthKernel[DecodeTerms],
    prefill: LengthKernel[PrefillTerms],
    context: ContextArrays | None = None,
    query_tokens: Any = None,
) -> AttentionTerms:
    """Closed-form constants of all slots at once, leaves `[kind, *config]`. `xp`: `numpy` or `jax.numpy`.

    Ranks of `context` that divide the keys decode with the query heads of all of them; where decodes ride with
    prefills, each streams its share of the keys. `query_tokens` of a decode row that verifies drafts: its blocks hold
    the queries of all of them. None: there are no drafts.
    """
    slots = slots_first(slots, xp)
    alone, mixed = slots, prefill.terms(xp, slots, device)
    if context is not None:
        alone = replace(slots, q_heads=slots.q_heads * context.key_ranks)
        streamed = xp.where(slots.joint > 0.5, context.key_ranks, 1.0)
        mixed = mixed._replace(kv_token_s=mixed.kv_token_s / streamed)
    verify = None
    if query_tokens is not None:
        verify = decode.terms(xp, replace(alone, q_heads=alone.q_heads * query_tokens), device)
    return AttentionTerms(
        layers=slots.count,
        decode=decode.terms(xp, alone, device),
        prefill=mixed,
        window=slots.window,
        chunked=slots.chunked,
        verify=verify,
    )


def used_terms(
    attention: AttentionTerms,
    recurrent: RecurrentTerms,
    context: ContextPrices | None = None,
    query_tokens: Any = None,
) -> LengthTerms:
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
        used_context(context),
        None if query_tokens is None else float(query_tokens),
    )

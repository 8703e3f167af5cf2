"""From a law of popularity and a plan to the seconds of its experts: choices drawn, experts placed, layers priced."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sim.cost.experts.loads import PER_OCTAVE, expert_loads
from sim.cost.experts.times import ACTIVE, ExchangeTimes, LayerTimes, RoutedExperts
from sim.cost.model import CostModel
from sim.cost.table import price_experts, price_steps
from sim.deployment.placement import place
from sim.deployment.plan import MOST, ExchangeRule, PlanArrays
from sim.workload.experts import popularity
from sim.workload.experts.choices import choices, drawn_tokens
from sim.workload.experts.conf import ExpertsConf


RATIOS = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0])


def routed_experts(
    cost: CostModel,
    plan: PlanArrays,
    conf: ExpertsConf,
    seed: int,
    *,
    ranks: int,
    redundant: int,
    rule: str,
    tokens: int,
    first: int = 0,
    of_model: int | None = None,
    exchange: ExchangeRule | None = None,
) -> RoutedExperts:
    """Draw the choices of a plan's expert layers and tabulate their price.

    `ranks`: groups that hold whole experts; `rule`, `redundant`: of their placement; `tokens`: most of one step. `plan`
    has layers with experts, from the one of number `first` on, `of_model` expert layers (None: all are here).
    `exchange`: of data-parallel ranks, whose tokens reach them by `plan.collective`.

    **Raises:** `ValueError` for a popularity that does not describe the model.
    """
    slots = plan.moe
    used = np.flatnonzero(np.asarray(slots.count) > 0)
    counts = np.asarray(slots.count)[used].astype(np.int64)
    experts = {int(slots.experts[slot]) - redundant for slot in used}
    top_ks = {int(slots.top_k[slot]) for slot in used}
    if len(experts) > 1 or len(top_ks) > 1:
        raise ValueError(
            "experts.law wants expert layers that all have as many experts and choices, got "
            f"{sorted(experts)} experts and top {sorted(top_ks)}; set experts.law=even."
        )
    (of,), (top_k,) = experts, top_ks
    layers = int(counts.sum())
    total = layers if of_model is None else of_model
    here = slice(first, first + layers)
    chosen = choices(conf, drawn_tokens(total, ranks), total, of, top_k, seed)[:, here]
    mean = popularity(conf, total, of, seed).mean(axis=0)[here]
    loads = expert_loads(chosen, place(mean, ranks, redundant, rule), ranks)
    begins = np.concatenate([[0], np.cumsum(counts)])
    kinds = tuple(
        _layer_times(cost, plan, int(slot), np.arange(begins[index], begins[index + 1]), ranks, tokens)
        for index, slot in enumerate(used)
    )
    ways = _exchange_times(cost, plan, exchange, layers, ranks * tokens) if exchange is not None else None
    return RoutedExperts(loads, kinds, conf.detail, seed, ways)


def _exchange_times(
    cost: CostModel, plan: PlanArrays, exchange: ExchangeRule, layers: int, most: int
) -> ExchangeTimes | None:
    """One layer's exchange; None where every rank gets the tokens of all, whoever needs them."""
    if exchange.decides != MOST:
        return None
    sizes = _sizes(most)
    ways = [plan] if exchange.prefill is None else [plan, replace(plan, collective=exchange.prefill)]
    prices = [price_steps(cost, way, {"padded_tokens": sizes})["collective_s"] for way in ways]
    return ExchangeTimes(sizes, tuple(seconds / layers for seconds in prices))


def _sizes(most: int) -> Float[np.ndarray, " size"]:
    """Numbers of tokens up to `most` and a little beyond, half an octave apart."""
    octaves = int(np.ceil(np.log2(max(most, 2)) * PER_OCTAVE))
    return np.unique(np.round(2.0 ** (np.arange(octaves + 1) / PER_OCTAVE)))


def _layer_times(
    cost: CostModel, plan: PlanArrays, slot: int, layers: Int[np.ndarray, " layer"], ranks: int, most: int
) -> LayerTimes:
    slots: Any = plan.moe
    local = float(slots.local_experts[slot])
    sizes = _sizes(most)
    ratios = np.unique(np.concatenate([RATIOS[: np.searchsorted(RATIOS, ranks)], [float(ranks)]]))
    mean = sizes * float(slots.top_k[slot]) / ranks
    grid = np.meshgrid(np.arange(len(sizes)), ratios, ACTIVE * local, indexing="ij")
    size = grid[0].ravel().astype(np.int64)
    seconds = price_experts(cost, plan, sizes[size], grid[1].ravel() * mean[size], grid[2].ravel())[slot]
    return LayerTimes(layers, local, sizes, ratios, seconds.reshape(grid[0].shape))

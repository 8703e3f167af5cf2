"""What a step costs that several data-parallel ranks run together.

Each rank runs its own part on its own padded tokens T_r: attention, dense products, sums inside its tensor-parallel
group. In between all of them exchange tokens and run the experts, on the N = sum T_r tokens of all ranks. Layer by
layer the slowest rank is waited for, so with own part o_r, lengths l_r, shared part s and launches that the device does
not hide,

    step = max over ranks (o_r + l_r + late_r) + s + gap + host + max over ranks (head and sampler)
    late_r = max(0, launch - o_r - s)

Where tokens are gathered, each of R ranks gets those of all others, so the one with the fewest decides: N - min T_r.
Where each sends its own, the one with the most does (`ExchangeRule`). Either way the exchange takes as long as one of
`exchanged` tokens that are spread evenly. It may be another in steps in which some rank prefills.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim.cost.experts.prices import SUMS, RoutingPrices, extra_seconds
from sim.cost.experts.times import RoutedExperts
from sim.cost.lengths import LengthTerms
from sim.cost.model import CostModel
from sim.cost.table import BEHIND, length_terms, price_steps
from sim.deployment.plan import FEWEST, GATHERS, MOST, ExchangeRule, PlanArrays


class LockstepPrices(NamedTuple):
    """Prices of the steps of data-parallel ranks, float64.

    - `own_s`: `[tokens + 1]`: products, elementwise kernels and collectives of one rank, by its padded tokens.
    - `experts_s`, `exchange_s`: `[ranks x tokens + 1]`: by the padded tokens of all ranks, evenly spread.
    - `prefill_exchange_s`: the same of steps with a prefill; None: `exchange_s`. `decides`: as in `ExchangeRule`.
    - `row_s`: `[rows + 1]`: LM head and sampler of one rank. `lengths`: constants of the lengths' closed form.
    - `launch_s`, `gap_s`: `[mode]`: to submit a step, and what the device always waits; `host_s` of every step.
    - `routing`: what unevenly spread experts change of that.
    """

    own_s: np.ndarray
    experts_s: np.ndarray
    exchange_s: np.ndarray
    row_s: np.ndarray
    lengths: LengthTerms
    launch_s: np.ndarray
    gap_s: np.ndarray
    host_s: float
    prefill_exchange_s: np.ndarray | None = None
    decides: str = FEWEST
    routing: RoutingPrices | None = None


def lockstep_prices(
    cost: CostModel,
    own: PlanArrays,
    shared: PlanArrays,
    ranks: int,
    max_tokens: int,
    max_rows: int,
    exchange: ExchangeRule = GATHERS,
    experts: RoutedExperts | None = None,
) -> LockstepPrices:
    """Tabulate `cost` for `ranks` ranks of up to `max_tokens` padded tokens and `max_rows` emitting rows each."""

    tokens, rows = np.arange(max_tokens + 1.0), np.arange(max_rows + 1.0)
    batches = {
        "padded_tokens": np.concatenate([tokens, np.zeros(len(rows))]),
        "emitting": np.concatenate([np.zeros(len(tokens)), rows]),
    }
    alone = price_steps(cost, own, batches)
    every = {"padded_tokens": np.arange(ranks * max_tokens + 1.0)}
    together = price_steps(cost, shared, every)
    prefill = None if exchange.prefill is None else replace(shared, collective=exchange.prefill)
    routing = None if experts is None else RoutingPrices(experts, together["moe_s"].tolist(), [], [])
    return LockstepPrices(
        own_s=_device_s(alone)[: len(tokens)],
        experts_s=_device_s(together) - together["collective_s"],
        exchange_s=together["collective_s"],
        row_s=alone["head_s"][len(tokens) :],
        lengths=length_terms(cost, own),
        launch_s=np.asarray(own.device.launch_s, np.float64),
        gap_s=np.asarray(own.device.gap_s, np.float64),
        host_s=float(own.device.host_s),
        prefill_exchange_s=None if prefill is None else price_steps(cost, prefill, every)["collective_s"],
        decides=exchange.decides,
        routing=routing,
    )


def lockstep_steps(
    cost: CostModel,
    own: PlanArrays,
    shared: PlanArrays,
    columns: Any,
    step: np.ndarray,
    exchange: ExchangeRule = GATHERS,
    experts: RoutedExperts | None = None,
) -> dict[str, np.ndarray]:
    """Seconds by component of rows that are one rank's part in a step each, and `total_s` of the step, float64.

    `columns`: named as the fields of `BatchStats`, `[row]`; rows with the same number `step` ran together. `wait_s`:
    how much shorter a rank's own part is than that of the slowest. `error_s`, `outside_s`: what the cost model claims
    of the rank's own part and the shared one.
    """
    _, step = np.unique(step, return_inverse=True)
    count = int(step.max(initial=-1)) + 1
    found = price_steps(cost, own, columns)
    tokens = np.asarray(columns.padded_tokens, np.float64)
    mode = np.asarray(columns.graph_mode, np.int64)
    whole, ranks = np.bincount(step, tokens, count), np.bincount(step, minlength=count)
    least, most = -_largest(-tokens, step, count), _largest(tokens, step, count)
    each = zip(whole.tolist(), least.tolist(), most.tolist(), ranks.tolist(), strict=True)
    moved = np.array([exchanged(exchange.decides, *sizes) for sizes in each], np.float64)
    together = _together(cost, shared, whole, moved)
    if exchange.prefill is not None:
        prefills = _largest(np.asarray(columns.prefill_tokens, np.float64), step, count) > 0
        other = _together(cost, replace(shared, collective=exchange.prefill), whole, moved)
        together = {name: np.where(prefills, other[name], price) for name, price in together.items()}
    if experts is not None:
        sums = [np.bincount(step, np.asarray(getattr(columns, name), np.float64), count) for name in SUMS]
        together["moe_s"] = together["moe_s"] + extra_seconds(experts, together["moe_s"], whole, *sums)
    parts = {name: found[name] + together[name][step] for name in BEHIND}
    launch_s, gap_s = np.asarray(own.device.launch_s), np.asarray(own.device.gap_s)
    device_s = _device_s(parts)
    late_s = np.maximum(launch_s[mode] - device_s, 0.0)
    parts |= {"attention_s": found["attention_s"], "head_s": found["head_s"]}
    parts |= {"launch_s": gap_s[mode] + late_s, "host_s": np.full(len(step), float(own.device.host_s))}
    body_s, head_s = device_s + parts["attention_s"] + late_s, parts["head_s"]
    longest_s = (_largest(body_s, step, count) + _largest(head_s, step, count))[step]
    parts["wait_s"] = longest_s - body_s - head_s
    parts["total_s"] = longest_s + gap_s[mode] + parts["host_s"]
    for total, share in (("error_s", "rel_error"), ("outside_s", "outside_share")):
        parts[total] = found[share] * found["total_s"] + (together[share] * together["total_s"])[step]
    return parts


def _together(cost: CostModel, shared: PlanArrays, whole: np.ndarray, moved: np.ndarray) -> dict[str, np.ndarray]:
    """The price of the shared part: experts of `whole` tokens, the exchange of `moved` ones."""
    exchange_s = price_steps(cost, shared, {"padded_tokens": moved})["collective_s"]
    return price_steps(cost, shared, {"padded_tokens": whole}) | {"collective_s": exchange_s}


def _device_s(price: dict[str, np.ndarray]) -> np.ndarray:
    """What of a price launches hide behind."""
    found: np.ndarray = np.sum([price[name] for name in BEHIND], axis=0)
    return found


def exchanged(decides: str, tokens: float, least: float, most: float, ranks: int) -> int:
    """Evenly spread tokens whose exchange takes as long.

    `(N - min T) R / (R - 1)`, rounded up, where the rank with the fewest of N tokens decides; `R max T` with the most.
    """
    if decides == MOST:
        return int(most) * ranks
    return math.ceil((tokens - least) * ranks / (ranks - 1)) if ranks > 1 else int(tokens)


def _largest(values: np.ndarray, step: np.ndarray, count: int) -> np.ndarray:
    """The largest of each step."""
    found = np.full(count, -np.inf)
    np.maximum.at(found, step, values)
    return found

"""How a measured row's latencies answer to the constants that servers teach: its simulation, with decisions frozen.

When every step k takes `c_k` seconds longer, TTFT and TPOT follow linearly (`calibration.from_run.frozen`). So one
simulation tells what a factor on the time of a kind of kernel changes: that of its seconds in each step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from calibration.from_run.frozen import Frozen, frozen
from calibration.from_run.priced import BATCH
from predictors.run_fit import adjusted_arrays
from sim.cost.launch import exposed_launch_s, launch_terms
from sim.cost.model import CostModel
from sim.cost.table import BEHIND, price_steps
from sim.deployment.plan import Plan
from sim.report.result import SimulationResult


PARTS = {
    "products": ("gemm_s", "head_s"),
    "experts": ("moe_s",),
    "elementwise": ("elementwise_s",),
    "links": ("collective_s",),
}
"""Components of a step's time by the constant that scales them; of the rate of `links` the inverse does. Attention
has two, told apart by pricing its steps again."""
SUBMITTED = (0.5, 2.0, 4.0)
"""Factors on the time of submitting at which the steps are priced: what the device hides of it is no linear matter."""
MIDDLE = (0.4, 0.6)
"""A median answers as the requests between these quantiles do."""


@dataclass(frozen=True)
class Response:
    """`ttft_s`, `tpot_s`: as simulated; by constant, what one more of it adds to each. `estimated`: no kernel of the
    device was measured; `pickup_s`: what the engine's profile says of the server, of which no more can be taken back.

    One more: of a factor on time, 1; of seconds, a second. `eager`: TTFT and TPOT at each of `SUBMITTED`, less those as
    simulated.
    """

    engine: str
    device: str
    estimated: bool
    ttft_s: float
    tpot_s: float
    pickup_s: float
    ttft: Mapping[str, float]
    tpot: Mapping[str, float]
    eager: Sequence[Sequence[float]]


def respond(result: SimulationResult, cost: CostModel, plan: Plan, *, estimated: bool, statistic: str) -> Response:
    """How the `mean` or the median (`p50`) of a simulated run's latencies answers. `cost` prices the steps of `plan`.

    **Raises:** ValueError as `calibration.from_run.frozen.frozen`.
    """
    still = frozen(result)
    columns = {name: np.asarray(getattr(result.steps, name))[still.order] for name in BATCH}
    seconds = {name: np.asarray(value) for name, value in price_steps(cost, plan.arrays, columns).items()}
    still_s = np.zeros(len(still.order))
    base, mine = _latencies(still, still_s), {}
    changes: dict[str, Any] = {name: sum(seconds[part] for part in parts) for name, parts in PARTS.items()}
    twice = adjusted_arrays(plan.arrays, {"decode_attention": 2.0})
    attention_s = seconds["attention_s"]
    decode_s = np.asarray(price_steps(cost, twice, columns)["attention_s"]) - attention_s
    changes |= {"prefill_attention": attention_s - decode_s, "decode_attention": decode_s}
    changes["host_s"] = np.ones(len(still.order))
    for name, change_s in changes.items():
        mine[name] = _difference(_latencies(still, change_s), base, statistic)
    eager = []
    for factor in SUBMITTED:
        more_s = _exposed_s(plan, columns, seconds, factor) - seconds["launch_s"]
        eager.append(_difference(_latencies(still, more_s), base, statistic))
    ttft_s, tpot_s = (_statistic(values, values, statistic) for values in base)
    return Response(
        engine=plan.engine.name,
        device=plan.device.name,
        estimated=estimated,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        pickup_s=float(plan.engine.profile.api_pickup_s),
        ttft={name: first for name, (first, _) in mine.items()} | {"request_s": 1.0},
        tpot={name: between for name, (_, between) in mine.items()} | {"request_s": 0.0},
        eager=tuple(eager),
    )


def _exposed_s(
    plan: Plan, columns: Mapping[str, np.ndarray], seconds: Mapping[str, np.ndarray], factor: float
) -> Float[np.ndarray, " step"]:
    """Seconds of submitting each step that the device waits for, were submitting `factor` times as long."""
    terms = launch_terms(adjusted_arrays(plan.arrays, {"eager": factor}).device)
    device_s: Any = sum(seconds[name] for name in BEHIND)
    tokens: Any
    mode: Any
    tokens, mode = columns["padded_tokens"], columns["graph_mode"]
    return np.asarray(exposed_launch_s(terms, tokens, mode, device_s))


def _latencies(still: Frozen, change_s: Any) -> tuple[np.ndarray, np.ndarray]:
    """TTFT, and TPOT of requests of several tokens."""
    ttft_s, e2el_s = (np.asarray(values) for values in still.latencies(change_s))
    several = still.tokens > 1
    return ttft_s, ((e2el_s - ttft_s) / np.maximum(still.tokens - 1, 1))[several]


def _difference(
    changed: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray], statistic: str
) -> tuple[float, float]:
    first, between = (_statistic(new - old, old, statistic) for new, old in zip(changed, base, strict=True))
    return first, between


def _statistic(values: np.ndarray, order: np.ndarray, statistic: str) -> float:
    """Mean of `values`; for a median, of those in the middle by `order`."""
    if not len(values):
        return 0.0
    if statistic != "mean":
        low, high = np.quantile(order, MIDDLE)
        values = values[(order >= low) & (order <= high)]
    return float(np.mean(values))

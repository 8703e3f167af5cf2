"""A few constants that measured servers have taught: factors on rates and times, seconds of host and server.

- `memory`, `compute`, `links`: factors on the rates of memory, of matrix products (attention and experts too) and of
  collectives; one above 1 makes steps faster.
- `products`, `prefill_attention`, `decode_attention`, `experts`, `elementwise`: factors on the time of these kernels;
  `eager`: on that of submitting steps without a graph of the whole step. Many servers tell these
  (`predictors.served`), one run does not.
- `host_s`: seconds that every step takes longer; `request_s`: from the client to the engine's queue, more.

They are applied to a compiled plan, whatever prices it. Stored as a small JSON file that says what it was learned from.
"""

import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.deployment.plan import FfnPlan, Plan, PlanArrays
from sim.documents import read_mapping


SCHEMA = "headway.run-fit/1"
RATES = ("memory", "compute", "links")
SECONDS = ("host_s", "request_s")
KNOBS = (*RATES, *SECONDS)
"""What one run is asked for."""
TIMES = {
    "products": "product_time",
    "prefill_attention": "prefill_attention_time",
    "decode_attention": "decode_attention_time",
    "experts": "expert_time",
    "elementwise": "elementwise_time",
}
"""Factors on times, and the plan's field of each."""


@dataclass(frozen=True)
class RunFit:
    """The constants and where they come from.

    - `predictor`: what prices the steps they correct; `device`, `engine`: full names of what ran.
    - `values`: by knob; `spread`: standard deviation of each (of the logarithm, for rates); `data`, `sha256`: the run.
    - `errors`: by "before" and "after", relative error by metric and statistic, as "mean_ttft".
    """

    predictor: str
    device: str
    engine: str
    values: Mapping[str, float]
    spread: Mapping[str, float]
    data: str
    sha256: str
    date: str
    errors: Mapping[str, Mapping[str, float]]

    def apply(self, plan: Plan) -> Plan:
        """The plan with these constants.

        **Raises:** ValueError for a plan of another device.
        """
        if plan.device.name != self.device:
            raise ValueError(f"predictor was learned from a run on {self.device}, got hardware {plan.device.name}.")
        return adjusted(plan, self.values)

    def save(self, path: Path) -> None:
        """Write the file."""
        head = {"schema": SCHEMA, "headway": importlib.metadata.version("headway")}
        text = json.dumps(head | dataclasses.asdict(self), indent=1, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> RunFit:
    """Read a file that `RunFit.save` wrote.

    **Raises:** ValueError for another schema, a missing field, or values that are no positive factors and seconds.
    """
    content = read_mapping(path)
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema must be {SCHEMA}, got {content.get('schema')!r}.")
    names = [field.name for field in dataclasses.fields(RunFit)]
    missing = [name for name in names if name not in content]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; learn it again with `headway calibrate --from`.")
    check_values(path, content["values"], KNOBS)
    if not isinstance(content["predictor"], str):
        raise ValueError(f"{path}: predictor must be a name, got {content['predictor']!r:.40}.")
    return RunFit(**{name: content[name] for name in names})


def check_values(path: Path, values: Any, known: Sequence[str]) -> None:
    """**Raises:** ValueError for `values` of the file `path` that are no factors and seconds for some of `known`."""
    if not isinstance(values, Mapping) or not values:
        raise ValueError(f"{path}: values must hold numbers for some of {', '.join(known)}, got {values!r:.40}.")
    for name, value in values.items():
        least, most = (-1.0 if name == "request_s" else 0.0, 10.0) if name in SECONDS else (1e-3, 1e3)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in known or not number or not least <= value <= most:
            raise ValueError(f"{path}: values must hold numbers for some of {', '.join(known)}, got {name}={value!r}.")


def adjusted(plan: Plan, values: Mapping[str, float], source: str = "`headway calibrate --from`") -> Plan:
    """`plan` with the knobs at `values`; those not named stay as they are. `source`: who says so, for the report."""
    engine = plan.engine
    pickup_s = max(engine.profile.api_pickup_s + float(values.get("request_s", 0.0)), 0.0)
    stages = tuple(adjusted_arrays(stage, values) for stage in plan.stages)
    # the step's host time is the ranks' own: what they run together has none
    rates = {name: value for name, value in values.items() if name not in SECONDS and name != "eager"}
    shared = None if plan.shared is None else adjusted_arrays(plan.shared, rates)
    ffn = None if plan.ffn is None else adjusted_sides(plan.ffn, plan.device.name, rates)
    draft = plan.draft
    if draft is not None:
        first, later = adjusted_arrays(draft.first, rates), adjusted_arrays(draft.later, rates)
        draft = dataclasses.replace(draft, first=first, later=later)
    exchange = plan.exchange
    if plan.shared is not None and exchange.prefill is not None:
        prefill = dataclasses.replace(plan.shared, collective=exchange.prefill)
        exchange = dataclasses.replace(exchange, prefill=adjusted_arrays(prefill, rates).collective)
    shown = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())
    rows = (*plan.assumptions, ("constants learned from servers", shown, source))
    profile = dataclasses.replace(engine.profile, api_pickup_s=pickup_s)
    return dataclasses.replace(
        plan,
        stages=stages,
        shared=shared,
        ffn=ffn,
        exchange=exchange,
        draft=draft,
        engine=dataclasses.replace(engine, profile=profile),
        assumptions=rows,
    )


def adjusted_sides(ffn: FfnPlan, device: str, rates: Mapping[str, Any]) -> FfnPlan:
    """The layers of attention ranks on `device`, and of FFN devices where they are of that kind, at these rates."""
    mixers = tuple(adjusted_arrays(arrays, rates) for arrays in ffn.mixers)
    feeds = tuple(adjusted_arrays(arrays, rates) for arrays in ffn.feeds) if ffn.device.name == device else ffn.feeds
    return dataclasses.replace(ffn, ends=adjusted_arrays(ffn.ends, rates), mixers=mixers, feeds=feeds)


def adjusted_arrays(arrays: PlanArrays, values: Mapping[str, Any]) -> PlanArrays:
    """The arrays of one rank with the knobs at `values`; differentiable in them."""
    device, replace = arrays.device, dataclasses.replace
    if "memory" in values:
        factor = values["memory"]
        device = replace(
            device,
            memory_bytes_per_s=device.memory_bytes_per_s * factor,
            unit_stream_bytes_per_s=device.unit_stream_bytes_per_s * factor,
        )
    if "host_s" in values:
        device = replace(device, host_s=device.host_s + values["host_s"])
    if "eager" in values:
        factor = values["eager"]
        pieces, whole = np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
        device = replace(
            device,
            launch_s=device.launch_s * (whole + factor * pieces),
            gap_s=device.gap_s * np.array([factor, 1.0, 1.0]),
        )
    for name in TIMES.keys() & values.keys():
        device = replace(device, **{TIMES[name]: getattr(device, TIMES[name]) * values[name]})
    groups: dict[str, Any] = {"device": device}
    if "compute" in values:
        for name in ("gemm", "attention", "moe", "recurrent"):
            group = getattr(arrays, name)
            groups[name] = replace(group, flops_per_s=group.flops_per_s * values["compute"])
    if "links" in values:
        group = arrays.collective
        groups["collective"] = replace(
            group, bytes_per_s=group.bytes_per_s * values["links"], a_s=group.a_s / values["links"]
        )
    return replace(arrays, **groups)

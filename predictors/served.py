"""What measurements of whole servers have taught of an engine on a device, beside the tables of its kernels.

A file holds, for each engine and device of a table of measured servers, the constants of `predictors.run_fit` with
which simulated servers meet the measured ones, how well they are known, and the errors before and after. `headway
calibrate --from TABLE.csv` makes it (`calibration.serving.taught`). The one that comes with Headway holds on top of
what `predictor=auto` takes for the device, learned or analytic; `predictor=kernels` is without it.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from predictors import run_fit, store
from sim.deployment.plan import Plan
from sim.documents import read_mapping


SCHEMA = "headway.served/1"
FILE = "served.json"


def save(path: Path, head: Mapping[str, Any], fits: Sequence[Mapping[str, Any]]) -> None:
    """Write `fits`, each with `engine`, `device` (full name), `values`, `spread`, `rows`, `before` and `after`.

    `head`: `data`, `sha256` and `date` of the table, `until`: the day from which rows were left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": SCHEMA} | dict(head) | {"fits": list(fits)}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


@cache
def load(path: Path) -> Mapping[str, Any]:
    """Read a file that `save` wrote.

    **Raises:** ValueError for another schema.
    """
    content = read_mapping(path)
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema must be {SCHEMA}, got {content.get('schema')!r}.")
    return content


def shipped() -> Path | None:
    """The file that comes with Headway."""
    path = store.SHIPPED / FILE
    return path if path.is_file() else None


def taught_plan(predictor: str, plan: Plan) -> tuple[str, Plan]:
    """What prices the kernels of `plan` under `predictor`, and the plan with what servers have taught.

    **Raises:** ValueError for a file that cannot be read, or that was learned elsewhere.
    """
    if not predictor.endswith(".json"):
        path = shipped() if predictor == "auto" else None
        return predictor, plan if path is None else as_served(plan, path)
    path = Path(predictor).expanduser()
    if read_mapping(path).get("schema") == SCHEMA:
        known = [(fit["engine"], fit["device"]) for fit in load(path)["fits"]]
        if (plan.engine.name, plan.device.name) not in known:
            pairs = "; ".join(f"{engine} on {device}" for engine, device in known)
            raise ValueError(
                f"predictor={predictor} knows {pairs}, got {plan.engine.name} on {plan.device.name}; "
                "set predictor=auto or another file."
            )
        return "kernels", as_served(plan, path)
    learned = run_fit.load(path)
    beneath, plan = taught_plan(learned.predictor, plan)
    return beneath, learned.apply(plan)


def as_served(plan: Plan, path: Path) -> Plan:
    """The plan with what `path` has learned of its engine on its device; the plan itself where that is nothing."""
    content = load(path)
    for fit in content["fits"]:
        if (fit["engine"], fit["device"]) == (plan.engine.name, plan.device.name):
            source = f"{fit['rows']} measurements of servers before {content['until']}: {content['data']}"
            return run_fit.adjusted(plan, fit["values"], source)
    return plan

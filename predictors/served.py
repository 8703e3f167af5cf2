"""What published measurements of servers have taught of an engine on a device, beside the tables of kernels.

`served.json` holds, for each engine and device that was measured as a whole, the constants of `predictors.run_fit` with
which simulated servers meet the measured ones, how well they are known, and the errors before and after, on the rows
they were fitted to and on later ones. `headway calibrate --from TABLE.csv` (`calibration.serving.responses`) makes it.
They hold on top of what `predictor=auto` takes for the device, learned or analytic.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from predictors.run_fit import adjusted
from sim.deployment.plan import Plan


SCHEMA = "headway.served/1"
SHIPPED = Path(__file__).parent / "served.json"


@cache
def served(path: Path = SHIPPED) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """The fits by engine and device (full name).

    **Raises:** ValueError for another schema.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema must be {SCHEMA}, got {content.get('schema')!r}.")
    return {(fit["engine"], fit["device"]): fit for fit in content["fits"]}


def as_served(plan: Plan) -> Plan:
    """The plan with what was learned of its engine on its device; the plan itself where nothing was."""
    fit = served().get((plan.engine.name, plan.device.name))
    if fit is None:
        return plan
    return adjusted(plan, fit["values"], f"{fit['rows']} published measurements of servers, {served_source()}")


@cache
def served_source(path: Path = SHIPPED) -> str:
    """What the fits were learned from, in words."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return f"{content['data']}, before {content['until']}"

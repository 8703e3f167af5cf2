"""What measurements of whole servers have taught of an engine on a device, beside the tables of its kernels.

A file holds, for each engine and device of a table of measured servers, the constants of `predictors.run_fit` with
which simulated servers meet the measured ones, how well they are known, and the errors before and after. `headway
calibrate --from TABLE.csv` makes it (`calibration.serving.taught`). The one that comes with Headway holds on top of
what `predictor=auto` takes for the device, learned or analytic; `predictor=kernels` is without it.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from predictors import run_fit, store
from sim.deployment.plan import Plan
from sim.documents import read_mapping


SCHEMA = "headway.served/1"
FILE = "served.json"
OWN = "constants learned from your own server"
KNOWN = (*run_fit.KNOBS, *run_fit.TIMES, "eager")


@dataclass(frozen=True)
class OwnFit(run_fit.RunFit):
    """What a run or log of a user's own server taught, and what served: `model` by name, empty if not known."""

    model: str = ""
    tensor_parallel: int = 0

    def apply(self, plan: Plan) -> Plan:
        """The plan with these constants, and what it has otherwise than the server they were learned from.

        **Raises:** ValueError for a plan of another device or engine.
        """
        # as in `SimulationResult.engine_label`
        name, _, version = self.engine.partition(",")[0].partition(" ")
        if plan.engine.name != name:
            raise ValueError(
                f"predictor was learned from a run of {self.engine}, got engine {plan.engine.name} "
                f"{plan.engine.version}; set engine={name}-VERSION or predictor=auto."
            )
        found = super().apply(plan)
        *rows, (what, shown, _) = found.assumptions
        source = f"{self.data}, {self.date}"
        if rows and rows[-1][0] == what:
            source += "; on top of those from servers above: seconds add, factors multiply"
        rows.append((OWN, shown, source))
        for kind, mine, its in (
            (f"version of {name}", version, plan.engine.version),
            ("model", self.model, plan.model.name),
            ("tensor parallel size", f"{self.tensor_parallel or ''}", f"{plan.deployment.tensor_parallel}"),
        ):
            if mine and mine != its:
                rows.append((f"learned on another {kind}", f"{mine}, here {its}", f"predictor: {self.data}"))
        return dataclasses.replace(found, assumptions=tuple(rows))


def own_fit(path: Path) -> OwnFit:
    """Read a file that `headway calibrate --from` wrote of a run or log; one of before names no model.

    **Raises:** ValueError as `predictors.run_fit.load`, and for a model that is no name or a size that is no number.
    """
    content, fit = read_mapping(path), run_fit.load(path)
    model, size = content.get("model", ""), content.get("tensor_parallel", 0)
    for name, value, wanted in (("engine", fit.engine, str), ("model", model, str), ("tensor_parallel", size, int)):
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ValueError(
                f"{path}: {name} must be a {'name' if wanted is str else 'whole number'}, got {value!r:.40}."
            )
    return OwnFit(**vars(fit), model=model, tensor_parallel=size)


def save(path: Path, head: Mapping[str, Any], fits: Sequence[Mapping[str, Any]]) -> None:
    """Write `fits`, each with `engine`, `device` (full name), `values`, `spread`, `rows`, `before` and `after`.

    `head`: `data`, `sha256` and `date` of the table, `predictor`: what priced the kernels, `until`: the day from which
    rows were left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": SCHEMA} | dict(head) | {"fits": list(fits)}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


@cache
def load(path: Path) -> Mapping[str, Any]:
    """Read a file that `save` wrote.

    **Raises:** ValueError for another schema, a missing field, or values that are no factors and seconds.
    """
    content = read_mapping(path)
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema must be {SCHEMA}, got {content.get('schema')!r}.")
    fits, again = content.get("fits"), "learn it again with `headway calibrate --from TABLE.csv`"
    if not isinstance(fits, list) or not fits or not all(isinstance(fit, dict) for fit in fits):
        raise ValueError(f"{path}: fits must be a list of what was learned of each engine and device; {again}.")
    missing = [name for name in ("data", "until", "predictor") if not isinstance(content.get(name), str)]
    missing += [name for name in ("engine", "device") for fit in fits if not isinstance(fit.get(name), str)]
    missing += ["rows" for fit in fits if not isinstance(fit.get("rows"), int)]
    if missing:
        raise ValueError(f"{path} lacks {missing[0]}; {again}.")
    pairs = [(fit["engine"], fit["device"]) for fit in fits]
    if len(set(pairs)) < len(pairs):
        raise ValueError(f"{path} has two fits of one engine and device; {again}.")
    for fit in fits:
        run_fit.check_values(path, fit.get("values"), KNOWN)
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
                f"predictor={predictor} was learned of {pairs}, got {plan.engine.name} on {plan.device.name}; "
                "set predictor=auto or another file."
            )
        return load(path)["predictor"], as_served(plan, path)
    learned = own_fit(path)
    if learned.predictor.endswith(".json"):
        raise ValueError(f"{path}: predictor must be auto, kernels, analytic or a folder, got {learned.predictor}.")
    beneath, plan = taught_plan(learned.predictor, plan)
    return beneath, learned.apply(plan)


def as_served(plan: Plan, path: Path) -> Plan:
    """The plan with what `path` has learned of its engine on its device; the plan itself where that is nothing."""
    content = load(path)
    for fit in content["fits"]:
        if (fit["engine"], fit["device"]) == (plan.engine.name, plan.device.name):
            before = f" before {content['until']}" if content["until"] else ""
            source = f"{fit['rows']} measurements of servers{before}: {content['data']}"
            return run_fit.adjusted(plan, fit["values"], source)
    return plan

"""The cost model of a device: learned kernels where an artifact has them, analytic ones elsewhere."""

import dataclasses
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from predictors.families import KERNELS, MODULES, family
from predictors.store import Artifact, load, shipped
from sim.cost.analytic import analytic_cost, constants
from sim.cost.kernel_cost import KernelCost
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf
from sim.model.attention import MLA, Attention
from sim.model.recurrent import Recurrent
from sim.model.spec import ModelSpec


def learned_cost(artifact: Artifact, device: DeviceConf, engine: str) -> KernelCost:
    """The kernels of `artifact` as they run under `engine` (vllm, sglang, trtllm) on `device`, others analytic."""
    kernels: dict[str, Any] = {
        KERNELS.get(name, name): family(name).kernel(fitted, device, engine)
        for name, fitted in artifact.families.items()
    }
    return dataclasses.replace(analytic_cost(), **kernels)


@cache
def _shipped(folder: Path, lender: str = "") -> Artifact:
    """What came with Headway in this folder; `lender`: the device that lends it to another, as the card then says."""
    if not lender:
        return load(folder)
    found = _shipped(folder)
    families = {name: {**entry, "lender": lender} for name, entry in found.card["families"].items()}
    return dataclasses.replace(found, card={**found.card, "families": families})


def _coming_for(device: DeviceConf) -> Artifact | None:
    """What comes with Headway for a device: its own, or that of the device whose kernels it runs; None for neither."""
    folders = shipped()
    if device.name in folders:
        return _shipped(folders[device.name])
    lender = load_device(device.kernels_of, "hardware.kernels_of").name if device.kernels_of else ""
    return _shipped(folders[lender], lender) if lender in folders else None


def artifact_for(device: DeviceConf, predictor: str = "auto") -> Artifact | None:
    """The artifact that a simulation uses; None: the analytic model.

    **Arguments:**

    - `predictor`: "auto", "kernels": what was shipped for the device, or else for the one named by its `kernels_of`, if
      anything; "analytic": none; else a folder that `headway calibrate` wrote.

    Families that such a folder lacks are taken from what was shipped for the device.

    **Raises:** ValueError for a folder that is none, or of another device.
    """
    if predictor == "analytic":
        return None
    if predictor in ("auto", "kernels"):
        return _coming_for(device)
    artifact, other = own_artifact(device, predictor), _coming_for(device)
    return artifact if other is None else completed(artifact, other)


def own_artifact(device: DeviceConf, predictor: str) -> Artifact:
    """What `headway calibrate` wrote into the folder `predictor`, alone; raises as `artifact_for`."""
    path = Path(predictor).expanduser()
    if not (path / "card.json").is_file():
        raise ValueError(
            f"predictor must be auto, kernels, analytic or a folder that `headway calibrate` wrote, got {predictor}."
        )
    artifact = load(path)
    if artifact.card["device"] != device.name:
        raise ValueError(f"predictor={predictor} was fitted on {artifact.card['device']}, got hardware {device.name}.")
    return artifact


def completed(own: Artifact, other: Artifact) -> Artifact:
    """`own` with the families that it lacks from `other`, whose entries in the card say so (`lent`)."""
    lent = {name: {**entry, "lent": True} for name, entry in other.card["families"].items() if name not in own.families}
    families = {name: own.families.get(name) or other.families[name] for name in (*own.families, *lent)}
    return dataclasses.replace(own, card={**own.card, "families": {**own.card["families"], **lent}}, families=families)


def shipped_for(device: str, predictor: str = "auto") -> Artifact | None:
    """The artifact of a device by its name in the catalogue, with its own families alone."""
    if predictor in ("auto", "kernels", "analytic"):
        return artifact_for(load_device(device), predictor)
    folder = Path(predictor).expanduser()
    nested = folder / device
    return own_artifact(load_device(device), str(nested if nested.is_dir() else folder))


def families_of(model: ModelSpec) -> frozenset[str]:
    """The families whose kernels a step of this model runs."""
    layers = (*model.layers, *model.draft_layers)
    found = {"gemm", "elementwise"}
    if any(isinstance(layer.mixer, Attention | MLA) for layer in layers):
        found |= {"decode", "mixed"}
    if any(isinstance(layer.mixer, Recurrent) for layer in layers):
        found.add("recurrent")
    return frozenset(found | ({"moe"} if model.is_moe else set()))


def cost_rows(artifact: Artifact | None, used: Collection[str] = tuple(MODULES)) -> tuple[tuple[str, str, str], ...]:
    """What a report says of the step prices of the families `used`: rows (what, value, source)."""
    if artifact is None:
        claim: Any = constants()["claim"]
        seen = ", ".join(f"{what} {claim[what]:.0%}" for what in ("gemm", "decode", "prefill", "moe"))
        error = f"median errors where there are measurements: {seen}"
        return (("step prices", f"estimated; {error}", "analytic model, no measured kernels"),)
    rows = []
    for name, entry in artifact.card["families"].items():
        if name not in used:
            continue
        found = (entry.get("errors") or {}).get("shapes", {}).get("")
        known = "error on unseen shapes not known"
        value = f"learned, {known if found is None else f'{found["median"]:.1%} median error on unseen shapes'}"
        sources = sorted({f"{table['source']}" for table in entry.get("tables") or ()})
        source = f"{', '.join(sources)}, fitted {entry.get('date', 'on a day not told')}"
        if entry.get("lender"):
            source += f"; of {entry['lender']}, the same chip (hardware.kernels_of)"
        if entry.get("lent"):
            source += "; comes with Headway, for the artifact of predictor= has none"
        rows.append((f"{name} kernels", value, source))
    missing = [name for name in MODULES if name in used and name not in artifact.families]
    if missing:
        rows.append((f"{', '.join(missing)} kernels", "estimated", "not measured on this device: analytic model"))
    return tuple(rows)

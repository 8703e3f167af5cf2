"""Fits the learned families of a device to its operator tables, and judges them on shapes they have not seen.

What is shipped is fitted to all rows but the held-out shapes (split "shapes": one in eight by a hash of the shape), so
that its error on those can be measured at any time by anybody with the tables. The other splits (unseen models, beyond
the grid ...) need a fit of their own each, without their rows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from calibration.analytic_rows import analytic_rows
from calibration.tables import tables_for
from calibration.tables.check import quarantined
from predictors.families import MODULES, TABLES, family
from predictors.family import Fitted, Predicted, none_of
from predictors.table import LABELS, OperatorTable, concatenated
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf


SHAPES = "shapes"
LICENCES = {"aiconfigurator-core": "Apache-2.0", "LLMServingSim": "MIT", "Vidur": "MIT", "Frontier": "MIT"}
"""Of the public tables, by the first word of their source."""
NOT_NAMED = "not named"
"""In place of the kernel's name where a table gives none: "" is all rows together."""


Reasons = Mapping[str, Bool[np.ndarray, " row"]]


@dataclass(frozen=True)
class Errors:
    """Absolute relative errors of some rows (`bias`: median with sign); `outside`: share marked so."""

    median: float
    p95: float
    mean: float
    bias: float
    rows: int
    outside: float
    noise: float | None

    @staticmethod
    def of(predicted: Predicted, table: OperatorTable) -> "Errors":
        """Of predictions against the measured seconds."""
        measured_s = table.seconds
        relative = np.asarray(predicted.seconds) / measured_s - 1.0
        size = np.abs(relative)
        return Errors(
            median=float(np.median(size)),
            p95=float(np.quantile(size, 0.95)),
            mean=float(size.mean()),
            bias=float(np.median(relative)),
            rows=len(size),
            outside=float(np.mean(np.asarray(predicted.outside))),
            noise=noise(table),
        )


def noise(table: OperatorTable) -> float | None:
    """Median deviation from their mean of rows that repeat the same shape and kernel; None where none do."""
    names = [*table.columns, "kernel", "dtype", "op", "timing"]
    keys = list(zip(*(table[name].tolist() for name in names), strict=True))
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    place = np.array([index[key] for key in keys])
    count = np.bincount(place)
    mean = np.bincount(place, table.seconds) / count
    repeated = count[place] > 1
    return float(np.median(np.abs(table.seconds / mean[place] - 1.0)[repeated])) if repeated.any() else None


@dataclass(frozen=True, eq=False)
class Gathered:
    """All rows of one family on one device, what was set aside on the way, and which rows no family of it uses."""

    device: DeviceConf
    table: OperatorTable
    summary: str
    unused: str = ""


class NothingToFit(ValueError):
    """There are tables of this family and device, but no row that can be learned; why, without a full stop."""


def gather(device: str, name: str, sources: Iterable[str | Path] = ()) -> Gathered | None:
    """The checked rows that family `name` is fitted to; None where the sources have no table of it for this device.

    **Raises:** NothingToFit where they have, but none of its rows can be used.
    """
    tables = [table for table in tables_for(device, TABLES.get(name, name), sources) if len(table)]
    if not tables:
        return None
    kept, quarantine = quarantined(tables)
    if not kept:
        rows = sum(map(len, tables))
        raise NothingToFit(
            f"all {rows} rows of {device} for {name} are set aside: {'; '.join(map(str, quarantine.aside))}"
        )
    table = concatenated(kept)
    reasons = family(name).unused(table)
    if not none_of(reasons, len(table)).any():
        why = counted(reasons, np.ones(len(table), bool))
        raise NothingToFit(f"none of the {len(table)} rows of {device} for {name} can be learned: {why}")
    return Gathered(load_device(device), table, str(quarantine), left_out(name, table, reasons))


def left_out(name: str, table: OperatorTable, reasons: Reasons) -> str:
    """How many rows neither `name` nor another family of the same tables uses, and why; "" for none."""
    nobody = ~none_of(reasons, len(table))
    for other in MODULES:
        if other != name and TABLES.get(other, other) == table.family:
            nobody &= ~none_of(family(other).unused(table), len(table))
    if not nobody.any():
        return ""
    return f"{int(nobody.sum())} of {len(table)} rows are not learned: {counted(reasons, nobody)}"


def counted(reasons: Reasons, rows: Bool[np.ndarray, " row"]) -> str:
    """How many of these rows each reason leaves out; a row counts for the first that holds."""
    found, left = [], rows.copy()
    for reason, some in reasons.items():
        mine = some & left
        if mine.any():
            found.append(f"{int(mine.sum())} {reason}")
            left &= ~mine
    return ", ".join(found)


SURE = 0.99
"""Chance of a shape held out with the number of shapes that is called enough."""


def too_few(name: str, table: OperatorTable) -> str:
    """What to say where the hash holds out no shape of a table: how many there are, how many would do."""
    shapes, one_in = family(name).shapes(table), family(name).ONE_IN
    needed = math.ceil(math.log(1.0 - SURE) / math.log(1.0 - 1.0 / one_in))
    are = "shapes are" if shapes != 1 else "shape is"
    return (
        f"{shapes} {are} too few: the hash that holds out one in {one_in} took none, so the error on unseen shapes is "
        f"not known; {needed} are needed for one to be held out in {SURE:.0%} of cases"
    )


def fit_family(name: str, gathered: Gathered, *, seed: int = 0, quick: bool = False, without: str = SHAPES) -> Fitted:
    """Fit family `name` to all rows outside the split `without`.

    **Raises:** NothingToFit where none of them can be used.
    """
    module = family(name)
    aside = module.splits(gathered.table, gathered.device)[without]
    table = gathered.table.where(~aside)
    reasons = module.unused(table)
    if not none_of(reasons, len(table)).any():
        why = counted(reasons, np.ones(len(table), bool)) or "all are held out"
        raise NothingToFit(
            f"of the {len(aside)} rows of {table.device} for {name} {int(aside.sum())} are held out to judge by, and "
            f"none of the others can be learned: {why}"
        )
    return module.fit(table, gathered.device, seed, quick)


def judged(name: str, fitted: Fitted | None, gathered: Gathered, split: str = SHAPES) -> dict[str, Errors]:
    """Errors on the rows of a split, all together ("") and by kernel; of the analytic model without `fitted`.

    Rows whose table names no kernel go by `NOT_NAMED`. Empty where the split holds no row, or the analytic model has no
    kernel of this family.
    """
    module = family(name)
    rows = module.splits(gathered.table, gathered.device)[split]
    if not rows.any():
        return {}
    table = gathered.table.where(rows)
    if fitted is None:
        priced = analytic_rows(name, table, gathered.device)
    else:
        priced = module.predict(fitted, table, gathered.device)
    if priced is None:
        return {}
    predicted = Predicted(*(np.asarray(leaf) for leaf in priced))
    found = {"": Errors.of(predicted, table)}
    for (kernel,), chosen in table.groups("kernel"):
        some = Predicted(*(leaf[chosen] for leaf in predicted))
        found[str(kernel) or NOT_NAMED] = Errors.of(some, table.where(chosen))
    return found


def further_splits(name: str, gathered: Gathered) -> list[str]:
    """Names of the splits beside the shipped one that hold out any row."""
    found = family(name).splits(gathered.table, gathered.device)
    return sorted(split for split, rows in found.items() if split != SHAPES and rows.any())


def provenance(gathered: Gathered, fitted_rows: int, seed: int, date: str) -> dict[str, Any]:
    """What a card tells of the data: each source with licence, engine, version, rows and a hash of its numbers."""
    table = gathered.table
    tables = []
    for (source, engine, version), rows in table.groups("source", "engine", "engine_version"):
        part = table.where(rows)
        tables.append(
            {
                "source": source,
                "licence": LICENCES.get(source.split(" ")[0], "not stated"),
                "engine": engine,
                "engine_version": version,
                "rows": len(part),
                "sha256": digest(part),
            }
        )
    return {"tables": tables, "rows": fitted_rows, "seed": seed, "date": date, "set_aside": gathered.summary}


def digest(table: OperatorTable) -> str:
    """SHA-256 of labels, columns by name and seconds, as little-endian float64."""
    found = sha256()
    for name in LABELS:
        found.update("\n".join(table.labels[name].tolist()).encode())
    for name in sorted(table.columns):
        found.update(np.asarray(table.columns[name], "<f8").tobytes())
    found.update(np.asarray(table.seconds, "<f8").tobytes())
    return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A fitted family, what its card says (data, seed, date, errors by split and kernel), and notes for a person."""

    device: DeviceConf
    fitted: Fitted
    card: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def calibrated(
    device: str,
    name: str,
    sources: Iterable[str | Path],
    *,
    seed: int,
    quick: bool,
    every_split: bool,
    date: str,
) -> Calibrated | None:
    """Fit family `name` of `device` and judge it; None where the sources have no table for it.

    `every_split`: fit once more for each further split, without its rows, and judge that.

    **Raises:** NothingToFit where no row of the tables can be used.
    """
    gathered = gather(device, name, sources)
    if gathered is None:
        return None
    fitted = fit_family(name, gathered, seed=seed, quick=quick)
    errors, notes = {SHAPES: judged(name, fitted, gathered)}, [gathered.unused]
    if not errors[SHAPES]:
        notes.append(too_few(name, gathered.table))
    for split in further_splits(name, gathered) if every_split else ():
        try:
            other = fit_family(name, gathered, seed=seed, quick=quick, without=split)
        except NothingToFit as error:
            notes.append(f"split {split}: {error}")
            continue
        errors[split] = judged(name, other, gathered, split)
    seen = int((~family(name).splits(gathered.table, gathered.device)[SHAPES]).sum())
    plain = {split: {kernel: vars(found) for kernel, found in by.items()} for split, by in errors.items()}
    card = provenance(gathered, seen, seed, date) | {"errors": plain}
    return Calibrated(gathered.device, fitted, card, tuple(filter(None, notes)))

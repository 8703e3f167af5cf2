"""Fits the learned families of a device to its operator tables, and judges them on shapes they have not seen.

What is shipped is fitted to all rows but the held-out shapes (split "shapes": one in eight by a hash of the shape), so
that its error on those can be measured at any time by anybody with the tables. The other splits (unseen models, beyond
the grid ...) need a fit of their own each, without their rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from calibration.analytic_rows import analytic_rows
from calibration.tables import tables_for
from calibration.tables.check import quarantined
from predictors.families import TABLES, family
from predictors.family import Fitted, Predicted
from predictors.table import LABELS, OperatorTable, concatenated
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf


SHAPES = "shapes"
LICENCES = {"aiconfigurator-core": "Apache-2.0", "LLMServingSim": "MIT", "Vidur": "MIT", "Frontier": "MIT"}
"""Of the public tables, by the first word of their source."""
NOT_NAMED = "not named"
"""In place of the kernel's name where a table gives none: "" is all rows together."""


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
    """All rows of one family on one device, and what was set aside on the way."""

    device: DeviceConf
    table: OperatorTable
    summary: str


def gather(device: str, name: str, sources: Iterable[str | Path] = ()) -> Gathered | None:
    """The checked rows that family `name` is fitted to; None where the sources have none of this device it uses."""
    tables = [table for table in tables_for(device, TABLES.get(name, name), sources) if len(table)]
    if not tables:
        return None
    kept, quarantine = quarantined(tables)
    if not kept:
        return None
    table, used = concatenated(kept), getattr(family(name), "used", None)
    if used is not None and not used(table).any():
        return None
    return Gathered(load_device(device), table, str(quarantine))


def fit_family(name: str, gathered: Gathered, *, seed: int = 0, quick: bool = False, without: str = SHAPES) -> Fitted:
    """Fit family `name` to all rows outside the split `without`."""
    module = family(name)
    aside = module.splits(gathered.table, gathered.device)[without]
    return module.fit(gathered.table.where(~aside), gathered.device, seed, quick)


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


def splits_of(name: str, gathered: Gathered) -> list[str]:
    """Names of the splits that hold out any row, the shipped one first."""
    found = family(name).splits(gathered.table, gathered.device)
    return sorted((split for split, rows in found.items() if rows.any()), key=lambda split: (split != SHAPES, split))


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
    """A fitted family, and what its card says: data, seed, date, errors by split and kernel."""

    device: DeviceConf
    fitted: Fitted
    card: Mapping[str, Any]


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
    """Fit family `name` of `device` and judge it; None where the sources have no rows for it.

    `every_split`: fit once more for each further split, without its rows, and judge that.
    """
    gathered = gather(device, name, sources)
    if gathered is None:
        return None
    fitted = fit_family(name, gathered, seed=seed, quick=quick)
    errors = {SHAPES: judged(name, fitted, gathered)}
    for split in splits_of(name, gathered)[1:] if every_split else ():
        other = fit_family(name, gathered, seed=seed, quick=quick, without=split)
        errors[split] = judged(name, other, gathered, split)
    seen = int((~family(name).splits(gathered.table, gathered.device)[SHAPES]).sum())
    plain = {split: {kernel: vars(found) for kernel, found in by.items()} for split, by in errors.items()}
    return Calibrated(gathered.device, fitted, provenance(gathered, seen, seed, date) | {"errors": plain})

"""Fitted constants as a small JSON file that says where they come from, and putting them into another plan."""

import importlib.metadata
import json
from dataclasses import asdict, dataclass
from datetime import date as Date
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from predictors.constants import check_name, constants, of_plan, scaled
from predictors.fit import Fit
from sim.cost.kernel_cost import KernelCost
from sim.deployment.plan import PlanArrays


SCHEMA = "headway.constants/1"
SAME = 1e-6
DEVICE = ("device.memory_bytes_per_s", "device.cache_bytes_per_s", "device.unit_stream_bytes_per_s")


@dataclass(frozen=True)
class Constant:
    """One fitted constant: its published value (a number, or a list of those of one plan) and the factor on it."""

    published: Any
    factor: float


@dataclass(frozen=True)
class Artifact:
    """The content of the file.

    - `headway`: version that fitted; `date`: as given; `data`: name of the measurements.
    - `data_sha256`: of the measured steps (`predictors.check.digest`); `rows`: how many.
    - `error_before`, `error_after`: price over measured less one: `median` and `p90` of its size, `bias` its mean.
    - `bounds`: the largest factor that was allowed.
    - `device`: published rates that tell the device, by name.
    - `constants`: by name.
    """

    headway: str
    date: str
    data: str
    data_sha256: str
    rows: int
    error_before: dict[str, float]
    error_after: dict[str, float]
    bounds: float
    device: dict[str, float]
    constants: dict[str, Constant]

    def apply(self, cost: KernelCost, plan: PlanArrays) -> tuple[KernelCost, PlanArrays]:
        """Multiply the constants of `cost` and `plan` (one plan or a stack) by their factors.

        **Raises:** ValueError where a constant is unknown, or was published with another value: another device, or
        another version of its data. Values by slot or graph mode depend on the model, and are not compared.
        """
        present = constants(cost, plan)
        expected = dict(self.device)
        for name, constant in self.constants.items():
            if np.ndim(constant.published) == 0 or not of_plan(name, plan):
                expected[name] = constant.published
        for name in expected | self.constants:
            check_name(name, present)
        for name, value in expected.items():
            if not _same(present[name], value):
                raise ValueError(
                    f"the constants were fitted where {name} was {value}, got {np.asarray(present[name]).tolist()}: "
                    "that is another device or version, or they are applied already."
                )
        return scaled(cost, plan, {name: constant.factor for name, constant in self.constants.items()})


def save(path: str | PathLike[str], fit: Fit, *, data: str, date: str) -> Artifact:
    """Write the constants of `fit`, and return what was written.

    **Arguments:**

    - `data`: name of the measurements, for people; `date`: of the fit, `YYYY-MM-DD`.
    """
    try:
        Date.fromisoformat(date)
    except (TypeError, ValueError):
        raise ValueError(f"date must be YYYY-MM-DD, got {date!r}.") from None
    artifact = Artifact(
        headway=importlib.metadata.version("headway"),
        date=date,
        data=data,
        data_sha256=fit.data_sha256,
        rows=len(fit.error_after),
        error_before=_error(fit.error_before),
        error_after=_error(fit.error_after),
        bounds=fit.bounds,
        device={name: float(fit.published[name]) for name in DEVICE},
        constants={name: Constant(fit.published[name].tolist(), factor) for name, factor in fit.factors.items()},
    )
    text = json.dumps({"schema": SCHEMA} | asdict(artifact), indent=2, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
    return artifact


def load(path: str | PathLike[str]) -> Artifact:
    """Read a file that `save` wrote; `load(path).apply(cost, plan)` puts its constants in place.

    **Raises:** ValueError, one sentence, for a file that is missing, no JSON, of another schema, incomplete, or whose
    factors are no numbers within their bounds.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the constants in {path}: {error.strerror}.") from None
    except ValueError:
        raise ValueError(f"{path} is no JSON file; write it with predictors.artifact.save.") from None
    schema = content.pop("schema", None) if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} must have the schema '{SCHEMA}', got {schema!r}.")
    try:
        named = {name: _constant(**entry) for name, entry in content.pop("constants").items()}
        device = {name: float(rate) for name, rate in content.pop("device").items()}
        artifact = Artifact(device=device, constants=named, **content)
        largest = float(artifact.bounds) * (1.0 + SAME)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(
            f"{path} does not hold the fields of '{SCHEMA}'; write it with predictors.artifact.save."
        ) from None
    for name, constant in named.items():
        if not 1.0 / largest <= constant.factor <= largest:
            raise ValueError(f"{path} allows factors up to {artifact.bounds}, got {constant.factor} for {name}.")
    return artifact


def _constant(published: Any, factor: Any) -> Constant:
    return Constant(np.asarray(published, np.float64).tolist(), float(factor))


def _same(present: Any, published: Any) -> bool:
    comparable = np.ndim(published) == 0 or np.shape(present) == np.shape(published)
    return comparable and np.allclose(present, published, rtol=SAME, atol=0.0)


def _error(relative: Float[np.ndarray, " step"]) -> dict[str, float]:
    size = np.abs(relative)
    return {
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(relative.mean()),
    }

"""One kind of kernel that is learned from tables: what a predictor offers, whatever it is inside.

A family is a module of this package with the functions below. `kernel` turns fitted arrays into a kernel of `sim.cost`
(`TokenKernel` or `LengthKernel`); `calibration` fits families and judges them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool

from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit found, apart from the code that reads it.

    - `arrays`: nested dict of numpy arrays (constants, network parameters, ranges): all that is stored.
    - `kernels`: names of the kernels the fit tells apart, in the order of their codes.
    - `facts`: what a reader of the artifact should know: rows, seed, errors by split and kernel.
    """

    family: str
    version: int
    arrays: Mapping[str, Any]
    kernels: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Predicted(NamedTuple):
    """Seconds of each row, the relative error expected of each, and 1 where it lies outside calibration."""

    seconds: Any
    rel_error: Any
    outside: Any


def none_of(reasons: Mapping[str, Bool[np.ndarray, " row"]], rows: int) -> Bool[np.ndarray, " row"]:
    """The rows that no reason names."""
    named = np.zeros(rows, bool)
    for some in reasons.values():
        named |= some
    return ~named


class Family(Protocol):
    """The module of one family."""

    NAME: str
    VERSION: int
    """Of features and forms; an artifact of another version is refused."""

    ONE_IN: int
    """Of so many shapes the split "shapes" holds one out."""

    def fit(self, table: OperatorTable, device: DeviceConf, seed: int, quick: bool) -> Fitted:
        """Fit physics and residual to all rows of `table`. `quick`: fewer steps, for tests."""

    def predict(self, fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
        """Price every row; rows of a kernel that the fit does not know take its nearest."""

    def splits(self, table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
        """Held-out rows by the name of the split; "shapes" is the one that shipped artifacts never see."""

    def unused(self, table: OperatorTable) -> Mapping[str, Bool[np.ndarray, " row"]]:
        """Rows that a fit does not use, by the reason, which goes on from "12 rows"; a row may have several."""

    def shapes(self, table: OperatorTable) -> int:
        """How many shapes there are of which the split "shapes" holds some out."""

    def kernel(self, fitted: Fitted, device: DeviceConf, engine: str) -> Any:
        """The kernel of `sim.cost` that prices a plan of `engine` on `device`."""

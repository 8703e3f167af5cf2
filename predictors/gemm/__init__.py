"""Matrix products learned from tables: a family as in `predictors.family`.

A kernel is what an engine runs for one type of numbers. The physics (`form`) has constants for each; what it leaves, an
ensemble of networks for each of many shapes. Kernels of few shapes, a model's layers, follow one of many by a scale and
keep a curve for each shape (`curves`).
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool

from predictors.family import Fitted, Predicted
from predictors.gemm.kernel import LearnedGemm, learned_gemm
from predictors.gemm.learn import NAME as NAME, VERSION as VERSION, fit as fit
from predictors.gemm.predict import predicted_rows
from predictors.gemm.rows import unused as unused, used
from predictors.splits import combinations, held_out
from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


WIDE, LONG = 12288.0, 8192.0
ONE_IN = 8


def predict(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """See `predictors.family.Family.predict`."""
    return predicted_rows(fitted, table, device)


def shapes(table: OperatorTable) -> int:
    """See `predictors.family.Family.shapes`: pairs of n and k."""
    return combinations(table.where(used(table)), "n", "k")


def splits(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """Held-out shapes (n, k), models, and products beyond: n from 12288, m from 8192."""
    rows = used(table)
    return {
        "shapes": rows & held_out(table, ("n", "k"), ONE_IN),
        "model": rows & (table["model"] != "") & held_out(table, ("model",), 3),
        "n_beyond": rows & (table["n"] >= WIDE),
        "m_beyond": rows & (table["m"] >= LONG),
    }


def kernel(fitted: Fitted, device: DeviceConf, engine: str) -> LearnedGemm:
    """See `predictors.family.Family.kernel`."""
    return learned_gemm(fitted, engine)

"""Routed experts as grouped products, learned from tables: a family as in `predictors.family`.

The loads of experts come from the routing law (`sampled` for tables, `loads` for plans), the physics from `form`, what
it leaves from a residual over all kernels and, for layouts that were profiled, from a curve over tokens (`series`).
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool

from predictors.family import Fitted, Predicted
from predictors.moe.kernel import LearnedMoe, learned_moe
from predictors.moe.learn import NAME as NAME, VERSION as VERSION, fit as fit, predicted_rows, rows_of
from predictors.moe.rows import MODEL, doubtful, unused as unused, used
from predictors.splits import combinations, held_out
from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


LARGE_TOKENS = 4096.0
ONE_IN = 8
LAYOUT = (*MODEL, "tp", "ep")


def predict(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """See `predictors.family.Family.predict`."""
    return predicted_rows(fitted, rows_of(table, device, fitted.kernels))


def shapes(table: OperatorTable) -> int:
    """See `predictors.family.Family.shapes`: layouts of models."""
    table = table.where(used(table))
    return combinations(table.where(~doubtful(table)), *LAYOUT)


def splits(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """Held-out layouts (tensor and expert parallelism of a model), token counts, parallel pairs, models, large batches.

    Only rows that a fit would use and that were not disturbed (`doubtful`) are judged.
    """
    judged = used(table)
    judged[judged] = ~doubtful(table.where(judged))
    return {
        "shapes": judged & held_out(table, LAYOUT, ONE_IN),
        "tokens": judged & held_out(table, ("tokens",), 8),
        "parallel": judged & held_out(table, ("tp", "ep"), 8),
        "model": judged & held_out(table, MODEL, 6),
        "top": judged & (table["tokens"] >= LARGE_TOKENS),
    }


def kernel(fitted: Fitted, device: DeviceConf, engine: str) -> LearnedMoe:
    """See `predictors.family.Family.kernel`."""
    return learned_moe(fitted, engine)

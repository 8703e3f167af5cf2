"""A fit is judged on rows it has not seen: all together, and by the kernel that their table names."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibration import operators
from predictors.family import Predicted
from predictors.table import LABELS, OperatorTable


def gathered(kernels):
    rows = len(kernels)
    labels = {name: np.array([""] * rows, object) for name in LABELS} | {"kernel": np.array(kernels, object)}
    sizes = np.arange(1.0, rows + 1.0)
    table = OperatorTable("gemm", "h100-sxm", dict.fromkeys("mnk", sizes), labels, np.ones(rows))
    return operators.Gathered(SimpleNamespace(), table, "nothing was set aside")


def test_rows_without_a_kernel_are_not_all_rows(monkeypatch):
    """Measured 1 s each; predicted 1.1 s where a kernel is named, 2 s where none is; the last row is not held out."""
    told = SimpleNamespace(
        splits=lambda table, device: {"shapes": table["m"] < 5.0, "none": table["m"] < 0.0},
        predict=lambda fitted, table, device: Predicted(
            np.where(table["kernel"] == "", 2.0, 1.1), np.zeros(len(table)), np.zeros(len(table))
        ),
    )
    monkeypatch.setattr(operators, "family", lambda name: told)
    data = gathered(["fa3", "", "fa3", "fa3", "fa3"])
    found = operators.judged("gemm", SimpleNamespace(), data)
    assert {kernel: errors.rows for kernel, errors in found.items()} == {"": 4, "fa3": 3, operators.NOT_NAMED: 1}
    assert found[""].median == pytest.approx(0.1) and found["fa3"].mean == pytest.approx(0.1)
    assert found[""].mean == pytest.approx((3 * 0.1 + 1.0) / 4)
    assert found[operators.NOT_NAMED].median == pytest.approx(1.0)
    assert operators.judged("gemm", SimpleNamespace(), data, "none") == {}

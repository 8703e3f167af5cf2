"""Small expert tables: one made of a known form, so that a fit can be told what it should find."""

import numpy as np
import pytest

from predictors.moe.form import START, moe_parts
from predictors.moe.learn import rows_of
from predictors.table import FAMILIES, LABELS, OperatorTable
from sim.hardware.read import load_device


DEFAULTS = {
    "tokens": 64.0,
    "experts": 128.0,
    "top_k": 8.0,
    "hidden": 2048.0,
    "inter": 768.0,
    "tp": 1.0,
    "ep": 1.0,
    "matrices": 3.0,
    "active": np.nan,
    "max_load": np.nan,
    "skew": 0.0,
}
TEXTS = {
    "engine": "vllm",
    "engine_version": "0.24.0",
    "kernel": "k",
    "dtype": "bf16",
    "op": "experts",
    "timing": "kernel",
}


def expert_table(seconds=None, **columns) -> OperatorTable:
    """Rows of one kernel with the given columns and labels, the others as in `DEFAULTS`."""
    rows = len(next(iter(columns.values())))
    labels = {name: np.array(columns.get(name, [TEXTS.get(name, "")] * rows), object) for name in LABELS}
    numbers = {name: np.asarray(columns.get(name, [DEFAULTS[name]] * rows), np.float64) for name in FAMILIES["moe"]}
    times = np.ones(rows) if seconds is None else np.asarray(seconds, np.float64)
    return OperatorTable("moe", "h100-sxm", numbers, labels, times)


@pytest.fixture(scope="session")
def h100():
    return load_device("h100-sxm")


@pytest.fixture(scope="session")
def known_table(h100):
    """Two kernels of three models on a grid of tokens and ranks, priced by the form; the second twice as slow."""  # noqa: E501
    grid = [
        (float(tokens), *model, 1.0, float(ep), skew, kernel)
        for tokens in (1, 4, 16, 64, 256, 1024, 4096)
        for model in ((128.0, 8.0, 2048.0, 768.0), (64.0, 6.0, 4096.0, 1408.0), (8.0, 2.0, 4096.0, 14336.0))
        for ep in (1, 4)
        for skew in (0.0, 1.2)
        for kernel in ("k", "slow")
    ]
    names = ("tokens", "experts", "top_k", "hidden", "inter", "tp", "ep", "skew", "kernel")
    table = expert_table(**{name: list(values) for name, values in zip(names, zip(*grid, strict=True), strict=True)})
    rows = rows_of(table, h100, ("vllm/0.24.0 bf16 k", "vllm/0.24.0 bf16 slow"))
    constants = {name: np.asarray(value, np.float64)[..., None] * np.ones(len(table)) for name, value in START.items()}
    seconds = moe_parts(constants | {"untuned": np.zeros(len(table))}, rows.work, rows.loads, rows.tokens).seconds
    return expert_table(np.asarray(seconds) * (1.0 + rows.code), **table.columns, kernel=table["kernel"].tolist())

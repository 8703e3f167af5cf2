"""Small attention tables: batches of one layout, priced by whoever makes them."""

import jax
import numpy as np
import pytest

from predictors.table import FAMILIES, LABELS, OperatorTable
from sim.hardware.read import load_device


DEFAULTS = dict.fromkeys(FAMILIES["attention"], 0.0) | {
    "q_heads": 32.0,
    "kv_heads": 8.0,
    "qk_dim": 128.0,
    "v_dim": 128.0,
    "kv_bytes_per_element": 2.0,
    "window": np.inf,
}


def attention_table(texts, seconds=None, **columns) -> OperatorTable:
    """Rows with the given columns and labels; the others as in `DEFAULTS` and `texts`."""
    rows = len(next(iter(columns.values())))
    labels = {name: np.array(columns.get(name, [texts.get(name, "")] * rows), object) for name in LABELS}
    numbers = {name: np.asarray(columns.get(name, [value] * rows), np.float64) for name, value in DEFAULTS.items()}
    times = np.ones(rows) if seconds is None else np.asarray(seconds, np.float64)
    return OperatorTable("attention", "h100-sxm", numbers, labels, times)


@pytest.fixture(scope="package", autouse=True)
def quick_compilation():
    """Most of the time of these tests is compilation."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def h100():
    return load_device("h100-sxm")

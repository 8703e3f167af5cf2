"""Small product tables made of a known form, so that a fit can be told what it should find."""

import jax
import numpy as np
import pytest

from predictors import gemm
from predictors.gemm.form import START, Product, gemm_parts
from predictors.gemm.rows import products_of
from predictors.table import FAMILIES, LABELS, OperatorTable
from sim.hardware.read import load_device


TEXTS = {"engine": "vllm", "engine_version": "0.24.0", "dtype": "bf16", "op": "gemm", "timing": "kernel"}
LAW = START | {"t0": 3e-6, "share": (0.5, 0.6, 0.7, 0.7, 0.7), "rate": 0.9}
SLOWER = 1.3
"""Products in a model, over those of the same form alone."""


def product_table(seconds=None, **columns) -> OperatorTable:
    """Rows with the given columns and labels, the others as in `TEXTS`."""
    rows = len(columns["m"])
    labels = {name: np.array(columns.get(name, [TEXTS.get(name, "")] * rows), object) for name in LABELS}
    numbers = {name: np.asarray(columns[name], np.float64) for name in FAMILIES["gemm"]}
    times = np.ones(rows) if seconds is None else np.asarray(seconds, np.float64)
    return OperatorTable("gemm", "h100-sxm", numbers, labels, times)


@pytest.fixture(scope="package", autouse=True)
def quick_compilation():
    """Most of the time of these tests is compilation."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def h100():
    return load_device("h100-sxm")


@pytest.fixture(scope="session")
def known_table(h100):
    """A kernel on 48 shapes, and one "in a model" on three: warm and cold seconds of `LAW`, the second slower."""
    wide = [(float(n), float(k), "") for n in range(512, 12800, 1536) for k in (512, 1024, 2048, 4096, 8192, 14336)]
    layers = [(6144.0, 4096.0, "m"), (4096.0, 4096.0, "m"), (4096.0, 14336.0, "m")]
    rows = [(float(m), *shape) for shape in wide + layers for m in (1, 8, 32, 96, 128, 256, 300, 1024, 4096)]
    m, n, k, model = (list(column) for column in zip(*rows, strict=True))
    table = product_table(m=m, n=n, k=k, model=model)
    with jax.enable_x64(True):
        constants = {name: np.asarray(value, np.float64)[..., None] for name, value in LAW.items()}
        found = jax.jit(gemm_parts)(constants, Product(*products_of(table, h100)), table["m"])
        seconds = np.where(table["model"] == "", found.warm_s, SLOWER * found.cold_s)
    return product_table(seconds, m=m, n=n, k=k, model=model)


@pytest.fixture(scope="session")
def seen(known_table, h100):
    """The table without the shapes that are held out."""
    return known_table.where(~gemm.splits(known_table, h100)["shapes"])


@pytest.fixture(scope="session")
def fitted(seen, h100):
    return gemm.fit(seen, h100, 0, True)


@pytest.fixture(scope="session")
def priced_rows(fitted, seen, h100):
    """Predictions of a table of fewer rows than were fitted, repeated up to as many: one compilation serves all."""

    def price(table):
        at = np.arange(len(seen)) % len(table)
        repeated = product_table(**{name: table[name][at] for name in (*table.columns, *table.labels)})
        return type(found := gemm.predict(fitted, repeated, h100))(*(leaf[: len(table)] for leaf in found))

    return price

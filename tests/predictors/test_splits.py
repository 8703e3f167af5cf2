"""Held-out shapes: whole ones, the same everywhere and for ever."""

import numpy as np
from hypothesis import given, strategies as st

from predictors.splits import _hash, held_out
from predictors.table import LABELS, OperatorTable


def table(m, n, k, model=None):
    rows = len(m)
    labels = {name: np.array([""] * rows, object) for name in LABELS}
    labels["model"] = np.array(model or [""] * rows, object)
    columns = {name: np.asarray(values, np.float64) for name, values in (("m", m), ("n", n), ("k", k))}
    return OperatorTable("gemm", "h100-sxm", columns, labels, np.ones(rows))


def test_the_hash_of_a_shape_never_changes():
    # BLAKE2b of 8 bytes, big-endian, of "n=4096,k=14336" and "model=llama".
    assert _hash(("n", "k"), (4096.0, 14336.0)) == 12975739813389773621
    assert _hash(("model",), ("llama",)) == 579688761771829810
    # numbers by twelve digits: what was computed in another way is the same shape
    assert _hash(("n",), (0.1 + 0.2,)) == _hash(("n",), (0.3,))


def test_literal_shapes_held_out():
    sizes = np.arange(1.0, 25.0)
    assert np.flatnonzero(held_out(table(sizes, sizes, sizes), ("n",))).tolist() == [7, 12, 18]


def test_about_one_in_so_many():
    sizes = np.arange(1.0, 4001.0)
    for one_in in (3, 8):
        assert abs(held_out(table(sizes, sizes, sizes), ("n", "k"), one_in).mean() * one_in - 1.0) < 0.15


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from("ab")), min_size=1, max_size=60))
def test_rows_of_one_shape_are_on_one_side(rows):
    n, k, model = zip(*rows, strict=True)
    found = held_out(table(np.arange(len(n)), n, k, list(model)), ("n", "k", "model"), 2)
    sides = {}
    for row, out in zip(rows, found.tolist(), strict=True):
        assert sides.setdefault(row, out) == out
    # The order of rows, and the others beside them, do not matter.
    again = held_out(table(np.arange(len(n)), n[::-1], k[::-1], list(model[::-1])), ("n", "k", "model"), 2)
    assert again.tolist() == found.tolist()[::-1]

"""Fitting products: a known law, the same every time, and rows that a fit leaves out or marks."""

import numpy as np
import pytest

from predictors import gemm
from predictors.gemm.relations import chosen
from predictors.gemm.rows import kernel_names, nearest, used
from predictors.variants import expected_error, version_key
from sim.deployment.formats import FORMATS
from tests.predictors.gemm.conftest import SLOWER, product_table


def test_a_fit_finds_a_known_law_on_shapes_it_has_not_seen(priced_rows, known_table, h100):
    unseen = known_table.where(gemm.splits(known_table, h100)["shapes"])
    found = priced_rows(unseen)
    error = np.abs(found.seconds / unseen.seconds - 1.0)
    assert len(unseen) == 36
    assert np.median(error) < 0.05 and np.quantile(error, 0.9) < 0.15
    assert (np.asarray(found.rel_error) > 0.0).all()


def test_a_kernel_of_few_shapes_follows_one_of_many(fitted, priced_rows, known_table):
    assert fitted.facts["follows"] == {"vllm/0.24.0 bf16 in a model": "vllm/0.24.0 bf16"}
    assert fitted.facts["scale"]["vllm/0.24.0 bf16 in a model"] == pytest.approx(SLOWER, rel=0.05)
    layers = known_table.where(known_table["model"] == "m")
    error = np.abs(priced_rows(layers).seconds / layers.seconds - 1.0)
    assert np.median(error) < 0.05


def test_beyond_what_was_measured_is_marked_and_claims_twice_the_error(fitted, priced_rows):
    found = priced_rows(product_table(m=[128.0, 65536.0], n=[2048.0, 2048.0], k=[4096.0, 4096.0]))
    assert np.asarray(found.outside).tolist() == [0.0, 1.0]
    assert expected_error(0.04, 0.03, 1.0) == 2 * expected_error(0.04, 0.03, 0.0) == pytest.approx(2 * 0.0601)
    assert found.rel_error[1] >= 2 * np.asarray(fitted.arrays["error"])[0]


def test_what_a_fit_leaves_out(h100):
    table = product_table(
        m=[1.0] * 4,
        n=[64.0] * 4,
        k=[64.0] * 4,
        dtype=["bf16", "strange", "fp8", "bf16"],
        op=["gemm", "gemm", "qkv_norm_proj", "gemm"],
        engine=["vllm", "vllm", "vllm", ""],
        source=["a table"] * 4,
        model=["m"] * 4,
        timing=["kernel", "kernel", "kernel", "launch"],
    )
    assert used(table).tolist() == [True, False, False, True]
    names = kernel_names(table)
    assert (names[0], names[3]) == ("vllm/0.24.0 bf16 in a model", "a-table bf16 launched")
    # fp8 in a model: the same format first, then the engine's
    assert nearest("vllm/0.24.0 fp8", ("vllm/0.24.0 bf16", "x fp8 launched", "y fp8")) == 2
    with pytest.raises(ValueError, match="hold no product of a known type"):
        gemm.fit(table.where(table["dtype"] == "strange"), h100, 0, True)


def test_which_kernel_an_engine_runs(fitted):
    choice, measured = chosen(fitted, "vllm/0.24.0")
    bf16, fp8 = FORMATS.index("bf16"), FORMATS.index("fp8")
    assert fitted.kernels[choice[bf16]] == "vllm/0.24.0 bf16 in a model"
    assert (measured[bf16], measured[fp8]) == (1.0, 0.0)
    assert version_key("0.24.0") > version_key("0.9.1") and version_key("1.3.0rc20") == (1, 3, 0, 20)


def test_splits_hold_out_whole_shapes(known_table, h100):
    found = gemm.splits(known_table, h100)
    shapes = list(zip(known_table["n"].tolist(), known_table["k"].tolist(), strict=True))
    held = {shape for shape, out in zip(shapes, found["shapes"], strict=True) if out}
    assert held and not held & {shape for shape, out in zip(shapes, found["shapes"], strict=True) if not out}
    assert not found["m_beyond"].any() and not found["n_beyond"].any()

"""The analytic model on rows of operator tables: within the roofline's bounds, and marked as nobody's measurement."""

import numpy as np
import pytest

from calibration.analytic_rows import analytic_rows
from sim.hardware.read import load_device
from tests.predictors.attention.conftest import attention_table
from tests.predictors.gemm.conftest import product_table
from tests.predictors.moe.conftest import expert_table


@pytest.fixture(scope="module")
def h100():
    return load_device("h100-sxm")


def test_products(h100):
    table = product_table(m=[1.0, 64.0, 4096.0], n=[4096.0] * 3, k=[4096.0] * 3)
    found = analytic_rows("gemm", table, h100)
    moved = 2.0 * (4096.0**2 + table["m"] * 8192.0) / h100.memory_bytes_per_s
    computed = 2.0 * table["m"] * 4096.0**2 / h100.peak_flops_per_s["bf16"]
    least_s = np.maximum(moved, computed)
    assert (found.seconds > least_s).all() and (found.seconds < 4.0 * least_s + 20e-6).all()
    assert (found.outside == 1.0).all() and (found.rel_error > 0.0).all()


def test_experts(h100):
    found = analytic_rows("moe", expert_table(tokens=[1.0, 64.0, 4096.0]), h100)
    assert (np.diff(found.seconds) > 0.0).all() and found.seconds[0] > 0.0


@pytest.mark.parametrize("family", ["decode", "mixed"])
def test_attention(h100, family):
    prefill = {"prefill_tokens": [64.0], "prefill_chunks": [1.0], "prefill_area": [64.0 * 65 / 2]}
    prefill |= {"prefill_kv_tokens": [64.0], "prefill_max_tokens": [64.0]}
    decode = {"decodes": [8.0], "decode_sum": [8000.0], "decode_max": [1000.0], "decode_sumsq": [8e6]}
    texts = {"engine": "vllm", "dtype": "bf16", "op": "decode" if family == "decode" else "prefill", "timing": "kernel"}
    found = analytic_rows(family, attention_table(texts, **(decode if family == "decode" else prefill)), h100)
    assert found is not None and 0.0 < float(found.seconds[0]) < 1e-3

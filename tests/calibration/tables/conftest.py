import numpy as np
import pytest

from calibration.tables.rows import equal_lengths, table


GEMM_LABELS = {"source": "mine", "engine": "vllm", "kernel": "k", "dtype": "bf16", "op": "linear"}


@pytest.fixture
def gemm():
    """Makes a GEMM table on an H100 from (m, n, k) rows and their seconds."""

    def make(shapes, seconds, device="h100-sxm", **labels):
        m, n, k = np.array(shapes, float).T
        return table("gemm", device, seconds, {"m": m, "n": n, "k": k}, GEMM_LABELS | labels)

    return make


@pytest.fixture
def decode():
    """Makes a table of decode attention on an H100, 32 / 8 heads of 128, from (rows, context) and their seconds."""

    def make(batches, seconds, device="h100-sxm", **labels):
        n, length = np.array(batches, float).T
        heads = {"q_heads": 32.0, "kv_heads": 8.0, "qk_dim": 128.0, "v_dim": 128.0, "kv_bytes_per_element": 2.0}
        columns = equal_lengths(decodes=n, context=length) | heads | {"window": np.inf, "warm": 1.0}
        known = GEMM_LABELS | {"op": "decode"} | labels
        return table("attention", device, seconds, columns, known)

    return make

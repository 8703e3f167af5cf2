"""Lengths of a batch as sums, by hand and against a list of requests."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from calibration.tables.rows import batch_lengths, check_columns, device_of, dtypes, equal_lengths, table
from predictors.table import LENGTH_COLUMNS


def test_two_chunks_of_three_on_ten_by_hand():
    # each chunk: 3 x 10 prior pairs and 1 + 2 + 3 own ones; keys 13; decodes 4 x 7, 4 x 49
    lengths = equal_lengths(2.0, 3.0, 10.0, 4.0, 7.0)
    assert {name: float(value) for name, value in lengths.items()} == {
        "prefill_tokens": 6,
        "prefill_chunks": 2,
        "prefill_area": 72,
        "prefill_kv_tokens": 26,
        "prefill_max_tokens": 13,
        "decodes": 4,
        "decode_sum": 28,
        "decode_max": 7,
        "decode_sumsq": 196,
    }


def test_batches_of_one_kind_have_no_maxima_of_the_other():
    assert equal_lengths(decodes=np.array([2.0]), context=np.array([5.0]))["prefill_max_tokens"] == 0
    assert equal_lengths(np.array([1.0]), 4.0, 0.0, 0.0, 9.0)["decode_max"] == 0


lengths = st.integers(1, 4096)


@given(st.integers(0, 5), lengths, st.integers(0, 4096), st.integers(0, 5), lengths)
def test_equal_lengths_are_those_of_a_list_of_equal_requests(chunks, chunk, prior, decodes, context):
    one_by_one = batch_lengths([(chunk, prior)] * chunks, [context] * decodes)
    together = equal_lengths(float(chunks), float(chunk), float(prior), float(decodes), float(context))
    assert {name: float(together[name]) for name in LENGTH_COLUMNS} == {n: float(one_by_one[n]) for n in LENGTH_COLUMNS}


def test_dtypes_have_one_name_each():
    found = dtypes(np.array(["bfloat16", "half", "FP8", "fp8_block", "sq"], object))
    assert found.tolist() == ["bf16", "fp16", "fp8", "fp8_block", "int8"]


def test_a_label_stands_for_all_rows_and_others_are_empty():
    found = table("gemm", "h100-sxm", [1.0, 2.0], {"m": [1, 2], "n": 3, "k": 4}, {"op": "linear"})
    assert found["n"].tolist() == [3.0, 3.0]
    assert found["op"].tolist() == ["linear", "linear"] and found["model"].tolist() == ["", ""]
    assert len(found.where(found["m"] == 2.0)) == 1


def test_columns_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="needs the column 'latency'.*near: 'latency_ms'"):
        check_columns(["m", "latency_ms"], ["m", "latency"], [], Path("t.csv"))
    with pytest.raises(ValueError, match="the column 'kernal' is unknown; the nearest known is 'kernel': rename"):
        check_columns(["m", "kernal"], ["m"], ["kernel", "op"], Path("t.csv"))


def test_hardware_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="the hardware 'h100x' is unknown; the nearest known is 'h100'"):
        device_of("h100x", {"a100": "a", "h100": "h"}, Path("t.csv"))

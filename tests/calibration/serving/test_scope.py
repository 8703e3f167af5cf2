"""Which rows count: by what the row says, and one reason each."""

import math

import pytest
from hypothesis import given, strategies as st

from calibration.serving import scope
from calibration.serving.scope import admission_limited, balanced, chosen, excluded, sampled
from calibration.serving.table import read_table


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({}, ""),
        ({"dup": "1"}, "duplicate"),
        ({"disagg": "1.0", "dup": "1"}, "disaggregated"),
        ({"notes": "STATIC offline batch"}, "static batch"),
        ({"notes": "first-token latency static batch"}, "static batch"),
        ({"tpot_ms_mean": ""}, "no latency"),
        ({"notes": "date=2026-03-02; spec=mtp"}, "speculative decoding"),
        ({"engine": "atom"}, "another engine"),
        ({"tp": "16"}, ""),
        ({"tp": "36"}, "devices told as one tensor-parallel size"),
        ({"ttft_ms_mean": "20000"}, "admission-limited"),
    ],
)
def test_reasons(row, cells, reason):
    assert excluded(row(**cells)) == reason


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({}, "disaggregated, pools known"),
        ({"engine": "sglang(dynamo)"}, "disaggregated, pools known"),
        ({"engine": "trtllm"}, "disaggregated, pools known"),
        ({"engine": "atom"}, "disaggregated"),
        ({"notes": "spec=mtp; P: 1x(tp4,dp1,moe_tp1,ep4); D: 4x(tp4,dp1,moe_tp1,ep4)"}, "disaggregated"),
        ({"dup": "1"}, "disaggregated"),
        ({"tpot_ms_mean": ""}, "disaggregated"),
        ({"concurrency_or_qps": ""}, "disaggregated"),
        ({"notes": "P: 0x(tp4); D: 4x(tp4)"}, "disaggregated"),
        ({"disagg": "0.0"}, ""),
    ],
)
def test_disaggregated_rows_that_tell_their_pools(row, cells, reason):
    pools = {"disagg": "1.0", "notes": "spec=none; P: 1x(tp4,dp1,moe_tp1,ep4); D: 4x(tp8,dp1,moe_tp8,ep1)"}
    assert excluded(row(**(pools | cells))) == reason


def test_the_bound_of_admission(row):
    # 5 clients, D = 10 x 100 ms: TTFT may be 1,000 x 6/4 = 1,500 ms; one client never waits for another
    cells = {"concurrency_or_qps": "5", "osl": "101", "tpot_ms_mean": "10"}
    assert not admission_limited(row(**cells, ttft_ms_mean="1500"))
    assert admission_limited(row(**cells, ttft_ms_mean="1500.1"))
    assert not admission_limited(row(**(cells | {"concurrency_or_qps": "1"}), ttft_ms_mean="1e6"))


@given(
    prompts=st.lists(st.floats(0.01, 10), min_size=2, max_size=12),
    step=st.floats(1e-4, 0.1),
    tokens=st.integers(2, 200),
)
def test_nobody_who_is_admitted_at_once_is_beyond_the_bound(prompts, step, tokens):
    """A burst served as the bound's derivation says it: prompts in order first, each decoder waits for those behind."""
    c = len(prompts)
    ends = [sum(prompts[: i + 1]) for i in range(c)]
    # worst of all, prompts go before decodes: whoever has a first token stalls until the last prompt is done
    decode = [ends[-1] - end + step * (tokens - 1) for end in ends]
    mean_prompt = sum(prompts) / c
    # the bound is for equal prompts; the excess of unequal ones is how far their order is from even
    uneven = sum(ends) / c - mean_prompt * (c + 1) / 2
    ttft, d = sum(ends) / c - uneven, sum(decode) / c + uneven
    assert ttft * (c - 1) <= d * (c + 1) * (1 + 1e-9)
    assert math.isfinite(ttft)


def test_a_subset_is_chosen_by_what_was_measured_and_not_by_its_result(write):
    clients = [str(c) for c in range(1, 21)]
    rows = read_table(write(*({"concurrency_or_qps": c} for c in clients)))
    slower = read_table(write(*({"concurrency_or_qps": c, "ttft_ms_mean": "999"} for c in clients)))
    first = chosen(rows, 5)
    assert [r.line for r in first] == [r.line for r in chosen(slower, 5)] == sorted(r.line for r in first)
    assert {r.line for r in first} < {r.line for r in chosen(rows, 6)}
    assert chosen(rows, None) == chosen(rows, 100) == rows


def test_a_balanced_subset_has_as_many_of_each_engine(write):
    engines = ["vllm"] * 6 + ["sglang", "sglang(dynamo)", "trtllm"]
    rows = read_table(write(*({"engine": engine, "isl": str(100 + i)} for i, engine in enumerate(engines))))
    assert [row.serves for row in balanced(rows, 6)].count("vllm") == 3
    assert sorted(row.serves for row in balanced(rows, 3)) == ["sglang", "trtllm", "vllm"]
    assert balanced(rows, None) == rows


def test_a_few_loads_of_each_deployment_stand_for_all(write, monkeypatch):
    loads = [
        ("1024", "1024", "8", "1", "2026-01-05"),
        ("1024", "1024", "8", "1", "2026-02-05"),  # the same load, newer
        ("1024", "8192", "8", "1", "2026-01-05"),
        ("8192", "4096", "8", "1", "2026-01-05"),  # a second long answer
        ("8192", "1024", "8", "1", "2026-01-05"),
        ("1024", "1024", "4", "1", "2026-01-05"),
        ("1024", "1024", "4", "2", "2026-01-05"),  # ranks that wait for each other
    ]
    cells = [{"isl": isl, "osl": osl, "tp": tp, "dp": dp, "notes": f"date={day}"} for isl, osl, tp, dp, day in loads]
    rows = read_table(write(*cells))
    first = rows[0].line
    found = {row.line - first: weight for row, weight in sampled(rows, 4)}
    assert set(found) - {2, 3} == {1, 4, 5} and len(found) == 4
    assert found[1] == pytest.approx(5 / 3) and found[5] == 1.0
    # One load of each, where that gives rows enough: the newest.
    monkeypatch.setattr(scope, "LEAST_LOADS", 2)
    assert [row.line - first for row, _ in sampled(rows, 1)] == [1, 5]

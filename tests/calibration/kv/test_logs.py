"""Against the start-up logs of real servers (public threads): both files, from first principles and term by term."""

from statistics import median

import pytest

from calibration.kv.case import DIED, REFUSED, read_cases
from calibration.kv.predict import predict
from calibration.kv.score import scores
from calibration.kv.setup import settings_said
from sim.memory.groups import RequestShape
from sim.units import GIB


FILES = ("cases.csv", "vllm_kv_blocks.csv")


@pytest.fixture(scope="module")
def logs(shared):
    """File -> its predictions."""
    found = {}
    for name in FILES:
        cases = read_cases(shared / "data/cases" / name)
        said = settings_said(cases)
        found[name] = [predict(case, said.get(case.source, {})) for case in cases]
    return found


@pytest.fixture(scope="module")
def newest(logs):
    """The logs of vLLM 0.19.0, by id."""
    rows = [row for row in logs["cases.csv"] if row.case.counts and row.case.engine == "vllm"]
    return {row.case.name: row for row in rows if row.version == "0.19.0"}


def test_all_cases_of_both_files(logs):
    found = scores([row for rows in logs.values() for row in rows])
    assert found["cases"] == 89 and found["failed"] <= 3
    assert found["median_error"] < 0.002
    assert found["p90_error"] < 0.05
    assert abs(found["bias"]) < 0.001
    assert found["refusals_right"] > 0.95
    assert found["starts"]["failed_starts_right"] == found["starts"]["failed_starts"] == 10


def test_the_breakdown_known(logs):
    given = scores(logs["cases.csv"])["given_breakdown"]
    assert given["cases"] >= 60
    # one log prints the memory of one rank and the tokens of another, one is of a cache format with parts unknown
    assert given["within_one_block"] > 0.95
    assert given["median_error"] < 0.0002


def test_first_principles_on_0_19(newest):
    errors = [abs(row.error) for row in newest.values()]
    assert len(errors) >= 45
    assert median(errors) < 0.0005
    assert max(errors) < 0.006


def test_first_principles_on_other_versions(logs):
    by_name = {row.case.name: row for rows in logs.values() for row in rows}
    # four versions of one model: the constants are the versions', not the model's
    assert max(abs(by_name[name].error) for name in ("KV062", "KV063", "KV064", "KV065")) < 0.0005
    # 0.4.1 counts what the framework has reserved: three constants, six models
    assert max(abs(by_name[f"KV{number:03}"].error) for number in range(88, 94)) < 0.003
    # 0.6.4, where the longest prompt is one batch; 0.28.0, whose second runner counts no graphs
    assert max(abs(by_name[name].error) for name in ("KV083", "KV084")) < 0.01
    assert max(abs(by_name[name].error) for name in ("KV077", "KV079")) < 0.03
    # servers that print what is left, and no blocks
    for name in ("KV066", "KV068", "KV069", "KV070", "KV072", "KV073"):
        row = by_name[name]
        assert row.budget.available_bytes / GIB == pytest.approx(row.case.reported["available_kv"].value, abs=0.05), (
            name
        )


def test_terms_of_the_logs(newest):
    """Each term against the log's, in GiB: weights and activation are rules, not fits to a model."""
    for metric, bound in (("weights", 0.30), ("peak_activation", 0.12), ("non_torch", 0.25)):
        gaps = [
            abs(row.budget.stage.value(metric) / GIB - row.case.reported[metric].value)
            for row in newest.values()
            if metric in row.case.reported
        ]
        assert median(gaps) < 0.01, metric
        assert max(gaps) < bound, metric


def test_tokens_follow_from_the_printed_memory(newest):
    """The log prints GiB to 0.01: its tokens must lie between those of +-0.005 GiB, one block more or less."""
    checked = 0
    for name, row in newest.items():
        reported, budget = row.case.reported, row.budget
        printed = reported.get("available_kv_worst_rank_derived", reported.get("available_kv"))
        if printed is None or "kv_tokens" not in reported:
            continue
        layout, tokens = budget.layout, reported["kv_tokens"].value
        # 8,192 tokens a batch and two batches in flight, as an H100 server has them
        shape = RequestShape(budget.max_model_len, 8192, 2, 1)
        low, high = (layout.num_blocks((printed.value + half) * GIB) for half in (-0.005, 0.005))
        assert layout.tokens(low - 1, shape) <= tokens <= layout.tokens(high + 1, shape), name
        if "num_gpu_blocks" in reported:
            blocks = int(reported["num_gpu_blocks"].value)
            assert abs(layout.tokens(blocks, shape) - tokens) <= 16, name
            assert layout.concurrency(blocks, shape) == pytest.approx(reported["max_concurrency"].value, abs=0.0051), (
                name
            )
        checked += 1
    assert checked >= 45


def test_who_runs_out_of_memory_after_sizing(newest):
    """Of the logs at 0.95, two of gpt-oss-20b died after sizing; at 0.90 it started, and so did all others."""
    assert {name for name, row in newest.items() if row.outcome == DIED} == {"KV040", "KV041"}


def test_what_was_refused_is_refused(logs):
    by_name = {row.case.name: row for row in logs["cases.csv"]}
    short = by_name["KV075"]
    assert short.outcome == REFUSED and short.budget.available_bytes / GIB == pytest.approx(-1.44, abs=0.08)
    assert short.budget.smallest_tensor_parallel == 2
    long = by_name["KV076"]
    assert long.outcome == REFUSED and 16000 < long.budget.longest_model_len < 32000
    # a vocabulary that five ranks do not divide, a length above the model's, a busy device
    assert all(by_name[name].outcome == REFUSED for name in ("OT054", "OT055", "OT056"))

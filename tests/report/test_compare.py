"""Errors of a prediction against a recorded run."""

import dataclasses
import json

import numpy as np
import pytest

from sim.report.compare import compare, comparison_json, comparison_text
from sim.report.measured import Recorded, joined, read_recorded
from sim.report.metrics import latencies


def test_a_run_against_itself_has_no_error(result):
    found = compare(Recorded(joined(result.requests)), result, warmup_requests=5)
    for row in found.rows:
        if row.metric == "gen_throughput":
            # Recorded answers are spread evenly between first and last token, predicted ones are counted by step.
            assert row.error < 0.1
        elif row.error is not None:
            assert row.error == 0, row
    assert "median absolute error of TTFT is 0.0 ms" in found.notes[1]


def test_errors_of_the_three_requests_by_hand(three):
    base = three()
    # Each token comes 100 ms later in the prediction: TTFT mean 850 / 3 -> 1150 / 3, E2EL 1550 / 3 -> 1850 / 3.
    later = {name: getattr(base.requests, name) + 100_000_000 for name in ("first_token_ns", "finish_ns")}
    requests = dataclasses.replace(base.requests, **later)
    found = compare(Recorded(base.requests), dataclasses.replace(base, requests=requests), warmup_requests=0)
    assert found.error("ttft") == pytest.approx(1150 / 850 - 1)
    assert found.error("e2el") == pytest.approx(1850 / 1550 - 1)
    assert found.error("ttft_queued") == pytest.approx(1000 / 700 - 1)
    assert found.error("tpot") == 0
    # Not queued: requests 0 and 1, TTFT mean 175 -> 275.
    assert found.error("ttft_not_queued") == pytest.approx(275 / 175 - 1)
    assert found.error("output_throughput") == pytest.approx(1 / 1.1 - 1)
    assert found.error("duration") == pytest.approx(0.1)
    with pytest.raises(ValueError, match="wanted a row ttft/p42"):
        found.error("ttft", "p42")


def test_what_every_request_spends_before_the_engine_is_no_error(three):
    # The same run with a client 5 ms further from the engine: a recording could not tell the two apart.
    base = three()
    requests = dataclasses.replace(base.requests, arrival_ns=base.requests.arrival_ns - 5_000_000)
    found = compare(Recorded(base.requests), dataclasses.replace(base, requests=requests), warmup_requests=0)
    assert {row.error for row in found.rows if row.statistic != "nmae"} <= {0.0, None}
    # Of one request alone it could: its TTFT is 5 ms longer, the mean of three 5/3 ms.
    one = np.array(base.requests.arrival_ns)
    one[1] -= 5_000_000
    requests = dataclasses.replace(base.requests, arrival_ns=one)
    found = compare(Recorded(base.requests), dataclasses.replace(base, requests=requests), warmup_requests=0)
    assert found.error("ttft") == pytest.approx(855 / 850 - 1)


def test_the_warmup_is_dropped_only_from_not_queued(three):
    found = compare(Recorded(three().requests), three(), warmup_requests=25)
    assert found.error("ttft") == 0
    assert found.error("ttft_not_queued") is None
    assert "(0 measured, 0 predicted), the first 25 dropped" in found.notes[0]


def test_series_error_is_the_mean_gap_over_the_mean(three):
    # Recorded: 2 requests running at 1 s and 2 s; predicted: the run is over at 1 s, 0 running at both.
    series = {
        "t_s": np.array([1.0, 2.0]),
        "running": np.array([2.0, 2.0]),
        "waiting": np.zeros(2),
        "gen_throughput": np.array([6.0, 6.0]),
    }
    base = three()
    slow = dataclasses.replace(base.requests, finish_ns=base.requests.finish_ns + 1_000_000_000)
    found = compare(Recorded(slow, series), base)
    assert found.error("running", "nmae") == pytest.approx(1)
    assert found.error("waiting", "nmae") is None
    # All 9 tokens are predicted by 1 s (the last step ends there), 6 then 6 recorded: (3 + 6) / 12.
    assert found.error("gen_throughput", "nmae") == pytest.approx(9 / 12)


def test_another_workload_is_noted(three):
    base = three()
    other = dataclasses.replace(base.requests, prompt_tokens=base.requests.prompt_tokens + 1)
    assert "do not serve the same prompts" in compare(Recorded(other), base).notes[-1]


def test_text_and_json(three):
    found = compare(Recorded(three().requests), three(), warmup_requests=0)
    text = comparison_text(found)
    assert "ttft                    mean          283.33      283.33  ms         +0.0 %" in text
    fields = comparison_json(found)
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert fields["rows"][0] == {
        "metric": "ttft",
        "statistic": "mean",
        "unit": "ms",
        "measured": pytest.approx(850 / 3),
        "predicted": pytest.approx(850 / 3),
        "error": 0.0,
    }


LINE = {
    "request_id": "a",
    "input_toks": 10,
    "output_toks": 3,
    "arrival_time": 1700000000.0,
    "queued_ts": 50.0,
    "scheduled_ts": 50.0,
    "first_token_ts": 50.1,
    "last_token_ts": 50.3,
}


def write(folder, *lines):
    folder.mkdir(exist_ok=True)
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_clocks_are_joined_at_the_quickest_pick_up(tmp_path):
    late = LINE | {
        "arrival_time": 1700000001.0,
        "queued_ts": 51.25,
        "scheduled_ts": 51.5,
        "first_token_ts": 52,
        "last_token_ts": 53,
    }
    found = read_recorded(write(tmp_path / "vllm", late, LINE).parent)
    assert found.requests.arrival_ns.tolist() == [0, 1_000_000_000]
    assert found.requests.queued_ns.tolist() == [0, 1_250_000_000]
    assert latencies(found.requests).ttft_s == pytest.approx([0.1, 1.0])
    assert found.series is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no request"),
        ([{"input_toks": 1}], "line 1 wants a JSON object with input_toks, .* as numbers, got no "),
        ([LINE | {"queued_ts": None}], "line 1 wants .* got None for queued_ts"),
        ([LINE | {"input_toks": 30.5}], "whole numbers from 1 to 16,777,216"),
        ([LINE | {"output_toks": 0}], "whole numbers from 1"),
        ([LINE | {"output_toks": -3}], "whole numbers from 1"),
        ([LINE | {"output_toks": 10**8}], "whole numbers from 1"),
        ([LINE | {"output_toks": 10**400}], "as numbers, got 10000.* for output_toks"),
        ([LINE | {"output_toks": True}], "as numbers, got True for output_toks"),
        ([LINE | {"output_toks": "5"}], "as numbers, got '5' for output_toks"),
        ([LINE | {"last_token_ts": 1e18}], r"all times within 1e\+07 s of the first"),
        ([[1]], "line 1: must hold a mapping of keys, got list"),
        ([5], "line 1: must hold a mapping of keys, got int"),
        ([LINE | {"first_token_ts": 49.0}], "queued <= scheduled <= first token <= last token"),
        ([LINE | {"last_token_ts": float("nan")}], "finite times"),
    ],
)
def test_broken_recordings_are_refused(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        read_recorded(write(tmp_path, *lines))


def test_broken_series_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="requests.jsonl, found none"):
        read_recorded(tmp_path)
    write(tmp_path, LINE)
    (tmp_path / "timeseries.csv").write_text("t,running\n1.0,2\n")
    with pytest.raises(ValueError, match="wants the columns t, running, waiting, gen_throughput"):
        read_recorded(tmp_path)


@pytest.mark.parametrize(
    ("name", "queued_ms", "tpot_ms", "arrival_mean_ms", "not_queued"),
    [
        # Mean and P99 of TTFT and TPOT as the recording's own summary prints them; the mean from arrival and the
        # number of requests that were not queued as found by hand in the recorded times.
        ("Llama-3.1-8B", (7097.2, 19755.3), (32.5, 37.3), 7120, 101),
        ("Qwen3-30B-A3B-Instruct-2507", (1086.0, 9587.9), (47.3, 53.3), 1113, 231),
    ],
)
def test_definitions_agree_with_a_recorded_runs_own_summary(
    shared, name, queued_ms, tpot_ms, arrival_mean_ms, not_queued
):
    recorded = read_recorded(shared / "data" / "llmservingsim" / "bench" / "RTXPRO6000" / name)
    found = latencies(recorded.requests)
    for seconds, expected in ((found.ttft_queued_s, queued_ms), (found.tpot_s, tpot_ms)):
        assert [1e3 * seconds.mean(), 1e3 * np.percentile(seconds, 99)] == pytest.approx(expected, abs=0.06)
    assert 1e3 * found.ttft_s.mean() == pytest.approx(arrival_mean_ms, abs=0.5)
    assert (found.not_queued & (found.request >= 25)).sum() == not_queued
    assert recorded.series["running"].max() <= 256
    assert recorded.requests.output_tokens.sum() == pytest.approx(recorded.series["gen_throughput"].sum(), rel=0.01)

"""`headway calibrate --from TABLE.csv`: what a table teaches is printed, written, and taken up again."""

import numpy as np
import pytest

from calibration.serving.responses import SUBMITTED, Response
from calibration.serving.table import read_table
from calibration.serving.taught import Taught
from predictors import served
from scripts import calibrate_served, served_responses
from tests.scripts.test_validate_serving import points as points


DEVICE = "NVIDIA H100 SXM 80GB"


PARTS = dict.fromkeys(("products", "prefill_attention", "decode_attention", "experts", "elementwise", "links"), 1e-3)
EAGER = tuple((1e-3 * (factor - 1.0), 0.0) for factor in SUBMITTED)
ONE = Response("vllm", DEVICE, False, 0.05, 0.01, 1.5e-3, PARTS | {"request_s": 1.0}, PARTS | {"request_s": 0.0}, EAGER)


@pytest.fixture
def responses(monkeypatch):
    """Simulations by formula: TTFT 50 ms and TPOT 10 ms, whatever the load; rows of 7 clients have no price."""
    asked = []

    def fake(rows, predictor, jobs, shown, kept, sha256):
        asked.append((len(rows), predictor, jobs))
        return {row.line: "does not fit" if row.concurrency == 7 else ONE for row in rows}

    monkeypatch.setattr(calibrate_served, "responses_of", fake)
    return asked


def test_a_table_teaches(headway, points, responses, tmp_path):
    path = points(*({"tp": tp, "concurrency_or_qps": str(c)} for tp in ("1", "2", "4") for c in (2, 4, 7, 8)))
    found = headway("calibrate", "--from", str(path), "out=mine/served.json", "jobs=3", "--json").json()
    assert (found["rows"], found["failed"], responses) == (12, 3, [(12, "kernels", 3)])
    [fit] = found["fits"]
    # measured TTFT is 100 ms: what is missing is the server's, as far as the prior lets it
    assert 0.04 < fit["values"]["request_s"] < 0.05 and set(fit["values"]) == {"request_s"}
    assert fit["before"]["ttft"] == pytest.approx(0.5) and fit["after"]["ttft"] < 0.1
    assert served.load(tmp_path / "mine/served.json")["fits"] == found["fits"]
    shown = headway("calibrate", "--from", str(path), "out=mine/served.json").out
    assert DEVICE in shown and "3 of 12 rows had no price" in shown and "predictor=mine/served.json" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("until=yesterday",), "until must be a day as 2026-04-01, got 'yesterday'"),
        (("until=2020-01-01",), "has no row to learn from: 1 dated from 2020-01-01 on."),
        (("limit=3",), "has no key limit"),
        ((), f"teaches nothing: vllm on {DEVICE}: too few rows with a price (1, 8 are wanted) (--from a benchmark"),
        (("predictor=auto",), "predictor=auto holds what servers taught already"),
        (("predictor=nonsense",), "predictor must be kernels, analytic or a folder"),
        (("out=here",), "out must be the name of a .json file, which predictor= then takes, got here"),
        (("out=a.json", "out=b.json"), "--from wants out= once, got a.json, b.json"),
        (("responses=none/r.json",), "responses=none/r.json wants the name of a file in a folder that exists"),
        (("responses=run-fit.json",), "must be different files"),
        (("--engine", "vllm-0.19.0"), "--from TABLE.csv takes no --engine"),
        (("loads=²",), "loads must be a whole number of at least 1, got ²"),
    ],
)
def test_what_it_refuses(headway, points, responses, words, message):
    path = points({"notes": "NVIDIA-internal measurement; date=2026-01-02"})
    found = headway("calibrate", "--from", str(path), *words)
    assert found.code == 2 and message in found.err and found.err.count("\n") == 1


def rows_of(**more):
    return [{"tp": tp, "concurrency_or_qps": str(c)} | more for tp in ("1", "2", "4") for c in (2, 4, 8)]


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        # simulated are 50 and 10 ms whatever the load, and request_s moves TTFT alone
        ({"ttft_ms_mean": "100", "tpot_ms_mean": "40"}, "TPOT stays 75% off, at most 25% is allowed"),
        (
            {"ttft_ms_mean": "50", "tpot_ms_mean": "10"},
            "nothing gets better: TTFT 0.0% off before, 0.0% after, TPOT 0.0% off before, 0.0% after",
        ),
    ],
)
def test_the_reason_that_applies_is_named(headway, points, responses, tmp_path, measured, reason):
    found = headway("calibrate", "--from", str(points(*rows_of(**measured))), "out=mine.json")
    assert found.code == 2 and f"teaches nothing: vllm on {DEVICE}: {reason} (--from" in found.err
    assert not (tmp_path / "mine.json").exists()


def test_ranks_are_named_apart_from_late_rows(headway, points, responses):
    path = points({"notes": "x; date=2026-05-02"}, {"dp": "2", "num_gpus": "2", "notes": "x; date=2026-01-02"})
    found = headway("calibrate", "--from", str(path), "until=2026-04-01")
    assert found.code == 2
    assert "1 dated from 2026-04-01 on" in found.err and "1 of data-parallel ranks" in found.err


def test_what_is_left_out_beside_what_is_learned(headway, points, responses):
    few = {"hardware": "H200", "concurrency_or_qps": "7"}
    path = points(*rows_of(), few)
    found = headway("calibrate", "--from", str(path), "out=mine.json", "--json").json()
    assert [fit["engine"] for fit in found["fits"]] == ["vllm"]
    assert found["left_out"] == [{"engine": "vllm", "device": "H200", "why": "no price of any of its rows (1)"}]
    shown = headway("calibrate", "--from", str(path), "out=mine.json").out
    assert "left out: vllm on H200: no price of any of its rows (1)" in shown


def test_the_table_is_not_written_over(headway, points, responses, tmp_path):
    path = points({}).rename(tmp_path / "points.json")
    found = headway("calibrate", "--from", str(path), f"out={path}")
    assert found.code == 2 and "is the file that --from reads" in found.err and path.read_text().startswith("source")


def test_responses_are_kept_with_what_they_are_of(points, monkeypatch, tmp_path):
    rows, path = read_table(points({}, {"concurrency_or_qps": "4"})), tmp_path / "r.json"
    monkeypatch.setattr(served_responses, "_simulated", lambda rows, *_: {rows[0].line: ONE, rows[1].line: "too big"})
    first = served_responses.responses_of(rows, "kernels", 1, False, path, "abc")
    monkeypatch.delattr(served_responses, "_simulated")
    again = served_responses.responses_of(rows, "kernels", 1, False, path, "abc")
    assert again == {line: one if isinstance(one, str) else again[line] for line, one in first.items()}
    assert again[rows[0].line].ttft == ONE.ttft and [list(pair) for pair in EAGER] == again[rows[0].line].eager
    with pytest.raises(ValueError, match="has sha256 'abc', wanted 'def'; remove the file"):
        served_responses.responses_of(rows, "kernels", 1, False, path, "def")
    with pytest.raises(ValueError, match="has predictor 'kernels', wanted 'analytic'"):
        served_responses.responses_of(rows, "analytic", 1, False, path, "abc")
    path.write_text(path.read_text().replace('"too big"', "5"))
    with pytest.raises(ValueError, match=f"is damaged at row {rows[1].line}"):
        served_responses.responses_of(rows, "kernels", 1, False, path, "abc")


def test_one_row_is_simulated(points):
    fast = read_table(points({"concurrency_or_qps": "2", "isl": "32", "osl": "4"}))[0]
    found = served_responses.respond_row(fast, "analytic")
    assert found.device == DEVICE and found.estimated and 0.0 < found.tpot_s < 0.1
    assert "does not fit" in served_responses.respond_row(
        read_table(points({"model": "deepseek-ai/DeepSeek-R1"}))[0], "analytic"
    )


def test_medians_are_stored():
    errors = {"ttft": np.array([-0.5, 0.1, 0.2])}
    found = Taught("vllm", DEVICE, {}, {}, errors, errors)
    assert calibrate_served._fit(found, 3)["after"] == {"ttft": 0.2}


def test_where_nothing_can_be_written_nothing_is_simulated(headway, points, responses, tmp_path):
    path = points({})
    (tmp_path / "file").write_text("")
    found = headway("calibrate", "--from", str(path), "out=file/o.json")
    assert found.code == 2 and "out=file/o.json cannot be written" in found.err and not responses
    found = headway("validate", f"serving={path}", "results=file/sub")
    assert found.code == 2 and "cannot be written" in found.err

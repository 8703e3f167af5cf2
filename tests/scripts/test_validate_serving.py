"""`headway validate serving=FILE`: one table in, one answer, a csv and a page out."""

import csv
import json
import os

import pytest

from calibration.serving.score import Prediction
from calibration.serving.table import COLUMNS
from scripts import serving_pool
from scripts.serving_pool import configuration, predict
from scripts.validate_serving import reasons_of


ROW = {
    "source": "core",
    "hardware": "h100",
    "num_gpus": "1",
    "engine": "vllm",
    "engine_version": "0.19.0",
    "model": "meta-llama/Llama-3.1-8B",
    "tp": "1",
    "disagg": "0",
    "isl": "64",
    "osl": "16",
    "concurrency_or_qps": "2",
    "ttft_ms_mean": "100",
    "tpot_ms_mean": "10",
    "notes": "NVIDIA-internal measurement",
    "dup": "0",
}


@pytest.fixture
def points(tmp_path):
    """`points({"osl": "8"})` writes a table and returns its path."""

    def write(*rows):
        path = tmp_path / "points.csv"
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(ROW | row for row in rows)
        return path

    return write


@pytest.fixture
def simulated(monkeypatch):
    """Simulations by formula: TTFT is 10 ms per client, TPOT 8 ms; 7 clients cannot be simulated. What was asked."""
    asked = []

    def fake(wanted, config_dirs, jobs):
        asked.extend(wanted)
        for overrides in wanted:
            clients = int(next(word for word in overrides if word.startswith("workload.concurrency")).partition("=")[2])
            latency = {"ttft_ms_mean": 10.0 * clients, "tpot_ms_mean": 8.0}
            found = Prediction(latency_ms=latency, output_per_gpu=5.0, total_per_gpu=9.0)
            yield overrides, Prediction("infeasible", "does not fit") if clients == 7 else found

    monkeypatch.setattr("scripts.validate_serving.predictions", fake)
    return asked


def test_disaggregated_rows_by_themselves(headway, points, simulated, tmp_path):
    """Rows that tell their pools count, of a limit as many of each engine; the others are numbers."""
    pools = {"disagg": "1", "notes": "P: 1x(tp1); D: 2x(tp1)"}
    several = [
        pools | {"concurrency_or_qps": str(c), "engine": engine} for c in (2, 4, 8) for engine in ("vllm", "trtllm")
    ]
    path = points(*several, {"concurrency_or_qps": "1"}, {"disagg": "1"})
    found = headway("validate", f"serving={path}", "mode=disaggregated", "limit=4", "results=out", "--json").json()
    assert (found["rows"], found["failed"]) == (4, 0)
    assert found["excluded"] == {"co-located": 1, "disaggregated": 1}
    modes = found["by"]["mode"]
    assert modes["disaggregated, pools known"]["rows"] == 4 and modes["co-located"]["rows"] == 0
    assert [modes[f"disaggregated, pools known, {engine}"]["rows"] for engine in ("vllm", "trtllm")] == [2, 2]
    refused = headway("validate", f"serving={path}", "mode=split", "--json")
    assert "mode wants one of co-located, disaggregated, got 'split'" in refused.json()["message"]


def test_a_table_is_scored(headway, points, simulated, tmp_path):
    rows = [{"concurrency_or_qps": str(c)} for c in (1, 2, 4, 7, 8, 16, 32)]
    path = points(*rows, rows[0], {"disagg": "1"}, {"dup": "1"}, {"hardware": "h9"})
    found = headway("validate", f"serving={path}", "results=out", "--json").json()
    assert (found["rows"], found["failed"]) == (9, 2)
    assert found["excluded"] == {"disaggregated": 1, "duplicate": 1}
    # 10, 20, 40, 80, 160, 320 and again 10 ms against 100; two are infinite: the fifth of nine is 0.9
    assert found["ttft"]["median_error"] == pytest.approx(0.9)
    assert found["tpot"]["median_error"] == pytest.approx(0.2) and found["tpot"]["bias"] == pytest.approx(-0.2)
    assert found["throughput"]["rows"] == 0 and found["throughput"]["median_error"] is None
    assert found["regret"]["groups"] == 1 and 0 <= found["regret"]["median"] <= 1
    assert set(found["by"]) >= {"engine", "device", "model", "mode", "version", "excluded"}
    assert found["by"]["excluded"]["duplicate"]["rows"] == 1 and found["by"]["mode"]["disaggregated"] == {"rows": 1}
    assert found["reasons"] == {
        "does not fit": 1,
        "hardware must name a device of `headway hardware`, got 'h9'.": 1,
    }
    # the repeated row and the duplicate are simulated once
    assert len(simulated) == len(set(simulated)) == 7
    lines = list(csv.DictReader((tmp_path / "out" / "rows.csv").read_text().splitlines()))
    assert len(lines) == 11 and lines[3]["status"] == "infeasible" and "h9" in lines[10]["why"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Predicted against measured" in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [panel["title"] for panel in data["panels"]] == ["TTFT", "TPOT"]


def test_a_subset_and_own_settings(headway, points, simulated):
    path = points(*({"concurrency_or_qps": str(c)} for c in (1, 2, 3, 4)))
    text = headway("validate", f"serving={path}", "limit=2", "engine.max_num_seqs=9").out
    assert "all that count" in text and "Results: results/serving_" in text
    assert len(simulated) == 2 and all(overrides[-1] == "engine.max_num_seqs=9" for overrides in simulated)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serving=none.csv",), "none.csv: there is no such file"),
        (("serving=points.csv", "limit=0"), "limit wants a whole number from 1"),
        (("serving=points.csv", "jobs=many"), "jobs wants a whole number from 1 to 256"),
        (("serving=points.csv", "results=."), "wants a new or an empty folder"),
        (("serving=points.csv", "run=x"), "kv=FILE, collectives=FILE or operators, got run and serving"),
        (("serving=points.csv", "limt=3"), "no key limt (known: serving, limit, mode, jobs, results, predictor): did"),
        (("serving=points.csv", "engine.max_num_seq=3"), "max_num_seq"),
        (("limit=3",), "wants one of run=DIR, serving=FILE"),
    ],
)  # fmt: skip
def test_mistakes(headway, points, simulated, words, said):
    points({})
    found = headway("validate", *words)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("predictor=nonsense", "predictor must be auto, kernels, analytic or a folder"),
        ("engine.scheduler=nonsense", "nonsense"),
        ("engine.kv_cache_dtype=fp7", "got 'fp7'"),
    ],
)
def test_an_own_setting_that_no_row_can_have_ends_it(headway, points, simulated, tmp_path, word, said):
    path = points({}, {"engine": "sglang", "engine_version": "0.5.4"})
    found = headway("validate", f"serving={path}", word, "results=out")
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1
    assert simulated == [] and not (tmp_path / "out").exists()


def test_reasons_that_differ_in_numbers_are_one():
    reasons = ["36 do not divide 128: 1, 2", "8 do not divide 128: 1, 2", "too large", "72 do not divide 64: 1, 2"]
    assert reasons_of(reasons) == {"36 do not divide 128: 1, 2": 3, "too large": 1}


def test_a_table_of_something_else(headway, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    found = headway("validate", f"serving={tmp_path / 'x.csv'}")
    assert found.code == 2 and "a measured-serving table has the column" in found.err


def squared(number: int) -> int:
    """The work of a pool, whose process does not survive 3."""
    if number == 3:
        os._exit(9)
    return number * number


def test_an_item_that_ends_its_process_takes_no_other_with_it():
    found = dict(serving_pool.each(squared, [1, 2, 3, 4], 1, "died"))
    assert found == {1: 1, 2: 4, 3: "died", 4: 16}


@pytest.mark.parametrize("own", ["++workload.input_tokens=64", "workload.input_tokens='64'"])
def test_an_own_setting_of_the_load_wins_however_it_is_written(own):
    row = ("model=llama-3.1-8b", "hardware=h100-sxm", "workload=closed-loop", "workload.input_tokens=1024")
    assert configuration((*row, own), ()).workload.input_tokens == 64
    assert configuration((*row, "workload.input_tokens=-3"), ()).workload.input_tokens == -3  # for others to refuse


def test_one_configuration_is_composed_once_whatever_its_load(monkeypatch):
    base = ("model=llama-3.1-8b", "workload=closed-loop")
    serving_pool.composed.cache_clear()
    one = configuration((*base, "workload.concurrency=3", "workload.input_tokens=10"), ())
    two = configuration((*base, "workload.concurrency=4", "workload.rounds=1"), ())
    assert serving_pool.composed.cache_info().misses == 1
    assert (one.workload.concurrency, one.workload.input_tokens, one.workload.rounds) == (3, 10, 10)
    assert (two.workload.concurrency, two.workload.input_tokens, two.workload.rounds) == (4, 1024, 1)


def test_what_cannot_be_simulated_has_a_status():
    found = predict(("model=llama-3.1-70b", "hardware=h100-sxm", "workload=closed-loop"))
    assert found.status == "infeasible" and found.latency_ms is None and "GiB" in found.reason
    assert predict(("model=nothing",)).status == "error"


def test_a_simulation_in_numbers():
    load = ("workload.concurrency=2", "workload.rounds=2", "workload.input_tokens=64", "workload.output_tokens=8")
    found = predict(("model=llama-3.1-8b", "hardware=h100-sxm", "workload=closed-loop", *load))
    assert found.status == "ok" and found.steps > 8
    assert found.latency_ms["ttft_ms_mean"] > found.latency_ms["tpot_ms_mean"] > 1
    # 2 requests at a time, of 72 tokens, 8 of them answers
    assert found.total_per_gpu == pytest.approx(9 * found.output_per_gpu)

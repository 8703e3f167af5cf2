"""Errors and their statistics, by hand."""

import csv
import io

import pytest

from calibration.serving.report import csv_text, report_text, summary_cells
from calibration.serving.score import Point, Prediction, by, concurrency_class, statistics, summary
from calibration.serving.setup import setup_of
from conf.files import by_hf_id
from scripts.table import table


@pytest.fixture
def point(row):
    """`point(ttft=110)`: a row measured at TTFT 100 and TPOT 10 ms, and this prediction; None: it has no price."""

    def made(ttft=None, tpot=10.0, excluded="", **cells):
        given = row(**cells)
        latency = {"ttft_ms_mean": ttft, "tpot_ms_mean": tpot, "ttft_ms_p50": 1.0, "tpot_ms_p50": 1.0}
        found = Prediction(latency_ms=latency, output_per_gpu=50.0, total_per_gpu=90.0)
        failed = Prediction("infeasible", "it does not fit")
        return Point(given, excluded, setup_of(given, by_hf_id), failed if ttft is None else found)

    return made


def test_errors_of_a_point(point):
    one = point(ttft=110, tpot=8, throughput_tok_s_per_gpu_output="100")
    assert [one.error(metric) for metric in ("ttft", "tpot", "throughput")] == pytest.approx([0.1, -0.2, -0.5])
    assert point(ttft=110, throughput_tok_s_per_gpu_total="100").error("throughput") == pytest.approx(-0.1)
    assert point(ttft=110).error("throughput") is None
    assert point(ttft=110, ttft_ms_mean="", ttft_ms_p50="2", tpot_ms_p50="1").error("ttft") == pytest.approx(-0.5)


def test_statistics(point):
    errors = [0.1, -0.2, 0.3, -0.4, 0.5]
    found = statistics([point(ttft=100 * (1 + error)) for error in errors], "ttft")
    assert found["rows"] == 5
    assert found["median_error"] == pytest.approx(0.3)
    assert found["mean_error"] == pytest.approx(0.3)
    assert found["p90_error"] == pytest.approx(0.5)
    assert found["bias"] == pytest.approx(0.1)


def test_a_point_without_a_price_has_an_infinite_error(point):
    points = [point(ttft=110), point(ttft=120), point()]
    found = summary(points)
    assert (found["rows"], found["failed"]) == (3, 1)
    assert found["ttft"]["median_error"] == pytest.approx(0.2)
    assert found["ttft"]["p90_error"] is None
    assert found["ttft"]["mean_error"] == pytest.approx(0.15)
    assert statistics([point(), point(ttft=110), point()], "ttft")["median_error"] is None
    assert statistics([], "ttft") == {
        "rows": 0, "median_error": None, "mean_error": None, "p90_error": None, "bias": None,
    }  # fmt: skip


def test_by_dimension(point):
    points = [
        point(ttft=110),
        point(ttft=120, hardware="h100", notes="date=2026-05-01"),
        point(ttft=400, excluded="duplicate", dup="1"),
        Point(point(ttft=1).row, "disaggregated"),
    ]
    found = by(points)
    assert {key: one["rows"] for key, one in found["device"].items()} == {"h100-sxm": 1, "h200-sxm": 1}
    assert found["period"]["held out"]["ttft"]["median_error"] == pytest.approx(0.2)
    assert found["mode"]["co-located"]["rows"] == 2 and found["mode"]["disaggregated"] == {"rows": 1}
    assert found["excluded"]["duplicate"]["ttft"]["median_error"] == pytest.approx(3.0)
    assert found["excluded"]["disaggregated"] == {"rows": 1}


def test_classes_of_concurrency(row):
    classes = {1: "1-8", 8: "1-8", 9: "9-32", 128: "33-128", 129: "129-512", 513: "513+"}
    assert {c: concurrency_class(row(concurrency_or_qps=str(c))) for c in classes} == classes


def test_csv_and_text(point):
    points = [point(ttft=110), Point(point(ttft=1).row, "disaggregated")]
    rows = list(csv.DictReader(io.StringIO(csv_text(points))))
    assert rows[0]["ttft_error"] == "0.1" and rows[0]["overrides"].startswith("model=llama-3.1-70b hardware=h200-sxm")
    assert rows[1]["excluded"] == "disaggregated" and rows[1]["status"] == "" and rows[1]["predicted_ttft_ms"] == ""
    assert summary_cells("x", summary(points[:1]))[:7] == ["x", "1", "0", "10.0", "10.0", "10.0", "+10.0"]
    regret = {"groups": 0, "median": None, "mean": None, "best_picked": 0, "rank_correlation": None}
    fields = {**summary(points[:1]), "excluded": {"duplicate": 3}, "regret": regret, "by": by(points), "reasons": {}}
    text = report_text(fields, table)
    assert "Not counted: 3 duplicate." in text and "h200-sxm" in text

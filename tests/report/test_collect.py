"""A multirun becomes one table, its failures included."""

import csv
import io

import pytest

from sim.report.collect import collect, collect_csv, collect_text, override_keys
from sim.report.results import write_failure, write_results


@pytest.fixture(scope="module")
def sweep(toy, tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    for i, seats in enumerate((4, 32)):
        write_results(
            toy(requests=30, seats=seats), root / str(i), overrides=["model=toy", f"engine.max_num_seqs={seats}"]
        )
    reason = "Weights need 15 GiB, the device has 12 GiB."
    write_failure(root / "2", "infeasible", reason, {}, ["model=toy", "engine.max_num_seqs=64"])
    for name in ("10", "11"):
        (root / name / ".hydra").mkdir(parents=True)
        (root / name / ".hydra" / "overrides.yaml").write_text(f"- model=toy\n- +engine.max_num_seqs={name}\n")
    (root / "11" / "summary.json").write_text("{broken")
    return root


def test_rows_are_in_natural_order_with_their_status(sweep):
    rows = collect(sweep)
    assert [(row["run"], row["status"]) for row in rows] == [
        ("0", "ok"),
        ("1", "ok"),
        ("2", "infeasible"),
        ("10", "missing"),
        ("11", "unreadable"),
    ]
    assert [row["engine.max_num_seqs"] for row in rows] == ["4", "32", "64", "10", "11"]
    assert rows[2]["reason"] == "Weights need 15 GiB, the device has 12 GiB."
    assert rows[2]["output_throughput"] is None
    assert rows[0]["output_throughput"] > 0
    assert rows[0]["bottleneck"] in ("admission-bound", "kv-bound", "prefill-bound", "bandwidth-bound")


def test_only_varying_overrides_are_shown(sweep):
    rows = collect(sweep)
    assert override_keys(rows) == ["model", "engine.max_num_seqs"]
    assert override_keys(rows, varying=True) == ["engine.max_num_seqs"]


def test_csv_reads_back(sweep):
    rows = collect(sweep)
    back = list(csv.DictReader(io.StringIO(collect_csv(rows))))
    assert [row["run"] for row in back] == [row["run"] for row in rows]
    assert float(back[1]["p99_ttft_ms"]) == rows[1]["p99_ttft_ms"]
    assert back[2]["p99_ttft_ms"] == ""


def test_text_lists_failures_with_their_sentence(sweep):
    text = collect_text(collect(sweep))
    assert text.splitlines()[0].split()[:3] == ["run", "engine.max_num_seqs", "out"]
    assert "5 runs, 2 ok, 3 not:" in text
    assert "engine.max_num_seqs=64  infeasible: Weights need 15 GiB, the device has 12 GiB." in text
    assert "missing: no summary.json" in text


def test_a_single_run_is_a_table_of_one(sweep):
    assert [row["run"] for row in collect(sweep / "0")] == ["."]


def test_nothing_to_collect(tmp_path):
    with pytest.raises(ValueError, match="found none"):
        collect(tmp_path)
    with pytest.raises(ValueError, match="not a folder"):
        collect(tmp_path / "absent")

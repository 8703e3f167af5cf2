"""A multirun becomes one table, its failures included."""

import csv
import dataclasses
import io

import pytest

from sim.report.collect import COLUMNS, collect, collect_csv, collect_text, failure_groups, override_keys, taught_note
from sim.report.page.sweep import sweep_page
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


OK = '{"status": "ok", "reason": ""}'

UNREADABLE = [
    ("{{", OK, "overrides.yaml: broken YAML"),
    ("5", OK, "overrides.yaml is no list of overrides but a int"),
    ("a: 1", OK, "overrides.yaml is no list of overrides but a dict"),
    (b"\xff\xfe", OK, "overrides.yaml: is not text in UTF-8"),
    ("&x [*x]", OK, "does an alias hold itself"),
    ("- a=1", "", "summary.json: broken JSON"),
    ("- a=1", "5", "summary.json: must hold a mapping"),
    ("- a=1", "{}", "it has no text 'status'"),
    ("- a=1", '{"status": 5, "reason": ""}', "it has no text 'status'"),
    ("- a=1", OK[:-1] + ', "kv_usage_max": "x"}', "'kv_usage_max' is no number"),
    ("- a=1", OK[:-1] + ', "completed": [1]}', "'completed' is no number"),
    ("- a=1", OK[:-1] + ', "bottleneck": "x"}', "'bottleneck' is no mapping"),
    ("- a=1", OK[:-1] + ', "workload": 5}', "'workload' is no mapping"),
    ("- a=1", "[" * 100_000, "nested too deeply"),
]


def test_what_cannot_be_read_is_a_row(tmp_path):
    for number, (overrides, summary, _) in enumerate(UNREADABLE):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "overrides.yaml").write_bytes(overrides if isinstance(overrides, bytes) else overrides.encode())
        (folder / "summary.json").write_text(summary)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "summary.json").write_text(OK)
    rows = collect(tmp_path)
    assert [row["status"] for row in rows] == ["unreadable"] * len(UNREADABLE) + ["ok"]
    for row, (_, _, said) in zip(rows, UNREADABLE, strict=False):
        assert said in row["reason"], row
    assert "1 ok" in collect_text(rows)
    assert collect_csv(rows)


def test_failures_alike_are_said_once():
    def bad(run, stages, policy):
        reason = f"stages want vllm, got stages={stages} with engine.policy={policy}; set it to 1."
        return dict.fromkeys(COLUMNS) | {"run": run, "status": "error", "reason": reason, "stages": stages}

    rows = [bad("0", "2", "orca"), bad("1", "4", "static-1.0"), bad("2", "2", "orca")]
    rows.append(rows[0] | {"run": "3", "reason": "It does not fit.", "status": "infeasible"})
    said = [(group.reason, [row["run"] for row in group.rows]) for group in failure_groups(rows)]
    together = "stages want vllm, got stages=2|4 with engine.policy=orca|static-1.0; set it to 1."
    assert said == [(together, ["0", "1", "2"]), ("It does not fit.", ["3"])]
    text = collect_text(rows)
    assert text.count("stages want vllm") == 1
    assert "  1  stages=4\n" in text and "  3  stages=2  infeasible: It does not fit." in text


def test_runs_of_which_servers_taught_only_some_are_told_apart(toy, tmp_path):
    runs = (("vllm", "auto", True), ("orca", "auto", False), ("orca", "kernels", False))
    for i, (engine, predictor, taught) in enumerate(runs):
        run = dataclasses.replace(toy(requests=10), predictor=predictor, taught=taught)
        write_results(run, tmp_path / str(i), overrides=[f"engine={engine}"])
    rows = collect(tmp_path)
    note = taught_note(rows)
    assert "runs 0 (engine=vllm), not of runs 1 (engine=orca), so" in note and "predictor=kernels" in note
    assert collect_text(rows).endswith(f"note: {note}")
    assert "predictor=kernels compares them alike." in sweep_page(rows, "sweep")
    assert taught_note(rows[1:]) == taught_note(rows[:1]) == ""
    many = taught_note([*rows, *(rows[0] | {"run": f"{i}"} for i in range(3, 20))])
    assert "9 (engine=vllm) and 10 more, not" in many

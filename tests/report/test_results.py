"""The results folder: complete, equal for equal runs, all or nothing."""

import dataclasses
import gzip
import json

import numpy as np
import pyarrow.parquet as parquet
import pytest
import yaml

from sim.report import results
from sim.report.metrics import latencies
from sim.report.result import FINISHED, REJECTED
from sim.report.results import check_folder, check_writable, write_failure, write_results


FILES = {
    "config.yaml",
    "overrides.yaml",
    "summary.json",
    "requests.parquet",
    "steps.parquet",
    "trace.json.gz",
    "report.html",
    "console.txt",
}


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_folder_is_complete(result, tmp_path):
    fields = write_results(result, tmp_path / "run", overrides=["workload.rate=12"])
    assert names(tmp_path / "run") == FILES
    assert names(tmp_path) == {"run"}
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == fields
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()) == result.config
    assert yaml.safe_load((tmp_path / "run" / "overrides.yaml").read_text()) == ["workload.rate=12"]
    assert "Serving Benchmark Result" in (tmp_path / "run" / "console.txt").read_text()


def test_equal_runs_give_equal_bytes(result, tmp_path):
    for name in ("a", "b"):
        write_results(result, tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_tables_hold_the_run(result, tmp_path):
    write_results(result, tmp_path / "run")
    requests = parquet.read_table(tmp_path / "run" / "requests.parquet")
    steps = parquet.read_table(tmp_path / "run" / "steps.parquet")
    assert requests.num_rows == len(result.requests)
    assert requests["arrival_ns"].to_pylist() == result.requests.arrival_ns.tolist()
    assert np.allclose(requests["ttft_ms"].to_numpy(), latencies(result.requests).ttft_s * 1e3, rtol=1e-12)
    assert requests.schema.metadata[b"workload_digest"] == result.workload.digest.encode()
    assert steps["free_blocks"].to_pylist() == result.steps.free_blocks.tolist()
    assert np.array_equal(steps["attention_s"].to_numpy(), result.components_s["attention_s"])
    assert set(steps["graph_mode"].unique().to_pylist()) <= {"eager", "piecewise", "full"}


def test_what_never_happened_is_null(toy, tmp_path):
    run = toy(requests=30, blocks=40)
    assert set(run.requests.status) == {FINISHED, REJECTED}
    write_results(run, tmp_path / "run")
    table = parquet.read_table(tmp_path / "run" / "requests.parquet").to_pydict()
    for status, finish, ttft in zip(table["status"], table["finish_ns"], table["ttft_ms"], strict=True):
        assert (finish is None) == (ttft is None) == (status == "rejected")


def test_trace_in_the_folder_is_json(result, tmp_path):
    write_results(result, tmp_path / "run")
    with gzip.open(tmp_path / "run" / "trace.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]


def test_a_failure_while_writing_leaves_the_old_result(result, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    write_results(result, folder)
    before = (folder / "summary.json").read_bytes()
    monkeypatch.setattr(results, "page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_results(result, folder)
    with pytest.raises(ZeroDivisionError):
        write_results(result, tmp_path / "new")
    assert names(tmp_path) == {"run"}
    assert (folder / "summary.json").read_bytes() == before


def test_an_earlier_result_is_replaced_and_the_launchers_files_stay(result, tmp_path):
    folder = tmp_path / "run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("- a=1\n")
    log = (folder / "simulate.log").open("w")
    write_results(result, folder, overrides=["a=1"])
    write_results(result, folder)
    log.write("still open")
    log.close()
    assert names(folder) == (FILES - {"overrides.yaml"}) | {".hydra", "simulate.log"}
    assert (folder / "simulate.log").read_text() == "still open"
    assert (folder / ".hydra" / "overrides.yaml").read_text() == "- a=1\n"


def test_the_engines_log_is_in_the_folder_and_a_new_one_replaces_it(result, tmp_path):
    folder = tmp_path / "run"
    write_results(dataclasses.replace(result, log={"format": "vllm", "whole_prompts": True}), folder)
    assert names(folder) == (FILES - {"overrides.yaml"}) | {"engine.log"}
    whole = (folder / "engine.log").read_text()
    assert whole.startswith("INFO 01-01 00:00:10 [headway] Engine 000: Avg prompt throughput: ")
    write_results(dataclasses.replace(result, log={"format": "vllm"}, log_interval_s=5.0), folder)
    finer = (folder / "engine.log").read_text()
    assert finer.startswith("INFO 01-01 00:00:05 ") and len(finer) > 1.5 * len(whole)
    write_results(result, folder)
    assert names(folder) == FILES - {"overrides.yaml"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "engine.log").write_text("of a real server")
    with pytest.raises(ValueError, match="got 'engine.log' in it"):
        write_results(result, other)


def test_a_strangers_folder_is_not_touched(result, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"wants to be empty or an earlier result, got 'thesis.tex'"):
        write_results(result, tmp_path)
    assert names(tmp_path) == {"thesis.tex"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "summary.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="not ours"):
        check_folder(other)
    with pytest.raises(ValueError, match="is a file"):
        check_folder(tmp_path / "thesis.tex")
    check_folder(tmp_path / "absent")


def test_a_failed_configuration_leaves_its_sentence(tmp_path):
    write_failure(tmp_path / "run", "infeasible", "It does not fit.", {"a": 1}, ["a=1"], model="m")
    assert names(tmp_path / "run") == {"config.yaml", "overrides.yaml", "summary.json"}
    fields = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (fields["status"], fields["reason"], fields["model"]) == ("infeasible", "It does not fit.", "m")
    assert "predictor" not in fields
    assert write_failure(tmp_path / "run", "error", "No.", {"predictor": "analytic"})["predictor"] == "analytic"


@pytest.mark.parametrize("name", ["file/sub", "n" * 300, "link"])
def test_a_folder_that_cannot_be_is_found_before_the_run(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "deep")
    for check in (check_folder, check_writable):
        with pytest.raises(ValueError, match="the results folder .*; choose another with results=FOLDER"):
            check(tmp_path / name)
    assert names(tmp_path) == {"file", "link"}


def test_trying_a_folder_leaves_nothing(tmp_path):
    check_folder(tmp_path / "a" / "b" / "c")
    (tmp_path / "there").mkdir()
    check_folder(tmp_path / "there")
    assert names(tmp_path) == {"there"} and names(tmp_path / "there") == set()


def test_a_full_disk_is_a_sentence_with_the_folder(result, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "/somewhere/.headway-abc/new/report.html")

    monkeypatch.setattr(results, "page", full)
    with pytest.raises(
        ValueError, match=r"the results folder .*run cannot be written \(no space left on device\)"
    ) as caught:
        write_results(result, tmp_path / "run")
    assert ".headway-" not in str(caught.value)
    assert names(tmp_path) == set()

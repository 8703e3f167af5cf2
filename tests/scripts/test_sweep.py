"""Multirun: one failing job is a row, never the end; a mistake is found before the first job."""

import json

import pytest

from scripts.sweep import sweep_folder


SMALL = ("workload=fixed-128-128", "workload.num_requests=4")


def test_every_job_has_a_row_whatever_happened_to_it(headway, tmp_path):
    found = headway("simulate", "-m", *SMALL, "model=llama-3.1-8b,llama-3.1-70b", "results=out", "--json")
    assert found.code == 0
    answer = found.json()
    assert (answer["status"], answer["jobs"], answer["results"]) == ("ok", 2, "out")
    assert [(row["run"], row["status"]) for row in answer["runs"]] == [("0", "ok"), ("1", "infeasible")]
    assert [row["model"] for row in answer["runs"]][0] == "llama-3.1-8b"
    assert "does not fit" in answer["runs"][1]["reason"]
    summary = json.loads((tmp_path / "out" / "1" / "summary.json").read_text())
    assert summary["status"] == "infeasible"
    again = headway("collect", "out")
    assert again.code == 0
    assert "2 runs, 1 ok, 1 not:" in again.out
    assert (tmp_path / "out" / "table.csv").read_text().startswith("run,")
    assert headway("simulate", "-m", *SMALL, "seed=1,2", "results=out").code == 2


def test_a_sweep_in_which_nothing_runs_fails(headway):
    found = headway("simulate", "-m", *SMALL, "model=llama-3.1-70b", "seed=1,2", "--json")
    assert found.code == 2
    assert found.json()["message"].startswith("none of the 2 jobs could run: does not fit")


def test_a_mistake_in_a_later_job_stops_the_sweep_before_it_begins(headway, tmp_path):
    found = headway("simulate", "-m", "workload.rate=1,2,fast")
    assert found.code == 2
    assert "workload.rate wants a number, got 'fast'" in found.err
    assert list(tmp_path.iterdir()) == []


def test_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest, folder = sweep_folder(["seed=1", "results=here"])
    assert (rest, str(folder)) == (["seed=1"], "here")
    assert sweep_folder(["seed=1"])[1].parent.name == "multirun"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    with pytest.raises(ValueError, match="results=here wants a new or an empty folder"):
        sweep_folder(["results=here"])

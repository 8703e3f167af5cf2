"""Multirun: one failing job is a row, never the end; a mistake is found before the first job."""

import json
import re

import pytest

from scripts.sweep import sweep_folder
from sim import api


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
    assert (summary["status"], summary["predictor"]) == ("infeasible", "auto")
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


def boom(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


ERRORS = {
    "MemoryError": (MemoryError("Unable to allocate 7 TiB"), "error", "more memory than this machine has"),
    "OverflowError": (OverflowError("too large"), "bug", "OverflowError: too large"),
    "AssertionError": (AssertionError(), "bug", "AssertionError"),
    "RuntimeError": (RuntimeError("stuck"), "bug", "RuntimeError: stuck"),
    "OSError": (OSError(5, "Input/output error"), "error", "Input/output error"),
}
WIDE = (*SMALL, "engine.async_scheduling=false")


# Every error in the stage that costs least, and one of each outcome where a sweep is torn down.
FAILURES = [("build", name) for name in ERRORS] + [
    ("why_exact", "OverflowError"),
    ("price_table", "RuntimeError"),
    ("price_table", "OSError"),
    ("run", "AssertionError"),
    ("run", "MemoryError"),
]


@pytest.mark.parametrize(("stage", "name"), FAILURES)
def test_whatever_one_job_raises_the_others_run(headway, monkeypatch, stage, name):
    """Job 1 of three fails in one stage; 0 and 2 run in the wide engine, or alone where their sweep was torn down."""
    error, status, reason = ERRORS[name]

    def only_the_second(function, conf_of):
        floor_s = lambda job: conf_of(job).hardware.kernel_floor_s  # noqa: E731
        return lambda job, *rest: boom(error)() if floor_s(job) == 2e-6 else function(job, *rest)

    if stage == "build":
        monkeypatch.setattr(api, "build", only_the_second(api.build, lambda conf: conf))
    elif stage == "price_table":
        monkeypatch.setattr(api.Job, "price_table", only_the_second(api.Job.price_table, lambda job: job.conf))
    elif stage == "run":
        monkeypatch.setattr(api, "sweep", boom(error))
        monkeypatch.setattr(api, "run", only_the_second(api.run, lambda job: job.conf))
    else:
        monkeypatch.setattr(api, "why_exact", only_the_second(api.why_exact, lambda job: job.conf))
    found = headway("simulate", "-m", *WIDE, "hardware.kernel_floor_s=1e-6,2e-6,3e-6", "results=out", "--json")
    assert found.code == 0, found.err
    rows = found.json()["runs"]
    assert [row["status"] for row in rows] == ["ok", status, "ok"]
    assert reason in rows[1]["reason"]
    engines = {"build": "wide", "why_exact": "wide", "price_table": "exact", "run": "exact"}
    assert {rows[0]["simulated_by"], rows[2]["simulated_by"]} == {engines[stage]}


def test_a_job_that_asks_for_the_impossible_is_a_row(headway):
    words = ("simulate", "-m", *SMALL, "workload.arrival=closed_loop,poisson,constant", "--json")
    rows = headway(*words).json()["runs"]
    assert [row["status"] for row in rows] == ["error", "ok", "ok"]
    assert "workload.arrival=closed_loop wants workload.concurrency" in rows[0]["reason"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["workload.rate=range(5,1,1)"], "holds no value"),
        (["workload.rate=range(1,5,0)"], "a step that is not 0"),
        (["workload.rate=1,-2"], "workload.rate wants a number > 0, got -2"),
        (["workload.num_requests=1000000000000,1"], "workload.num_requests wants at most 10,000,000"),
        (["seed=1,2", "results=file/out"], "the results folder file/out cannot be written .not a directory"),
        (["seed=1,2", "results=file"], "results=file wants a new or an empty folder"),
        (["seed=1,2", "results=[a]"], "results wants the path of one folder"),
        (["seed=1,2", "results=" + "n" * 300], "cannot be written .file name too long"),
        (["seed=1,2", "--cfg", "job"], "--cfg job prints one configuration and -m runs several"),
    ],
)
def test_a_sweep_that_cannot_begin_leaves_nothing(headway, tmp_path, words, said):
    (tmp_path / "file").touch()
    found = headway("simulate", "-m", *SMALL, *words)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert re.search(said, found.err)
    as_json = headway("simulate", "-m", *SMALL, *words, "--json")
    assert (as_json.code, as_json.json()["status"]) == (2, "error")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_results_is_the_same_path_with_and_without_m(headway, tmp_path):
    name = "it's a=b,c"
    assert headway("simulate", *SMALL, f"results={name}/one").code == 0
    found = headway("simulate", "-m", *SMALL, "seed=1,2", f"results={name}/many", "--json")
    assert (found.code, found.json()["results"]) == (0, f"{name}/many")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "one" / "summary.json").is_file()
    assert (tmp_path / name / "many" / "1" / "summary.json").is_file()


@pytest.mark.parametrize("key", ["hydra.sweep.dir", "hydra.sweep.subdir", "++hydra.run.dir"])
def test_the_launchers_own_folder_is_refused(headway, key):
    found = headway("simulate", "-m", *SMALL, "seed=1,2", f"{key}=elsewhere")
    assert found.code == 2 and f"{key.lstrip('+')} is set by headway" in found.err and "results=FOLDER" in found.err


def test_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest, folder = sweep_folder(["seed=1", "results=here"])
    assert (rest, str(folder)) == (["seed=1"], "here")
    assert sweep_folder(["seed=1"])[1].parent.name == "multirun"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    with pytest.raises(ValueError, match="results=here wants a new or an empty folder"):
        sweep_folder(["results=here"])

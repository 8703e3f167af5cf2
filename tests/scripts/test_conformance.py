"""`headway conformance`: its lines, its JSON, its exit codes, and a sentence for every kind of bad input."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


RECORDED = Path(__file__).parents[1] / "scheduler" / "recorded"


@pytest.fixture
def set_folder(tmp_path):
    """A set of three small recordings, unpacked so that they can be changed."""
    folder = tmp_path / "some" / "where" / "small"
    for kind, ending in (("scenarios", ".json"), ("traces", ".jsonl")):
        (folder / kind / "open").mkdir(parents=True)
        for name in ("single_request", "max_model_len_edge", "full_hit_last_token"):
            packed = RECORDED / "vllm-0.10.2-sync" / kind / f"{name}{ending}.gz"
            (folder / kind / "open" / f"{name}{ending}").write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def edit(path, change):
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def test_identical_recordings(headway, set_folder, tmp_path):
    found = headway("conformance", str(tmp_path))
    assert (found.code, found.err) == (0, "")
    lines = found.out.rstrip().split("\n")
    assert "small/open/single_request: identical" in lines
    assert lines[-1] == "decisions 3/3 identical, block ids 3/3 identical"


def test_json(headway, set_folder):
    found = headway("conformance", str(set_folder), "--json")
    assert found.code == 0
    counts = {"traces": 3, "decisions_identical": 3, "block_ids_identical": 3}
    small = {"engine": "vllm 0.10.2", **counts, "unsupported": 0, "stuck": 0, "dead": 0, "left_over": []}
    assert found.json() == {"status": "ok", **counts, "sets": {"small": small}, "differences": [], "unsupported": []}


def test_a_decision_that_differs(headway, set_folder):
    trace = set_folder / "traces" / "open" / "single_request.jsonl"
    edit(trace, lambda lines: [line.replace('"run":1', '"run":2') if '"step":3,' in line else line for line in lines])
    found = headway("conformance", str(set_folder))
    assert found.code == 1
    assert "small/open/single_request: different, step 3, run (running requests): recorded 2, simulated 1" in found.out
    assert found.out.rstrip().endswith("decisions 2/3 identical, block ids 2/3 identical")


def test_block_ids_alone_are_no_failure(headway, set_folder):
    trace = set_folder / "traces" / "open" / "single_request.jsonl"
    edit(trace, lambda lines: [line.replace('"nb":[[1,2,3]]', '"nb":[[1,3,2]]') for line in lines])
    found = headway("conformance", str(trace), "--json")
    assert (found.code, found.json()["decisions_identical"], found.json()["block_ids_identical"]) == (0, 1, 0)
    assert found.json()["differences"][0]["kind"] == "block ids"


def test_an_unsupported_kind_counts_as_different(headway, set_folder):
    scenario = set_folder / "scenarios" / "open" / "single_request.json"
    content = json.loads(scenario.read_text())
    content["config"]["async_scheduling"] = True
    scenario.write_text(json.dumps(content))
    found = headway("conformance", str(set_folder))
    assert found.code == 1
    assert "small/open/single_request: unsupported: async scheduling of vLLM 0.10.2 is not simulated" in found.out
    assert "decisions 2/3 identical, block ids 2/3 identical, 1 unsupported" in found.out
    assert found.out.rstrip().split("\n")[-2:] == [
        "1 of 3 unsupported: async scheduling of vLLM 0.10.2 is not simulated",
        "decisions 2/3 identical, block ids 2/3 identical",
    ]


def test_a_pool_too_small_has_a_status_that_says_so(headway, set_folder):
    scenario = set_folder / "scenarios" / "open" / "single_request.json"
    content = json.loads(scenario.read_text())
    content["config"]["num_gpu_blocks"] = 3
    scenario.write_text(json.dumps(content))
    found = headway("conformance", str(scenario))
    assert found.code == 1
    assert found.out.split("\n")[0].endswith("; the simulated run is stuck, a request never gets its blocks")
    assert headway("conformance", str(scenario), "--json").json()["sets"]["small"]["stuck"] == 1


def test_what_has_no_partner_is_said(headway, set_folder):
    (set_folder / "scenarios" / "open" / "single_request.json").unlink()
    (set_folder / "traces" / "open" / "max_model_len_edge.jsonl").unlink()
    found = headway("conformance", str(set_folder))
    assert found.code == 1
    assert "small/single_request.jsonl: unpaired: there is no scenario for this trace" in found.out
    assert "small: max_model_len_edge.json is a scenario without a trace" in found.out


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("traces/open/single_request.jsonl", lambda lines: [*lines[:4], "nonsense"], "line 5: this is not JSON"),
        ("traces/open/single_request.jsonl", lambda lines: lines[:-1], "the trace ends without"),
        ("scenarios/open/single_request.json", lambda lines: ["{", "]"], "line 2: this is not JSON"),
        (
            "traces/open/single_request.jsonl",
            lambda lines: [lines[0].replace("0.10.2", "0.10.3"), *lines[1:]],
            "version '0.10.3' of vllm is unknown, known are 0.10.2, 0.11.0",
        ),
        (
            "traces/open/single_request.jsonl",
            lambda lines: [lines[0].replace('"vllm"', '"lmdeploy"'), *lines[1:]],
            "the engine 'lmdeploy' is unknown, known are sglang, vllm.",
        ),
    ],
)
def test_bad_files_are_one_sentence(headway, set_folder, file, change, said):
    edit(set_folder / file, change)
    found = headway("conformance", str(set_folder))
    assert (found.code, found.out) == (2, "")
    assert said in found.err
    assert file.rpartition("/")[2] in found.err
    assert found.err.count("\n") == 1
    assert headway("conformance", str(set_folder), "--json").json()["status"] == "error"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda content: content["config"].update(max_num_sequences=1),
            "config.max_num_sequences is an unknown key; did you mean max_num_seqs?",
        ),
        (
            lambda content: content["requests"][0].update(max_token=1),
            "max_token of request r0 is an unknown key; did you mean max_tokens?",
        ),
        (
            lambda content: content["config"].update(spec={"method": "eagle", "k": 1, "kk": 2}),
            "config.spec.kk is an unknown key; did you mean k?",
        ),
    ],
)
def test_an_unknown_setting_is_not_ignored(headway, set_folder, change, said):
    scenario = set_folder / "scenarios" / "open" / "single_request.json"
    content = json.loads(scenario.read_text())
    change(content)
    scenario.write_text(json.dumps(content))
    found = headway("conformance", str(set_folder))
    assert found.code == 1
    assert f"single_request: unsupported: {said}" in found.out


def test_scenarios_alone_are_nothing_to_replay(headway, set_folder):
    shutil.rmtree(set_folder / "traces")
    found = headway("conformance", str(set_folder))
    assert (found.code, found.out) == (2, "")
    assert "no traces here to replay, only scenarios" in found.err


def test_names_of_files_that_are_no_text(tmp_path, set_folder):
    """In a process of its own, whose standard output takes UTF-8 only; the answer is JSON that every reader takes."""
    folder = os.fsencode(tmp_path) + b"/x\xff"
    shutil.copytree(set_folder, os.fsdecode(folder))
    code = "import sys; from scripts.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "conformance", folder, "--json"]
    found = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, check=False
    )
    assert found.returncode == 0, found.stderr
    assert list(json.loads(found.stdout)["sets"]) == ["x\udcff"]


def test_bad_paths_are_one_sentence(headway, tmp_path):
    for words, said in (
        ((), "headway: conformance wants one PATH"),
        (("a", "b"), "headway: conformance wants one PATH"),
        (("nowhere",), "nowhere: there is no such file or folder."),
        ((str(tmp_path),), "no recordings here; wanted are folders with scenarios/ and traces/ in them."),
        ((str(tmp_path), "--run", "x"), "with --run, PATH is the log of a server, a file"),
    ):
        found = headway("conformance", *words)
        assert (found.code, found.out) == (2, "")
        assert said in found.err


def test_a_step_log(headway, tmp_path):
    """The steps of a simulated run, written as a server logs them."""
    import pyarrow.parquet

    headway("simulate", "workload=fixed-1024-128", "workload.num_requests=6", "results=run")
    table = pyarrow.parquet.read_table(tmp_path / "run" / "steps.parquet")
    rows = zip(
        *(table[name].to_pylist() for name in ("prefill_chunks", "prefill_tokens", "decode_requests")), strict=True
    )
    log = tmp_path / "server.log"
    log.write_text(
        "".join(
            f"(EngineCore_DP0 pid=9) INFO [core.py:1] Iteration({i}): {chunks} context requests, "
            f"{tokens} context tokens, {decodes} generation requests, {decodes} generation tokens, took 1.0 ms\n"
            for i, (chunks, tokens, decodes) in enumerate(rows)
        )
    )
    found = headway("conformance", str(log), "--run", "run")
    assert found.code == 0
    assert found.out.startswith(f"engine core 0: identical in all {len(table):,} steps")
    table_of_log = log.read_text()
    assert "it is a server's log, add --run DIR" in headway("conformance", str(log)).err
    warm = "Iteration(0): 1 context requests, 7 context tokens, 0 generation requests, 0 generation tokens,\n"
    log.write_text(warm + re.sub(r"Iteration\((\d+)\)", lambda at: f"Iteration({int(at[1]) + 1})", table_of_log))
    assert headway("conformance", str(log), "--run", "run").code == 1
    found = headway("conformance", str(log), "--run", "run", "--from", "1")
    assert (found.code, found.out.rstrip().split("\n")[-1]) == (0, f"steps {len(table)}/{len(table)} identical")
    for wrong, said in (("x", "--from must be a whole number from 0"), ("99999", "--from 99999 leaves nothing")):
        assert said in headway("conformance", str(log), "--run", "run", "--from", wrong).err
    assert "it wants --run DIR, too" in headway("conformance", str(log), "--from", "1").err
    log.write_text(re.sub(r"Iteration\(5\): \d+", "Iteration(5): 9", table_of_log))
    assert headway("conformance", str(log), "--run", "run", "--json").json()["cores"][0]["iteration"] == 5
    shutil.rmtree(tmp_path / "run")
    assert "there is no steps.parquet in it" in headway("conformance", str(log), "--run", "run").err

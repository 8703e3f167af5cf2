"""A recorded run is replayed with its own settings, arrivals and content."""

import hashlib
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from scripts.validate_run import dataset_of, device_named_in, recorded_settings


ROWS = [(30, 5, 0.0), (40, 6, 0.5), (50, 7, 1.0)]


@pytest.fixture
def recorded(tmp_path):
    """A run of three requests in `RTXPRO6000/run`, its dataset two folders above."""
    rng = np.random.default_rng(0)
    dataset = tmp_path / "workloads" / "three.jsonl"
    dataset.parent.mkdir()
    dataset.write_text(
        "".join(
            json.dumps(
                {
                    "input_toks": prompt,
                    "output_toks": output,
                    "arrival_time_ns": int(at * 1e9),
                    "input_tok_ids": rng.integers(0, 1000, prompt).tolist(),
                }
            )
            + "\n"
            for prompt, output, at in ROWS
        )
    )
    run = tmp_path / "RTXPRO6000" / "run"
    run.mkdir(parents=True)
    (run / "requests.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "input_toks": prompt,
                    "output_toks": output,
                    "arrival_time": 1000 + at,
                    "queued_ts": 7 + at,
                    "scheduled_ts": 7 + at,
                    "first_token_ts": 7.05 + at,
                    "last_token_ts": 7.2 + at,
                }
            )
            + "\n"
            for prompt, output, at in ROWS
        )
    )
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "engine_kwargs": {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 128, "max_model_len": None, "seed": 42},
        "dataset_path": "workloads/three.jsonl",
        "dataset_hash": hashlib.sha256(dataset.read_bytes()).hexdigest(),
    }
    (run / "meta.json").write_text(json.dumps(meta))
    return run


def test_settings_come_from_the_run(recorded):
    meta = json.loads((recorded / "meta.json").read_text())
    overrides, remarks = recorded_settings(recorded, meta)
    assert overrides == ["model=llama-3.1-8b", "hardware=rtx-pro-6000", "engine=vllm-0.19.0", "engine.max_num_seqs=128"]
    assert any("taken from the folder's name" in remark for remark in remarks)
    assert any("--seed" in remark for remark in remarks)


def test_the_dataset_is_found_by_its_hash(recorded):
    meta = json.loads((recorded / "meta.json").read_text())
    assert dataset_of(recorded, meta, None).name == "three.jsonl"
    assert dataset_of(recorded, {**meta, "dataset_hash": "0" * 64}, None) is None
    with pytest.raises(ValueError, match="workload=nowhere: there is no such file"):
        dataset_of(recorded, meta, "nowhere")


def test_a_device_is_known_by_the_name_of_a_folder(tmp_path):
    assert device_named_in(tmp_path / "H100_SXM" / "x") == "h100-sxm"
    assert device_named_in(tmp_path / "x") is None


def test_measured_against_predicted(headway, recorded):
    found = headway("validate", f"run={recorded}", "--json").json()
    assert (found["status"], found["device"]) == ("ok", "NVIDIA RTX PRO 6000 Blackwell Server Edition")
    rows = {(row["metric"], row["statistic"]): row for row in found["rows"]}
    # Every request: first token 0.05 s after arrival, the rest in 0.15 s, over 4, 5 and 6 gaps.
    assert rows["ttft", "mean"]["measured"] == pytest.approx(50.0)
    assert rows["tpot", "mean"]["measured"] == pytest.approx((150 / 4 + 150 / 5 + 150 / 6) / 3)
    assert rows["tpot", "mean"]["predicted"] > 0
    same = {key: rows["tpot", "mean"][key] for key in ("measured", "predicted", "error")}
    assert found["tpot"]["mean"] == same
    assert any("token ids come from three.jsonl" in note for note in found["notes"])
    assert not any("prefix hits" in sentence for sentence in found["not_modelled"])
    steps = found["steps"]
    assert steps["simulated_depth"] == 2
    # three requests that never meet: the last token is 4, 5 and 6 steps after the first; a pair of instants each
    assert [(one["depth"], one["differences"]) for one in steps["depths"]["measured"]] == [(1, 3), (2, 3), (3, 3)]
    assert [(one["steps"], round(one["measured_ms"])) for one in steps["intervals"]] == [(4, 150), (5, 150), (6, 150)]
    text = headway("validate", f"run={recorded}", "hardware=l40s").out
    assert "NVIDIA L40S" in text and "measured" in text
    assert "The times do not tell the depth." in text and "decode, 1-3 running" in text


def test_without_the_dataset_prefix_hits_are_said_to_be_missing(headway, recorded):
    (recorded.parents[1] / "workloads" / "three.jsonl").unlink()
    found = headway("validate", f"run={recorded}", "--json").json()
    assert any("prefix hits" in sentence for sentence in [*found["notes"], *found["not_modelled"]])


def test_a_dataset_of_another_run_is_refused(headway, recorded, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    found = headway("validate", f"run={recorded}", f"workload={other}")
    assert found.code == 2
    assert "does not hold the prompts of the recorded run" in found.err
    found = headway("validate", f"run={recorded}", "workload.rate=3")
    assert found.code == 2 and "workload.rate does nothing here" in found.err
    found = headway("validate", f"run={recorded}", "results=there")
    assert found.code == 2 and "results does nothing here" in found.err


BROKEN_META = {
    "": "meta.json: broken JSON",
    "[]": "meta.json: must hold a mapping of keys, got list",
    "null": "meta.json: must hold a mapping of keys, got NoneType",
    "5": "meta.json: must hold a mapping of keys, got int",
    "[" * 3000: "meta.json: broken JSON, nested too deeply",
    '{"engine_kwargs": [1]}': "engine_kwargs: must hold a mapping of keys, got list",
    '{"engine_kwargs": "x"}': "engine_kwargs: must hold a mapping of keys, got str",
    '{"vllm_version": "abc"}': "meta.json: vllm_version=abc: a version such as 0.19.0 is wanted",
    '{"vllm_version": [1]}': "a version such as 0.19.0 is wanted, got .1.",
    '{"engine_kwargs": {"max_num_seqs": [1]}}': r"max_num_seqs wants a whole number, got \[1\]",
    '{"engine_kwargs": {"max_num_seqs": 1.5}}': "max_num_seqs wants a whole number, got 1.5",
    '{"engine_kwargs": {"tensor_parallel_size": true}}': "tensor_parallel_size wants a whole number, got True",
    '{"engine_kwargs": {"compilation_config": [1]}}': "compilation_config wants JSON with keys",
    '{"engine_kwargs": {"hf_overrides": 5}}': "hf_overrides wants JSON with keys, got 5",
    '{"engine_kwargs": {"dtype": {}}}': "dtype wants text",
    '{"engine_kwargs": {"data_parallel_size": "x"}}': "data-parallel-size wants a whole number, got 'x'",
    '{"engine_kwargs": {"data_parallel_size": 0}}': "data-parallel-size wants a whole number above 0, got 0",
    '{"engine_kwargs": {"enforce_eager": "maybe"}}': "enforce-eager wants true or false, got 'maybe'",
}


@pytest.mark.parametrize("content", BROKEN_META)
def test_a_broken_meta_json_is_a_sentence(headway, recorded, content):
    (recorded / "meta.json").write_text(content)
    found = headway("validate", f"run={recorded}", "model=llama-3.1-8b")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert re.search(BROKEN_META[content], found.err), found.err


@pytest.mark.parametrize("content", ["", "5", "[]", "null", "{"])
def test_a_broken_config_json_is_a_sentence(headway, recorded, content):
    (recorded / "config.json").write_text(content)
    found = headway("validate", f"run={recorded}")
    assert found.code == 2
    assert re.search("config.json: (broken JSON|must hold a mapping)", found.err), found.err


def test_what_the_user_says_need_not_stand_in_the_run(recorded):
    overrides, _ = recorded_settings(recorded, {"vllm_version": "abc"}, {"model", "engine"})
    assert overrides == ["hardware=rtx-pro-6000"]
    overrides, _ = recorded_settings(recorded, {"vllm_version": "0.19.1rc2.dev3+gabc"}, {"model"})
    assert overrides[1:] == ["engine=vllm-0.19.0", 'engine.version="0.19.1"']


def rewrite(recorded, **fields):
    rows = [json.loads(line) for line in (recorded / "requests.jsonl").read_text().splitlines()]
    (recorded / "requests.jsonl").write_text("".join(json.dumps(row | fields) + "\n" for row in rows))


def test_a_run_without_any_time_is_compared(headway, recorded):
    rewrite(recorded, arrival_time=0, queued_ts=0, scheduled_ts=0, first_token_ts=0, last_token_ts=0)
    found = headway("validate", f"run={recorded}", "--json")
    assert found.code == 0
    rows = {(row["metric"], row["statistic"]): row for row in found.json()["rows"]}
    assert rows["output_throughput", "mean"]["measured"] is None


def test_a_run_of_which_nothing_would_be_served(headway, recorded):
    rewrite(recorded, input_toks=1_000_000)
    (recorded.parents[1] / "workloads" / "three.jsonl").unlink()
    found = headway("validate", f"run={recorded}", "--json")
    assert (found.code, found.json()["status"]) == (2, "error")
    assert any("3 of 3 predicted requests were rejected" in note for note in found.json()["notes"])
    assert "3 of 3 predicted requests were rejected" in headway("validate", f"run={recorded}").out


def test_a_run_that_was_simulated_here_validates_without_error(headway, recorded, tmp_path):
    """Its requests, written as a recorder would, the engine's times on another clock than the client's arrivals."""
    keys = ["model=llama-3.1-8b", "hardware=rtx-pro-6000", "engine=vllm-0.19.0", "predictor=analytic"]
    workload = ["workload.num_requests=20", "workload.rate=20", "workload.output_tokens=8"]
    headway("simulate", *keys, "workload=fixed-1024-128", *workload, f"results={tmp_path / 'own'}", "--json")
    rows = pq.read_table(tmp_path / "own" / "requests.parquet").to_pylist()
    assert min(row["queued_ns"] - row["arrival_ns"] for row in rows) > 0
    (recorded / "meta.json").unlink()
    names = {"queued_ts": "queued_ns", "scheduled_ts": "scheduled_ns", "first_token_ts": "first_token_ns"}
    names |= {"last_token_ts": "finish_ns"}
    (recorded / "requests.jsonl").write_text(
        "".join(
            json.dumps(
                {"input_toks": row["prompt_tokens"], "output_toks": row["output_tokens"]}
                | {"arrival_time": 1000 + 1e-9 * row["arrival_ns"]}
                | {name: 77 + 1e-9 * row[column] for name, column in names.items()}
            )
            + "\n"
            for row in rows
        )
    )
    found = headway("validate", f"run={recorded}", *keys, "--json").json()
    errors = {(row["metric"], row["statistic"]): row["error"] for row in found["rows"] if row["statistic"] != "nmae"}
    assert errors["ttft", "mean"] is not None
    assert {key: value for key, value in errors.items() if value is not None and abs(value) > 1e-5} == {}

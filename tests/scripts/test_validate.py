"""A recorded run is replayed with its own settings, arrivals and content."""

import hashlib
import json

import numpy as np
import pytest

from scripts.validate import dataset_of, device_named_in, recorded_settings


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
    assert any("token ids come from three.jsonl" in note for note in found["notes"])
    assert not any("prefix hits" in sentence for sentence in found["not_modelled"])
    text = headway("validate", f"run={recorded}", "hardware=l40s").out
    assert "NVIDIA L40S" in text and "measured" in text


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

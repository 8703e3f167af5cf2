"""`headway experiment`: what there is, and the naive KV budget against the engine's own."""

import pytest

from calibration.kv.naive import naive_blocks
from scripts.experiment import Case, Experiment, experiment_names, read_experiment
from scripts.experiments.naive_kv_budget import run
from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf
from sim.hardware.read import load_device
from sim.memory.describe import describe
from sim.model.read import catalogue, load_conf


def test_the_naive_budget_by_hand():
    h100 = load_device("h100-sxm")
    engine = EngineConf(version="0.19.0", max_model_len=8192, gpu_memory_utilization=0.9)
    budget = describe(load_conf(catalogue()["llama-3.1-8b"]), h100, engine, DeploymentConf())
    # (0.9 x 79.19 GiB - 14.99 GiB) / 2 MiB, activation and libraries forgotten
    assert naive_blocks(budget) == pytest.approx((0.9 * 79.19 - 14.989) * 512, abs=2)
    forgotten = budget.stage.value("peak_activation") + budget.stage.value("non_torch")
    assert naive_blocks(budget) - budget.num_blocks == pytest.approx(forgotten / 2**21, abs=1)


def test_what_there_is(headway):
    known = ["llama-70b-256-h800", "naive-kv-budget", "qwen-235b-h800-h20", "step3-afd"]
    assert experiment_names() == known
    found = headway("experiment", "--json").json()
    assert found["experiments"] == {name: read_experiment(name).title for name in known}
    assert "naive-kv-budget" in headway("experiment").out


def test_mistakes_are_sentences(headway):
    assert "did you mean naive-kv-budget?" in headway("experiment", "naive-kv").err
    assert (
        "sets engine.num_gpu_blocks_override itself"
        in headway("experiment", "naive-kv-budget", "engine.num_gpu_blocks_override=9").err
    )
    assert "workload.lengths must be fixed" in headway("experiment", "naive-kv-budget", "workload.lengths=uniform").err
    assert "holds no request of" in headway("experiment", "naive-kv-budget", "workload.input_tokens=900000").err


def test_a_batch_that_just_fits_the_naive_budget():
    """On the engine's real blocks it is preempted and takes longer; by as much as there are blocks too many, about."""
    setting = (
        "model=llama-3.2-1b", "hardware=l4", "engine=vllm-0.10.2", "engine.gpu_memory_utilization=0.5",
        "workload=burst", "workload.lengths=fixed", "workload.input_tokens=1024", "workload.output_tokens=128",
    )  # fmt: skip
    answer = run(Experiment("x", "x", "x", (Case("tiny", setting, {"blocks": 0.1}),)), [], [])
    row = answer.fields["rows"][0]
    assert row["naive_blocks"] > row["engine_blocks"]
    assert row["blocks_excess"] == pytest.approx(row["naive_blocks"] / row["engine_blocks"] - 1)
    # 72 blocks a request, and the null block
    assert row["requests"] == (row["naive_blocks"] - 1) // 72
    assert row["naive_preemptions"] == 0
    assert 0 < row["throughput_excess"] < 2 * row["blocks_excess"]
    assert "+10.0%" in answer.text and answer.fields["published"] == {"tiny": {"blocks": 0.1}}

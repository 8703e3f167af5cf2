"""`headway experiment`: what there is, and the naive KV budget against the engine's own."""

import csv
import json
import re
from pathlib import Path

import pytest

from calibration.kv.naive import naive_blocks
from scripts.experiments.naive_kv_budget import run
from scripts.experiments.study import Case, Experiment, Published, experiment_names, read_experiment
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
    known = ["llama-70b-256-h800", "naive-kv-budget", "qwen-235b-h800-h20", "rl-rollout", "step3-afd"]
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


def test_page_console_and_docs_have_one_source():
    """Every explanation of a published figure stands in docs as it is in the experiment's file."""
    docs = Path(__file__).parents[2] / "docs"
    told = " ".join(" ".join((docs / name).read_text().split()) for name in ("experiments.md", "kv-budget.md"))
    for name in experiment_names():
        found = read_experiment(name)
        assert found.question.endswith("?") and found.assumed and found.published.source, name
        for paragraph in found.published.explanation:
            assert paragraph in told, (name, paragraph)


TINY = Experiment(
    "naive-kv-budget",
    "A < B",
    "naive_kv_budget",
    (
        Case(
            "tiny",
            (
                "model=llama-3.2-1b", "hardware=l4", "engine=vllm-0.10.2", "engine.gpu_memory_utilization=0.4",
                "workload=burst", "workload.lengths=fixed", "workload.input_tokens=1024", "workload.output_tokens=128",
            ),
            {"blocks": 0.1},
        ),
    ),
    question="Does it fit?",
    assumed=("Nothing else.",),
    published=Published("somebody", ("Because <it> is small.",)),
)  # fmt: skip


@pytest.fixture
def tiny(monkeypatch):
    """The experiment of one small case in place of the shipped one."""
    monkeypatch.setattr("scripts.experiment.read_experiment", lambda name: TINY)


def test_a_folder_with_page_csv_and_answer(headway, tiny, tmp_path):
    found = headway("experiment", "naive-kv-budget", "results=out", "--json").json()
    (row,), out = found["rows"], tmp_path / "out"
    assert json.loads((out / "answer.json").read_text()) == found and found["notes"] == []
    with open(out / "table.csv") as file:
        (line,) = csv.DictReader(file)
    assert float(line["blocks_excess"]) == row["blocks_excess"] and line["published_blocks_excess"] == "0.1"
    page = (out / "report.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert re.findall(r'class="chart" id="(chart-\d)"', page) == [f"chart-{i}" for i in range(len(data["charts"]))]
    excess, left_out, over_time = data["charts"]
    assert excess["cases"][0]["values"] == [row["blocks_excess"], row["throughput_excess"]]
    assert excess["cases"][0]["published"] == [0.1, None]
    gib = [value / 2**30 for value in row["forgotten_bytes"].values()]
    assert left_out["cases"][0]["values"] == gib and sum(gib) > 0
    assert all(0 < max(curve["y"]) <= row["requests"] for curve in over_time["curves"])
    for words in ("A &lt; B", "Does it fit?", "Because &lt;it&gt; is small.", "Published: somebody.", "Nothing else."):
        assert words in page, words
    again = headway("experiment", "naive-kv-budget", "results=out")
    assert "the earlier result in out was replaced" in again.out and "Because <it> is small." in again.out


def test_folders_that_cannot_be_written_are_refused_before_the_work(headway, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for given, said in (("file", "this is a file"), ("file/below", "cannot be written"), ("full", "wants a new")):
        call = headway("experiment", "naive-kv-budget", f"results={given}")
        assert call.code == 2 and said in call.err and call.err.count("\n") == 1, call.err


def test_a_batch_that_just_fits_the_naive_budget():
    """On the engine's real blocks it is preempted and takes longer; by as much as there are blocks too many, about."""
    answer = run(TINY, [], [], lambda done, besides="": None)
    row = answer.fields["rows"][0]
    assert row["naive_blocks"] > row["engine_blocks"]
    assert row["blocks_excess"] == pytest.approx(row["naive_blocks"] / row["engine_blocks"] - 1)
    # 72 blocks a request, and the null block
    assert row["requests"] == (row["naive_blocks"] - 1) // 72
    assert row["naive_preemptions"] == 0
    assert 0 < row["throughput_excess"] < 2 * row["blocks_excess"]
    assert "+10.0%" in answer.text and answer.fields["published"] == {"tiny": {"blocks": 0.1}}

"""What servers taught: which plan it is for, what it does to it, and what a user reads of it."""

import json

import numpy as np
import pytest

from predictors import served, store
from predictors.run_fit import RunFit, adjusted
from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.model.read import load_model


HEAD = {"data": "points.csv", "predictor": "kernels", "sha256": "0", "until": "2026-04-01", "date": "2026-11-30"}
VALUES = {"products": 1.25, "experts": 0.5, "links": 0.5, "eager": 3.0, "host_s": 2e-4, "request_s": -1.0}


def compiled(device="h100-sxm"):
    return compile_plan(
        load_model("llama-3.2-1b"), load_device(device), load_engine("vllm", "0.19.0"), DeploymentConf()
    )


@pytest.fixture(scope="module")
def plan():
    return compiled()


@pytest.fixture
def path(tmp_path, plan):
    fit = {"engine": "vllm", "device": plan.device.name, "values": VALUES, "rows": 12}
    served.save(tmp_path / "served.json", HEAD, [fit])
    return tmp_path / "served.json"


def test_what_is_learned_is_applied(plan, path):
    beneath, found = served.taught_plan(str(path), plan)
    before, after = plan.arrays.device, found.arrays.device
    assert beneath == "kernels"
    assert (after.product_time, after.expert_time, after.decode_attention_time) == (1.25, 0.5, 1.0)
    # eager and pieces take three times as long to submit, a full graph as long as before
    np.testing.assert_allclose(after.launch_s, before.launch_s * [3.0, 3.0, 1.0])
    np.testing.assert_allclose(after.gap_s, before.gap_s * [3.0, 1.0, 1.0])
    assert after.host_s == pytest.approx(before.host_s + 2e-4)
    # a server never takes a request up before it comes
    assert found.engine.profile.api_pickup_s == 0.0
    assert any("12 measurements of servers before 2026-04-01" in source for *_, source in found.assumptions)


def test_it_is_for_its_engine_and_device_alone(path):
    with pytest.raises(ValueError, match="was learned of vllm on NVIDIA H100.*got vllm on NVIDIA H200"):
        served.taught_plan(str(path), compiled("h200-sxm"))
    assert served.as_served(compiled("h200-sxm"), path).arrays.device.product_time == 1.0


def test_auto_takes_what_comes_with_headway_and_kernels_does_not(plan, path, monkeypatch):
    assert served.taught_plan("auto", plan) == ("auto", plan)
    monkeypatch.setattr(store, "SHIPPED", path.parent)
    assert served.taught_plan("auto", plan)[1].arrays.device.product_time == 1.25
    assert served.taught_plan("kernels", plan) == ("kernels", plan)


def test_a_run_is_learned_on_top(plan, path, monkeypatch, tmp_path):
    monkeypatch.setattr(store, "SHIPPED", path.parent)
    facts = {"engine": "vllm", "spread": {}, "data": "run", "sha256": "0", "date": "2026-11-30", "errors": {}}
    RunFit("auto", plan.device.name, values={"host_s": 1e-3}, **facts).save(tmp_path / "run.json")
    beneath, found = served.taught_plan(str(tmp_path / "run.json"), plan)
    assert beneath == "auto"
    assert found.arrays.device.host_s == pytest.approx(plan.arrays.device.host_s + 1.2e-3)


def test_another_schema_is_refused(tmp_path):
    (tmp_path / "served.json").write_text('{"schema": "headway.served/9", "fits": []}')
    with pytest.raises(ValueError, match="schema must be headway.served/1, got 'headway.served/9'"):
        served.load(tmp_path / "served.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {"products": -1.0}}, "got products=-1.0"),
        ({"values": {"warp": 2.0}}, "got warp=2.0"),
        ({"values": {"eager": True}}, "got eager=True"),
        ({"values": {"host_s": float("nan")}}, "got host_s=nan"),
        ({"values": {}}, "values must hold numbers for some of memory"),
        ({"values": None}, "values must hold numbers for some of memory"),
        ({"rows": "many"}, "lacks rows"),
        ({"engine": None}, "lacks engine"),
    ],
)
def test_a_file_that_cannot_be_is_refused(path, change, message):
    content = json.loads(path.read_text())
    other = path.with_name("other.json")
    other.write_text(json.dumps(content | {"fits": [content["fits"][0] | change]}))
    with pytest.raises(ValueError, match=message):
        served.load(other)


def test_fits_are_a_list_of_different_pairs(path):
    content = json.loads(path.read_text())
    for name, fits, message in (
        ("a", [], "fits must be a list"),
        ("b", content["fits"] * 2, "has two fits of one engine"),
    ):
        other = path.with_name(f"{name}.json")
        other.write_text(json.dumps(content | {"fits": fits}))
        with pytest.raises(ValueError, match=message):
            served.load(other)


def test_a_run_that_was_learned_on_itself(plan, tmp_path):
    facts = {"engine": "vllm", "spread": {}, "data": "run", "sha256": "0", "date": "2026-11-30", "errors": {}}
    path = tmp_path / "run.json"
    RunFit(str(path), plan.device.name, values={"host_s": 1e-3}, **facts).save(path)
    with pytest.raises(ValueError, match="predictor must be auto, kernels, analytic or a folder"):
        served.taught_plan(str(path), plan)


def test_nothing_to_adjust_changes_nothing(plan):
    same = adjusted(plan, {"products": 1.0, "eager": 1.0})
    assert float(same.arrays.device.product_time) == 1.0
    np.testing.assert_array_equal(same.arrays.device.launch_s, plan.arrays.device.launch_s)


def test_the_shipped_file(artifacts):
    content = served.load(artifacts / served.FILE)
    assert content["until"] == "2026-04-01"
    pairs = [(fit["engine"], fit["device"]) for fit in content["fits"]]
    assert len(pairs) == len(set(pairs)) >= 8
    for fit in content["fits"]:
        assert set(fit["values"]) == set(fit["spread"])
        assert all(0.1 < value < 8.0 for name, value in fit["values"].items() if not name.endswith("_s"))
        assert sum(fit["after"].values()) < sum(fit["before"].values())

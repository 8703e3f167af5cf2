"""`headway calibrate --from`: what is taken of a result, what is said of the server, and where it is used."""

import json

import pytest

from calibration.from_run import bench_result
from calibration.from_run.learn import Learned
from conf.compose import compose
from predictors import run_fit, served, store
from predictors.run_fit import RunFit
from predictors.served import OwnFit, own_fit, taught_plan
from scripts.calibrate_load import load_remarks, load_told
from scripts.calibrate_server import described, model_notes, model_told
from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.model.read import load_model
from sim.workload.build import build_workload


RESULT = {
    "model_id": "meta-llama/Llama-3.2-1B-Instruct",
    "num_prompts": 16,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "completed": 16,
    "total_input_tokens": 16 * 300,
    "total_output_tokens": 16 * 20 + 5,
    "mean_ttft_ms": 60.0,
    "mean_tpot_ms": 4.0,
}
FACTS = {"spread": {}, "data": "mine.log", "sha256": "0", "date": "2026-11-30", "errors": {}}


@pytest.fixture
def result(tmp_path):
    """Writes `RESULT` with changes."""

    def write(change=None, name="result.json"):
        path = tmp_path / name
        path.write_text(json.dumps(RESULT | (change or {})))
        return path

    return write


def compiled(model="llama-3.2-1b", engine="vllm", version="0.19.0", device="h100-sxm", **deployment):
    return compile_plan(
        load_model(model), load_device(device), load_engine(engine, version), DeploymentConf(**deployment)
    )


@pytest.fixture(scope="module")
def plan():
    return compiled()


def test_a_plain_result_is_replayed_with_its_mean_lengths_and_its_model(headway, result):
    """4,800 / 16 = 300 tokens in; 325 / 16 = 20.3, so 20 out; all at once, four outstanding."""
    words = ("calibrate", "--from", str(result()), "hardware=h100-sxm", "predictor=analytic", "out=mine.json")
    found = headway(*words, "--json").json()
    told = {"model=llama-3.2-1b", "workload.lengths=fixed", "workload.input_tokens=300", "workload.output_tokens=20"}
    assert told | {"workload.rate=inf", "workload.concurrency=4"} <= set(found["overrides"])
    assert any("mean lengths of result.json: workload.input_tokens=300" in note for note in found["notes"])
    server = found["server"]
    assert (server["model"], server["engine"], server["version"]) == ("llama-3.2-1b", "vllm", "0.19.0")
    assert (server["tensor_parallel"], server["device"]) == (1, "NVIDIA H100 SXM 80GB")
    assert server["origin"] == {
        "model": "from the file",
        "engine": "the default",
        "tensor_parallel": "the default",
        "device": "as given",
    }
    fit = own_fit(result().with_name("mine.json"))
    assert (fit.model, fit.tensor_parallel, fit.engine) == ("llama-3.2-1b", 1, "vllm 0.19.0")
    line = "taken as measured on: model llama-3.2-1b (from the file), vllm 0.19.0 (the default), tensor parallel 1"
    assert any(note.startswith(line) for note in found["notes"])


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (["workload=sharegpt"], {"concurrency", "arrival", "rate", "normalize_rate", "num_requests"}),
        (["workload.profile=sharegpt"], {"concurrency", "arrival", "rate", "normalize_rate", "num_requests"}),
        (
            ["workload.output_tokens=9"],
            {"", "lengths", "input_tokens", "concurrency", "arrival", "rate", "normalize_rate", "num_requests"},
        ),
        (
            ["workload.arrival=closed_loop"],
            {"", "lengths", "input_tokens", "output_tokens", "concurrency", "normalize_rate", "num_requests"},
        ),
    ],
)
def test_what_the_user_says_of_the_load_wins(result, said, kept):
    told = load_told(bench_result.read(result()), said)
    assert {word.partition("=")[0].removeprefix("workload").removeprefix(".") for word in told} == kept
    compose([*told, *said])  # and nothing of the two is at odds


@pytest.mark.parametrize("rate", ["inf", 2.5])
@pytest.mark.parametrize(
    "said",
    [
        (),
        ("workload=closed-loop",),
        ("workload=sharegpt", "workload.arrival=closed_loop"),
        ("workload.arrival=closed_loop",),
        ("workload.arrival=constant", "workload.rate=3"),
        ("workload.lengths=lognormal",),
        ("workload.lengths=profile", "workload.profile=sharegpt"),
    ],
)
def test_every_load_can_be_built(result, rate, said):
    found = bench_result.read(result({"request_rate": rate, "burstiness": 0.5}))
    conf = compose([*load_told(found, list(said)), *said]).workload
    assert len(build_workload(conf, 0)) == 16 and conf.concurrency == 4


def test_gaps_are_as_the_benchmark_draws_them(result):
    keys = bench_result.read(result({"request_rate": 2.5, "burstiness": 0.5, "max_concurrency": None})).keys
    assert {"workload.arrival=gamma", "workload.burstiness=0.5", "workload.normalize_rate=true"} <= set(keys)
    assert "workload.rate=2.5" in keys and not any("concurrency" in key for key in keys)


def test_requests_whose_times_are_not_told_have_their_mean_lengths(result):
    """`--save-detailed` without start times, as older versions write: it cannot be replayed request by request."""
    lists = {"input_lens": [300, 300], "output_lens": [20, 20], "ttfts": [0.1, 0.1], "itls": [[0.1] * 19] * 2}
    found = bench_result.read(result(lists | {"request_rate": 3.0, "max_concurrency": None}))
    assert found.workload is None and "workload.input_tokens=300" in found.keys


def test_lengths_that_nobody_tells_are_said(result):
    found = bench_result.read(result({"total_input_tokens": None}))
    assert (
        "tells no lengths: those of the default workload are taken" in load_remarks(found, load_told(found, []), [])[0]
    )
    assert not load_remarks(found, load_told(found, ["workload=sharegpt"]), ["workload=sharegpt"])


def test_a_count_that_cannot_be(result):
    with pytest.raises(ValueError, match="completed must be a number of at least 1, got -3"):
        bench_result.read(result({"completed": -3}))


def test_an_unknown_model_is_asked_for(headway, result, tmp_path):
    path = result({"model_id": "acme/secret-9b"})
    found = headway("calibrate", "--from", str(path), "hardware=h100-sxm")
    assert found.code == 2 and found.err.count("\n") == 1
    assert "result.json is of the model acme/secret-9b, which the catalogue does not have; give model=NAME" in found.err
    assert not (tmp_path / "run-fit.json").exists()
    assert model_told("acme/secret-9b", "result.json", {"model"}) == model_told("", "result.json", set()) == []


def test_a_model_that_disagrees_is_noted(plan):
    [note] = model_notes("Qwen/Qwen3-8B", "result.json", plan)
    assert note == "note: the model of result.json, Qwen/Qwen3-8B, is qwen3-8b; model=llama-3.2-1b is taken, as given"
    assert "acme/secret-9b, is not in the catalogue" in model_notes("acme/secret-9b", "result.json", plan)[0]
    assert not model_notes("meta-llama/Llama-3.2-1B-Instruct", "result.json", plan)
    assert not model_notes("", "result.json", plan)


def test_who_says_what_of_the_server(plan):
    fields, line = described(
        plan, ["model=llama-3.2-1b", "engine=vllm-0.19.0"], ["hardware=h100-sxm", "engine=vllm-0.19.0"]
    )
    assert fields["origin"]["engine"] == "as given" and fields["origin"]["model"] == "from the file"
    assert "vllm 0.19.0 (as given), tensor parallel 1 (the default)" in line


def test_what_gets_no_nearer_is_not_written(headway, result, monkeypatch, tmp_path):
    def same(observed, simulate, *_):
        run = simulate({})
        return Learned({"host_s": 0.0}, {"host_s": 1.0}, run, run, 1)

    monkeypatch.setattr("calibration.from_run.learn.learn", same)
    found = headway("calibrate", "--from", str(result()), "hardware=h100-sxm", "predictor=analytic")
    assert found.code == 2 and "result.json teaches nothing: no constants bring" in found.err
    assert not (tmp_path / "run-fit.json").exists()


def own(path, plan, engine="vllm 0.19.0", predictor="analytic", **more):
    OwnFit(predictor, plan.device.name, engine, {"request_s": 3e-3}, **FACTS, **more).save(path)
    return str(path)


def test_constants_of_one_engine_are_not_of_another(plan, tmp_path):
    path = own(tmp_path / "mine.json", plan)
    with pytest.raises(
        ValueError, match=r"learned from a run of vllm 0.19.0, got engine sglang .*; set engine=vllm-VERS"
    ):
        taught_plan(path, compiled(engine="sglang", version="0.5.23"))
    with pytest.raises(ValueError, match="learned from a run on NVIDIA H100 SXM 80GB, got hardware NVIDIA H200"):
        taught_plan(path, compiled(device="h200-sxm"))
    scheduled = own(tmp_path / "other.json", plan, "vllm 0.19.0, scheduler mine")
    assert not any("another" in what for what, *_ in taught_plan(scheduled, plan)[1].assumptions)


def test_another_version_model_or_size_is_noted(plan, tmp_path):
    path = own(tmp_path / "mine.json", plan, "vllm 0.23.0", model="qwen3-8b", tensor_parallel=2)
    rows = taught_plan(path, plan)[1].assumptions[-3:]
    assert [row[:2] for row in rows] == [
        ("learned on another version of vllm", "0.23.0, here 0.19.0"),
        ("learned on another model", "qwen3-8b, here llama-3.2-1b"),
        ("learned on another tensor parallel size", "2, here 1"),
    ]
    same = own(tmp_path / "same.json", plan, model="llama-3.2-1b", tensor_parallel=1)
    assert taught_plan(same, plan)[1].assumptions[-1][0] == served.OWN


def test_a_file_of_before_names_no_model(plan, tmp_path):
    RunFit("analytic", plan.device.name, "vllm 0.19.0", {"host_s": 1e-3}, **FACTS).save(tmp_path / "old.json")
    assert (own_fit(tmp_path / "old.json").model, own_fit(tmp_path / "old.json").tensor_parallel) == ("", 0)
    assert taught_plan(str(tmp_path / "old.json"), plan)[1].assumptions[-1][0] == served.OWN
    path = tmp_path / "bad.json"
    path.write_text((tmp_path / "old.json").read_text().replace('"schema"', '"model": 3, "schema"'))
    with pytest.raises(ValueError, match="model must be a name, got 3"):
        own_fit(path)


def test_constants_on_top_of_others_say_that_they_add(plan, monkeypatch, tmp_path):
    """Servers taught 2 ms a request and the own server 3 ms more: 5 ms in all, and the second row says so."""
    head = {"data": "points.csv", "predictor": "kernels", "sha256": "0", "until": "", "date": "2026-11-30"}
    fit = {"engine": "vllm", "device": plan.device.name, "values": {"request_s": 2e-3}, "rows": 12}
    served.save(tmp_path / served.FILE, head, [fit])
    monkeypatch.setattr(store, "SHIPPED", tmp_path)
    _, both = taught_plan(own(tmp_path / "mine.json", plan, predictor="auto"), plan)
    assert both.engine.profile.api_pickup_s == pytest.approx(plan.engine.profile.api_pickup_s + 5e-3)
    first, second = both.assumptions[-2:]
    assert first[:2] == ("constants learned from servers", "request_s 0.002")
    assert second[:2] == (served.OWN, "request_s 0.003")
    assert second[2] == "mine.log, 2026-11-30; on top of those from servers above: seconds add, factors multiply"
    _, alone = taught_plan(own(tmp_path / "alone.json", plan), plan)
    assert alone.assumptions[-1] == (served.OWN, "request_s 0.003", "mine.log, 2026-11-30")
    assert run_fit.load(tmp_path / "mine.json").values == {"request_s": 3e-3}

"""Composition: every shipped choice fits its schema, and every mistake is one sentence that helps."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import conf
from conf.compose import compose, results_path
from conf.files import by_hf_id, choices
from conf.schema import GROUPS, SCHEMAS, SimulateConf


@pytest.mark.parametrize("group", GROUPS)
def test_every_shipped_file_fits_its_schema(group):
    """As composing does it, a merge into the structured schema, without the time Hydra takes for each of them."""
    for name in choices(group):
        content = OmegaConf.load(Path(conf.__file__).parent / group / f"{name}.yaml")
        bases = content.pop("defaults", [])
        assert all(base == "_self_" or base in choices(group) for base in bases), f"{group}/{name}"
        merged = OmegaConf.merge(OmegaConf.structured(SCHEMAS[group]), content)
        assert merged.name or bases, f"{group}/{name} has no name"


@pytest.mark.parametrize("name", choices("engine"))
def test_every_engine_composes_with_what_it_inherits(name):
    """A file is named after its engine and version, or after the scheduler that it puts into one of these."""
    found = compose([f"engine={name}"]).engine
    profile = f"{found.name}-{found.version}"
    assert profile == name or (profile in choices("engine") and found.scheduler == name.replace("-", "_"))
    assert found.profile.version == found.version


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "engine"])
def test_one_choice_of_each_group_composes(group):
    found = compose([f"{group}={choices(group)[-1]}"])
    assert isinstance(found, SimulateConf)
    assert getattr(found, group) != getattr(compose(), group)


def test_the_default_configuration_is_the_one_documented():
    found = compose()
    assert (found.model.name, found.workload.name, found.deployment.name) == ("llama-3.1-8b", "sharegpt", "single")
    assert (found.engine.name, found.engine.version) == ("vllm", "0.19.0")


MISTAKES = {
    # a misspelt key: the nearest of its group, of the groups, of all
    "workload.raet=4": "unknown key workload.raet: did you mean workload.rate?",
    "wrkload.rate=4": "unknown key wrkload: did you mean workload?",
    "max_num_seqs=4": "unknown key max_num_seqs: did you mean engine.max_num_seqs?",
    "deployment.tp=2": "unknown key deployment.tp: did you mean deployment.tensor_parallel?",
    "+engine.foo=1": "unknown key engine.foo: engine has name, version",
    "zzz=1": "unknown key zzz: `headway simulate --help` lists all keys.",
    # a misspelt choice
    "hardware=h100": "did you mean h100-sxm, h100-pcie or h800",
    "model=lama-3.1-8b": "model=lama-3.1-8b is not one of the .* did you mean llama-3.1-8b",
    "engine=vlm-0.19": "did you mean vllm-0.19.0",
    "model=lama3": "did you mean llama-3-8b, llama-3.1-8b or llama-3.2-1b",
    "model=llama3-8b": "did you mean llama-3-8b, llama-3.1-8b",
    "hardware=chip.csv": "hardware=chip.csv: there is no file",
    "deployment=tp3": "known are afd-2a1f, dcp8tp8, dp2ep2, dp8ep8, ep8, pcp2tp4, pd-1p1d",
    # a value of the wrong type
    "workload.rate=fast": "workload.rate wants a number, got 'fast'.",
    "engine.max_num_seqs=1.5": "engine.max_num_seqs wants a whole number, got '1.5'.",
    "engine.enforce_eager=perhaps": "engine.enforce_eager wants true or false, got 'perhaps'.",
    "percentiles=50": "percentiles wants a list",
    "seed=null": "seed wants a value, got null.",
    "model=null": "model wants the name of a choice or a path, got 'null'.",
    "~workload.rate": "workload.rate cannot be removed",
    "model.config.hidden_sise=3": r"write \+model.config.hidden_sise=VALUE to add it",
    # what cannot be read
    "workload.rate": "'workload.rate' is no KEY=VALUE: write workload.rate=VALUE",
    "model": "'model' is no KEY=VALUE: write model=NAME",
    "rate": "'rate' is no KEY=VALUE: write workload.rate=10",
    "=3": "'=3' is no KEY=VALUE",
    "--rate": "'--rate' is no KEY=VALUE",
    "workload.rate=[1": r"cannot read 'workload.rate=\[1'",
    "workload.rate=1,2": "add -m to run them all",
    # files
    "model=nowhere/config.json": "model=nowhere/config.json: there is no file",
    "workload=nowhere.csv": "workload=nowhere.csv: there is no file",
    "hardware=chip.yaml": "hardware=chip.yaml: there is no file",
    "workload=f/nope": "workload=f/nope: there is no file",
    "hardware=~nobody-of-this-name/x.yaml": "there is no user ~nobody-of-this-name",
    # a value that no choice of a group can be
    "workload=5": "workload wants the name of a choice or a path, got '5'",
    "workload=true": "workload wants the name of a choice or a path, got 'true'",
    "workload=": "workload wants the name of a choice or a path, got ''",
    "++workload=alpaca": "workload cannot be added, every configuration has one; write workload=alpaca",
    "workload@foo=alpaca": "workload@foo cannot be set like this",
    "deployment=glob(zz*)": r"deployment=glob\(zz\*\) fits none of afd-2a1f",
    # a single value for a mapping, a mapping for a single value
    "model.config=5": "model.config wants a mapping of keys, got a number",
    "hardware.nic=3": "hardware.nic wants a mapping of keys",
    "workload.name={a:1}": "workload.name wants text, got",
    # a predictor that is none, whether or not anything is priced
    "predictor=nonsense": "predictor must be auto, kernels, analytic or a folder .* got nonsense",
    "predictor=nowhere.json": "predictor must be auto, .* or .json file .* got nowhere.json, and there is no such file",
    "predictor=nowhere/mine": "got nowhere/mine, and there is no such folder",
    "predictor=kernal": r"got kernal \(did you mean kernels\?\)",
    "predictor=.": "got ., a folder without the card.json that it writes",
    # a key that the workload chosen does not read
    "workload.input_tokens=64": "workload.input_tokens does nothing here: it wants workload.lengths=.*, got profile",
    "++workload.zipf_exponent=2": "workload.zipf_exponent does nothing here",
    # references
    "workload.rate=${workload.foo}": "workload.rate refers to workload.foo, which is no key",
    "workload.rate=${workload.rate}": "workload.rate refers to itself",
    "workload.name='${oc.env:NOT_SET_ANYWHERE}'": "workload.name cannot be filled in: Environment variable",
    # results is a path as it stands
    "results=[a]": r"results wants the path of one folder, got '\[a\]'",
    "results={a:1}": "results wants the path of one folder",
    "results=${workload.name}": "results wants the path of one folder",
    "results=~nobody-of-this-name/x": "there is no user ~nobody-of-this-name",
    "seed=" + "1" * 5000: "seed has a number of over a thousand digits",
    "model=no-such/model": "no model of the HuggingFace id no-such/model",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_sentence(override):
    with pytest.raises(ValueError, match=MISTAKES[override]) as caught:
        compose([override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: x\nratee: 3\n", "unknown key workload.ratee: did you mean workload.rate"),
        ("name: x\nrate: fast\n", "workload.rate wants a number, got 'fast'"),
        ("name: [x\n", "broken YAML in line 2"),
        ("- a\n- b\n", "a mapping"),
        ("5\n", "a mapping"),
        ("rate: null\n", "workload.rate wants a value, got null"),
        ("a: &x [*x]\n", "does an alias hold itself"),
        ("a: " + "[" * 3000, "nesting depth"),
        ("rate: !!int x\n", "a value that cannot be read"),
        ("name: a\nname: b\n", "duplicate key name"),
        ("defaults: 5\n", "defaults must be a list"),
    ],
)
@pytest.mark.parametrize("by_path", [True, False])
def test_a_mistake_in_a_users_file_names_the_file(tmp_path, content, said, by_path):
    file = tmp_path / "workload" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(content)
    choice, folders = (f"workload={file}", ()) if by_path else ("workload=mine", [tmp_path])
    with pytest.raises(ValueError, match=said) as caught:
        compose([choice], folders)
    assert "mine.yaml" in str(caught.value)


def test_a_users_folder_adds_choices(tmp_path):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "nightly.yaml").write_text("defaults: [sharegpt, _self_]\nname: nightly\nrate: 3\n")
    found = compose(["workload=nightly"], [tmp_path])
    assert (found.workload.name, found.workload.rate, found.workload.profile) == ("nightly", 3.0, "sharegpt")


def test_a_missing_folder_is_said():
    with pytest.raises(ValueError, match="--config-dir wants a folder, there is none at nowhere"):
        compose([], ["nowhere"])


def test_a_config_json_and_its_folder_are_models(tmp_path):
    folder = tmp_path / "My model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for choice in (folder / "config.json", folder):
        found = compose([f"model={choice}"])
        assert (found.model.name, found.model.path) == ("My model", str(choice))
        assert found.model.config == {}


def test_a_trace_is_a_workload_with_its_own_times_and_lengths(tmp_path):
    trace = tmp_path / "day one.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    found = compose([f"workload={trace}", "workload.time_scale=0.5"])
    assert (found.workload.arrival, found.workload.lengths, found.workload.path) == ("trace", "trace", str(trace))
    assert found.workload.time_scale == 0.5


def test_a_chip_of_ones_own_is_completed_with_defaults(tmp_path):
    chip = tmp_path / "chip.yaml"
    chip.write_text(
        "name: Chip\npeak_flops_per_s: {bf16: 1e14}\nmemory_bytes: 32e9\nmemory_bytes_per_s: 1e12\ncompute_units: 10\n"
    )
    found = compose([f"hardware={chip}"])
    assert found.hardware.peak_flops_per_s == {"bf16": 1e14}
    assert found.hardware.matmul_efficiency["bf16"] > 0


def test_names_do_not_depend_on_case():
    assert compose(["hardware=H100-SXM"]) == compose(["hardware=h100-sxm"])


@pytest.mark.parametrize(
    ("hf_id", "name"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("NousResearch/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b-fp8"),
        ("qwen/qwen3-30b-a3b-instruct-2507", "qwen3-30b-a3b"),
    ],
)
def test_hf_ids_find_the_model_of_their_shape(hf_id, name):
    assert by_hf_id(hf_id) == name
    assert compose([f"model={hf_id}"]).model.name == name


def test_an_unknown_hf_id_gets_the_nearest():
    with pytest.raises(
        ValueError, match=re.escape("no model of the HuggingFace id Qwen/Qwen3-31B: did you mean qwen3-")
    ):
        by_hf_id("Qwen/Qwen3-31B")


def test_a_later_value_of_a_key_counts():
    assert compose(["seed=1", "seed=2"]).seed == 2


def test_keys_of_a_mapping_can_be_set_and_added():
    found = compose(["hardware.peak_flops_per_s.bf16=1e15", "+model.config.rope_theta=1e6"])
    assert found.hardware.peak_flops_per_s["bf16"] == 1e15
    assert found.model.config["rope_theta"] == 1e6


def test_a_users_file_that_is_no_text_is_named(tmp_path):
    file = tmp_path / "workload" / "mine.yaml"
    file.parent.mkdir()
    file.write_bytes(b"\xff\xfe\x00")
    for choice, folders in ((f"workload={file}", ()), ("workload=mine", [tmp_path])):
        with pytest.raises(ValueError, match="mine.yaml: is not text in UTF-8"):
            compose([choice], folders)


@pytest.mark.parametrize("bases", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "b"}])
def test_defaults_that_form_a_circle(tmp_path, bases):
    (tmp_path / "workload").mkdir()
    for name, base in bases.items():
        (tmp_path / "workload" / f"{name}.yaml").write_text(f"defaults: [{base}, _self_]\nname: {name}\n")
    with pytest.raises(ValueError, match=r"workload/[ab].yaml: its `defaults` lead back to it"):
        compose(["workload=a"], [tmp_path])


def test_a_broken_file_that_is_not_chosen_does_no_harm(tmp_path):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "broken.yaml").write_text("a: [")
    (tmp_path / "workload" / "good.yaml").write_text("name: good\n")
    assert compose(["workload=good"], [tmp_path]).workload.name == "good"
    with pytest.raises(ValueError, match="unknown key workload.raet"):
        compose(["workload=good", "workload.raet=1"], [tmp_path])


@pytest.mark.parametrize("group", GROUPS)
def test_a_folder_that_is_called_like_a_file(tmp_path, group):
    (tmp_path / "chip.yaml").mkdir()
    if group == "model":
        return  # a folder is a model's: its config.json is looked for when it is read
    with pytest.raises(ValueError, match="this is a folder"):
        compose([f"{group}={tmp_path / 'chip.yaml'}"])


def test_names_made_for_files_are_not_offered(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    with pytest.raises(ValueError, match="engine=vlm-0.19 is not one of") as caught:
        compose([f"deployment={tmp_path / 'mine.yaml'}", "engine=vlm-0.19"])
    with pytest.raises(ValueError, match="deployment=nope is not one of") as caught:
        compose([f"deployment={tmp_path / 'mine.yaml'}", "deployment=nope"])
    assert "mine-" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "a=b", "a,b", "it's", 'q"q', "back\\slash", "(x)", "~x", "-x", "1e5", "true"])
def test_results_is_a_path_as_it_stands(name):
    wanted = f"./{name}" if name.startswith("~") else name
    assert compose([f"results={wanted}"]).results == str(Path(wanted))
    assert results_path(wanted) == str(Path(wanted))


def test_no_results():
    assert [results_path(text) for text in ("", "null", "''")] == [None, None, None]
    assert results_path("'a b'") == "a b"


def test_a_folder_of_ones_own_may_have_any_name(tmp_path):
    folder = tmp_path / "it's, a=b"
    (folder / "workload").mkdir(parents=True)
    (folder / "workload" / "mine.yaml").write_text("name: mine\n")
    assert compose(["workload=mine"], [folder]).workload.name == "mine"


@pytest.mark.parametrize("choice", ["vllm-0.21.5", "vllm@0.21.5"])
def test_any_engine_version_takes_the_nearest_earlier_profile(choice):
    engine = compose([f"engine={choice}", "engine.max_num_seqs=32"]).engine
    assert (engine.version, engine.profile.version, engine.max_num_seqs) == ("0.21.5", "0.21.0", 32)
    with pytest.raises(ValueError, match="vllm"):
        compose(["engine=vlm-0.21.5"])

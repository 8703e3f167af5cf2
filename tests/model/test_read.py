"""Reading a config.json: keys, wrappers, bad input."""

import json
import math

import pytest

from sim.model.families import families, family
from sim.model.read import load_conf, load_model, model_from_conf, read_model
from sim.model.spec import ModelConf, MoE, RopeTable


LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def without(key, **changes):
    return {k: v for k, v in LLAMA.items() if k != key} | changes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without("num_hidden_layers"), r"^m: key 'num_hidden_layers' is missing in the config\.$"),
        (
            without("num_hidden_layers", num_hidden_layer=4),
            r"'num_hidden_layers' is missing in the config; 'num_hidden_layer' looks like a misspelling of it",
        ),
        (
            without("num_key_value_heads", num_key_value_head=2),
            r"unknown key 'num_key_value_head'; is 'num_key_value_heads' meant\?",
        ),
        (LLAMA | {"hidden_size": 250}, r"'hidden_size' 250 is no multiple of 'num_attention_heads' 8; give 'head_dim'"),
        (LLAMA | {"hidden_size": -1}, r"'hidden_size' must be between 1 and 1000000000, got -1"),
        (LLAMA | {"hidden_size": 256.0}, r"'hidden_size' must be a whole number, got 256\.0"),
        (LLAMA | {"hidden_size": math.nan}, r"'hidden_size' must be a whole number, got nan"),
        (LLAMA | {"hidden_size": "256"}, r"'hidden_size' must be a whole number, got '256'"),
        (LLAMA | {"hidden_size": True}, r"'hidden_size' must be a whole number, got True"),
        (LLAMA | {"num_hidden_layers": 0}, r"'num_hidden_layers' must be between 1 and 10000, got 0"),
        (LLAMA | {"num_hidden_layers": 10**7}, r"'num_hidden_layers' must be between 1 and 10000, got 10000000"),
        (LLAMA | {"num_key_value_heads": 3}, r"'num_key_value_heads' must divide the 8 'num_attention_heads', got 3"),
        (LLAMA | {"torch_dtype": "float7"}, r"'dtype' must be one of float32, .*, got 'float7'"),
        (LLAMA | {"tie_word_embeddings": "yes"}, r"'tie_word_embeddings' must be true or false, got 'yes'"),
        (LLAMA | {"layer_types": ["full_attention"]}, r"one entry for each of 4 layers, got 1"),
        (
            LLAMA | {"layer_types": ["conv"] * 4},
            r"'layer_types' must be of full_attention, sliding_attention, got 'conv'",
        ),
        (
            LLAMA | {"rope_parameters": {"partial_rotary_factor": "x"}},
            r"'partial_rotary_factor' must be a finite number",
        ),
        (LLAMA | {"layer_types": 4}, r"'layer_types' must be a list of str values, got 4"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": math.nan}}, r"'factor' must be a finite number above 0"),
        (LLAMA | {"rope_scaling": "yarn"}, r"'rope_parameters' must be a mapping|'rope_scaling' must be a mapping"),
        (LLAMA | {"model_type": "lama"}, r"model_type 'lama' is not known; the nearest known are .*llama"),
        (without("model_type"), r"the config has no model_type; known are .*llama, "),
        ([], r"must be a mapping of keys, got list"),
    ],
)
def test_bad_configs_are_told_in_one_sentence(config, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_model(config, "m")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?", ")"))


def test_an_architecture_stands_in_for_an_unknown_type():
    model = read_model(LLAMA | {"model_type": "my_llama", "architectures": ["LlamaForCausalLM"]}, "m")
    assert model.layers == read_model(LLAMA, "m").layers
    assert model.notes == ("model_type 'my_llama' is not known: read as llama, by its architecture",)


@pytest.mark.parametrize(
    ("model_type", "published", "changes"),
    [
        # sizes of StarCoder2-7B, Command R, InternLM2-7B, OLMo-2-7B as on their model pages
        ("starcoder2", 7_173_923_840, dict(hidden_size=4608, num_attention_heads=36, num_key_value_heads=4,
            intermediate_size=18432, vocab_size=49152)),
        ("cohere", 34_980_831_232, dict(hidden_size=8192, num_hidden_layers=40, num_attention_heads=64,
            num_key_value_heads=64, intermediate_size=22528, vocab_size=256000)),
        ("internlm2", 7_737_708_544, dict(num_key_value_heads=8, intermediate_size=14336, vocab_size=92544)),
        ("olmo2", 7_298_617_344, dict(num_key_value_heads=32, intermediate_size=11008, vocab_size=100352)),
    ],
)  # fmt: skip
def test_families_without_a_catalogue_entry(model_type, published, changes):
    shape = {"model_type": model_type, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    assert read_model(LLAMA | shape | changes, "m").params() == published


def test_more_active_experts_than_experts():
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 8}
    with pytest.raises(ValueError, match="'num_experts_per_tok' must be at most the 4 experts, got 8"):
        read_model(config, "m")


def test_other_unknown_keys_are_noted():
    model = read_model(LLAMA | {"my_new_trick": 3, "transformers_version": "4.40", "initializer_range": 0.02}, "m")
    assert model.notes == ("config keys not used: my_new_trick",)


def test_missing_dtype_and_length_are_noted():
    notes = read_model(without("torch_dtype"), "m").notes + read_model(without("max_position_embeddings"), "m").notes
    assert notes == (
        "the config names no dtype: bfloat16 taken",
        "the config names no trained length: 2048 tokens taken, as vLLM does",
    )


def test_nulls_are_absent():
    assert read_model(LLAMA | {"head_dim": None, "quantization_config": None}, "m") == read_model(LLAMA, "m")


def test_a_wrapper_gives_way_to_its_text_part():
    inner = without("torch_dtype")
    outer = {
        "model_type": "some_vl",
        "architectures": ["SomeForConditionalGeneration"],
        "torch_dtype": "float16",
        "tie_word_embeddings": True,
        "text_config": inner,
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "patch_size": 4},
    }
    model = read_model(outer, "m")
    assert (model.model_type, model.dtype, model.tied) == ("llama", "fp16", True)
    # per layer 4 x (64^2 + 64) + 2 x 64 x 128 + 128 + 64 + 4 x 64; patches 3 x 16 x 64 + 64; projection 64 x 256
    layer = 4 * (64 * 64 + 64) + 2 * 64 * 128 + 128 + 64 + 4 * 64
    assert model.tower_params == 2 * layer + 3 * 16 * 64 + 64 + 64 * 256
    assert any("images" in note for note in model.notes)
    plain = read_model({**outer, "vision_config": {"model_type": "x"}}, "m")
    assert plain.tower_params == 0
    assert any("nor are its weights" in note for note in plain.notes)
    bare = read_model({k: v for k, v in outer.items() if k != "vision_config"}, "m")
    assert any("towers" in note for note in bare.notes)


@pytest.mark.parametrize(
    ("scaling", "rows", "length"),
    [
        (None, 4096, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096, 4096),
        ({"type": "linear", "factor": 2.0}, 8192, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384, 16384),
        ({"type": "su", "original_max_position_embeddings": 1024, "long_factor": [1.0]}, 5120, 4096),
        ({"rope_type": "default", "mrope_section": [1, 2, 3]}, 16384, 4096),
    ],
)
def test_rope_tables_and_reach(scaling, rows, length):
    model = read_model(LLAMA | {"rope_scaling": scaling}, "m")
    assert model.ropes == (RopeTable(rows, 32),)
    assert model.max_model_len == length


def test_layers_with_their_own_rope():
    sections = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}
    assert read_model(LLAMA | {"rope_parameters": sections}, "m").ropes == (RopeTable(32768, 32), RopeTable(4096, 32))


def test_sliding_windows_by_key_and_by_layer():
    everywhere = read_model(LLAMA | {"sliding_window": 128}, "m")
    assert {layer.mixer.window for layer in everywhere.layers} == {128}
    kinds = ["sliding_attention", "full_attention"] * 2
    mixed = read_model(LLAMA | {"sliding_window": 128, "layer_types": kinds}, "m")
    assert [layer.mixer.window for layer in mixed.layers] == [128, None, 128, None]
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 128, "max_window_layers": 3}
    assert {layer.mixer.window for layer in read_model(qwen, "m").layers} == {None}
    sliding = read_model(qwen | {"use_sliding_window": True}, "m")
    assert [layer.mixer.window for layer in sliding.layers] == [None, None, None, 128]


def test_qwen_layers_without_experts():
    config = LLAMA | {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    model = read_model(config, "m")
    assert [isinstance(layer.ffn, MoE) for layer in model.layers] == [False, True, False, False]


def test_jamba_periods():
    layers = load_model("jamba-v0.1").layers
    assert [i for i, layer in enumerate(layers) if layer.mixer.shapes(1, 2.0)] == [4, 12, 20, 28]
    assert [i for i, layer in enumerate(layers) if isinstance(layer.ffn, MoE)] == list(range(1, 32, 2))


def test_nemotron_patterns_that_cannot_be():
    config = {
        "model_type": "nemotron_h",
        "hidden_size": 256,
        "num_attention_heads": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 64,
        "ssm_state_size": 16,
        "intermediate_size": 512,
        "vocab_size": 512,
        "max_position_embeddings": 64,
        "torch_dtype": "bfloat16",
    }
    assert len(read_model(config | {"hybrid_override_pattern": "M-M*-"}, "m").layers) == 3
    names = ["mamba", "mlp", "mamba", "attention", "mlp"]
    listed = read_model(config | {"layers_block_type": names}, "m")
    assert listed.layers == read_model(config | {"hybrid_override_pattern": "M-M*-"}, "m").layers
    for pattern in ("-M", "M--", "MX", ""):
        with pytest.raises(ValueError, match="'hybrid_override_pattern' must be blocks M or"):
            read_model(config | {"hybrid_override_pattern": pattern}, "m")
    with pytest.raises(ValueError, match="'layers_block_type' must be of mamba, attention, mlp, moe, got 'conv'"):
        read_model(config | {"layers_block_type": ["mamba", "conv"]}, "m")


def test_two_readers_for_one_type():
    with pytest.raises(ValueError, match="model_type 'llama' has two readers"):
        family("llama")(families()["opt"])


def test_files_and_folders(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder.name == "My-Model"
    (tmp_path / "mine.yaml").write_text("published_params: 1.0\nsource: me\npath: My-Model/config.json\n")
    ours = load_model(str(tmp_path / "mine.yaml"))
    assert (ours.name, ours.source, ours.layers) == ("mine", "me", by_file.layers)


def test_a_quantised_export_is_read_from_the_file_beside_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    model = load_model(str(tmp_path))
    assert (model.quantisation, model.kv_dtype) == ("modelopt FP8", "fp8")
    assert model.layers[0].linears(256, 1)[0].dtype == "fp8"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", r"broken JSON in line 1"),
        ("a.json", "[1]", r"must hold a mapping of keys, got list"),
        ("a.yaml", "a: [", r"broken YAML in line"),
        ("a.yaml", "", r"must hold a mapping of keys, got NoneType"),
        ("a.yaml", "5", r"must hold a mapping of keys, got int"),
        ("a.yaml", "&x\na: *x", r"does an alias hold itself"),
        ("a.yaml", "path: a.yaml", r"'path' must name a config.json"),
        ("a.yaml", "path: 5", r"'path' must be a text, got 5"),
        ("a.yaml", "config: 5", r"a model config must be a mapping of keys, got int"),
        ("a.json", "[" * 3000, r"nested too deeply"),
        ("a.json", '{"model_type": ' + "1" * 5000 + "}", r"a number of thousands of digits"),
        ("a.yaml", "confg: {}", r"unknown key 'confg'; is 'config' meant\?"),
        ("a.yaml", "name: x", r"x: a model needs 'config' \(keys of a config\.json\) or 'path'"),
    ],
)
def test_broken_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_model(str(tmp_path / name))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"there is no such file"):
        load_model(str(tmp_path / "config.json"))
    with pytest.raises(ValueError, match=r"the folder holds no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"is not text in UTF-8"):
        load_model(str(tmp_path / "b.json"))


def test_names_close_to_a_model():
    with pytest.raises(ValueError, match=r"'lama-3\.1-8b' is neither .* nearest names are llama-3\.1-8b"):
        load_model("lama-3.1-8b")
    with pytest.raises(ValueError, match=r"nearest names are .*qwen3-8b"):
        load_model("Qwen/Qwen3-9B")


def test_a_conf_may_set_types():
    conf = ModelConf(name="m", config=LLAMA, dtype="float16", quantization="fp8", kv_dtype="fp8_e4m3")
    model = model_from_conf(conf)
    assert (model.dtype, model.quantisation, model.kv_dtype) == ("fp16", "fp8", "fp8")
    with pytest.raises(ValueError, match=r"model\.kv_dtype must be auto or one of .*, got 'fp3'"):
        model_from_conf(ModelConf(name="m", config=LLAMA, kv_dtype="fp3"))
    with pytest.raises(ValueError, match=r"model\.quantization of an unquantised checkpoint must be one of .* 'awq'"):
        model_from_conf(ModelConf(name="m", config=LLAMA, quantization="awq"))
    with pytest.raises(ValueError, match=r"'model\.dtype' must be one of float32, .* got 'bf17'"):
        model_from_conf(ModelConf(name="m", config=LLAMA, dtype="bf17"))


def test_conf_of_a_file(tmp_path):
    (tmp_path / "x.yaml").write_text("hf_id: me/x\nconfig: {model_type: llama}\n")
    assert load_conf(tmp_path / "x.yaml") == ModelConf(name="x", hf_id="me/x", config={"model_type": "llama"})


def test_real_configs_are_read(shared):
    paths = sorted((shared / "data" / "llmservingsim" / "configs" / "model").rglob("*.json"))
    sizes = {path.stem: load_model(str(path)).params() / 1e9 for path in paths}
    assert sizes["Llama-3.1-8B"] == pytest.approx(8.03, rel=0.001)
    assert sizes["Qwen3-30B-A3B-Instruct-2507"] == pytest.approx(30.53, rel=0.001)
    assert sizes["Phi-mini-MoE-instruct"] == pytest.approx(7.65, rel=0.001)
    assert len(sizes) >= 6


def test_an_unknown_name_gets_the_five_nearest():
    with pytest.raises(ValueError, match="the nearest names are") as caught:
        load_model("llama-8")
    assert str(caught.value).count(",") == 4
    with pytest.raises(ValueError, match="'foo' is neither .*; `headway models` lists the catalogue"):
        load_model("foo")
    with pytest.raises(ValueError, match="model wants a name or a path, got ''"):
        load_model("")

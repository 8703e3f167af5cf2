"""Bytes per parameter of each scheme, and which modules it holds for."""

import pytest

from sim.model.quantisation import matches
from sim.model.read import load_model, read_model


BASE = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


def stored(section, layer=0, name="down"):
    model = read_model(BASE | {"quantization_config": section}, "m")
    found = next(x for x in model.layers[layer].linears(256, 1) if x.name == name)
    return found.dtype, found.bytes_per_param


def group(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}


@pytest.mark.parametrize(
    ("section", "dtype", "bytes_per_param"),
    [
        ({"quant_method": "fp8"}, "fp8", 1),
        # one float per 128 x 128 block
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1 + 4 / 16384),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 1),
        # half a byte, a 16-bit scale and a 4-bit zero point per 128
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 1),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}, "int4", 0.5 + 2.5 / 64),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": False}, "int4", 0.5 + 2 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 0.5 + 4 / 64),
        ({"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True}, "int4", 0.5 + (1 + 4 / 256) / 64),
        ({"quant_method": "int8"}, "int8", 1),
        ({"quant_algo": "FP8"}, "fp8", 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", 0.5 + 1 / 16),
        (group(num_bits=4, type="int", strategy="group", group_size=128), "int4", 0.5 + 2 / 128),
        (group(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False), "int4", 0.5 + 2.5 / 32),
        (group(num_bits=8, type="int", strategy="channel"), "int8", 1),
        (group(num_bits=8, type="float", strategy="tensor"), "fp8", 1),
        (group(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), "fp8", 1 + 4 / 16384),
        (group(num_bits=4, type="float", strategy="tensor_group", group_size=16), "fp4", 0.5 + 1 / 16),
        (group(num_bits=4, type="float", strategy="group", group_size=32), "fp4", 0.5 + 1 / 32),
    ],
)
def test_bytes_per_parameter(section, dtype, bytes_per_param):
    assert stored(section) == (dtype, pytest.approx(bytes_per_param, rel=1e-12))
    model = read_model(BASE | {"quantization_config": section}, "m")
    assert model.head_format.dtype == "bf16"
    assert model.kv_dtype == "bf16"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"quant_method": "magic"}, r"'quant_method' must be one of .*awq.*, got 'magic'"),
        ({}, r"'quant_method' must be one of"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, r"'bits' must be 4 or 8, got 3"),
        ({"quant_method": "gptq", "bits": 4}, r"key 'group_size' is missing"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"'weight_block_size' must be two sizes, got \[128\]"),
        ({"quant_method": "modelopt", "quant_algo": "FP2"}, r"'quant_algo' must be one of FP8, .*, got 'FP2'"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, r"'re:\(' is no regular expression"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, r"'ignore' must be a list of str values"),
        ({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 3}}, r"a cache of 3-bit float values is not known"),
        ("fp8", r"'quantization_config' must be a mapping, got 'fp8'"),
    ],
)
def test_bad_sections(section, message):
    with pytest.raises(ValueError, match=message):
        read_model(BASE | {"quantization_config": section}, "m")


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("model.layers.0.mlp.down_proj", True),
        ("model.layers.0.mlp", True),
        ("model.layers.1.mlp", False),
        ("model.layers.1", False),
        ("down_proj", True),
        ("proj", False),
        ("model.layers.*.mlp", True),
        ("*down_proj", True),
        ("*.self_attn*", False),
        ("model.language_model.layers.0.mlp*", True),
        ("language_model.model.layers.0.mlp.down_proj", True),
        ("re:.*mlp.*", True),
        ("re:.*self_attn.*", False),
        ("Linear", True),
    ],
)
def test_patterns(pattern, covered):
    assert matches(pattern, "model.layers.0.mlp.down_proj") is covered


def test_layers_left_out_differ_from_the_others():
    section = {"quant_method": "fp8", "ignored_layers": ["model.layers.1.mlp", "lm_head"]}
    assert [stored(section, i)[0] for i in range(3)] == ["fp8", "bf16", "fp8"]
    assert stored(section, 1, "qkv")[0] == "fp8"


def test_a_named_head_is_quantised():
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    section |= {"quantized_layers": {"lm_head": {"quant_algo": "FP8"}, "model.layers.2.mlp": {"quant_algo": "NVFP4"}}}
    model = read_model(BASE | {"quantization_config": section}, "m")
    assert model.head_format.dtype == "fp8"
    assert [stored(section, i)[0] for i in range(3)] == ["bf16", "bf16", "fp4"]


def test_specific_targets_come_first():
    groups = {
        "all": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
        "mlp": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
    }
    section = {"config_groups": groups, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert (stored(section)[0], stored(section, 0, "qkv")[0]) == ("int4", "fp8")
    assert read_model(BASE | {"quantization_config": section}, "m").kv_dtype == "fp8"


def test_only_the_experts_of_gpt_oss_are_in_four_bits():
    layer = load_model("gpt-oss-20b").layers[0]
    assert {x.dtype for x in layer.linears(2880, 1)} == {"bf16"}
    routed = layer.ffn.routed(2880, 1)
    assert (routed.dtype, routed.bytes_per_param) == ("fp4", 0.53125)


def test_only_the_experts_of_kimi_k2_5_are_in_four_bits():
    model = load_model("kimi-k2.5")
    for layer in (model.layers[0], model.layers[1]):
        assert {x.dtype for x in layer.linears(7168, 1)} == {"bf16"}
    assert model.layers[1].ffn.routed(7168, 1).dtype == "int4"

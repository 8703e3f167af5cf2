"""What a log calls its model, device and version, and what its release did by default."""

import pytest

from calibration.kv.case import KVCase, Reported
from calibration.kv.model import config_of, model_of, slug_of
from calibration.kv.setup import device_of, server_of, settings_said, version_of
from sim.units import GIB


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("teknium/OpenHermes-2.5-Mistral-7B", "mistral-7b"),
        ("mgoin/phi-2-super-marlin", "phi-2"),
        ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("01-ai/Yi-34B", "yi-34b"),
        ("google/gemma-2-27b-it", "gemma-2-27b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
    ],
)
def test_names(name, slug):
    assert slug_of(name) == slug


def test_a_name_that_no_rule_finds_is_no_guess():
    with pytest.raises(ValueError, match="the model 'org/Llama-9-7B' is neither in the catalogue nor"):
        slug_of("org/Llama-9-7B")


def test_every_shape_of_the_room_can_be_read():
    from calibration.kv.model import _configs

    for slug in _configs():
        assert model_of(f"org/{slug}", "bf16").params() > 1e8, slug


def test_a_shape_that_differs_in_a_few_keys():
    assert config_of("granite-3.1-8b")["hidden_size"] == 4096
    assert config_of("granite-3.1-8b")["vocab_size"] == config_of("granite-3.1-2b")["vocab_size"]


@pytest.mark.parametrize(
    ("name", "dtype", "bytes_per_parameter"),
    [
        ("org/Qwen2.5-7B", "bf16", 2.0),
        ("org/Qwen2.5-7B", "bf16;kv=fp8", 2.0),
        ("org/Qwen2.5-7B", "bf16;w=fp8", 1.0),
        ("org/Qwen2.5-7B-quantized.w8a8", "bf16;w=compressed-tensors", 1.0),
        # a 16-bit scale per 128 inputs: half a byte and 2 / 128
        ("org/Qwen2.5-7B-quantized.w4a16", "fp16", 0.515625),
        ("org/Qwen2.5-7B-NVFP4", "nvfp4;kv=nvfp4", 0.5625),
        ("org/Qwen2.5-7B", "fp32", 4.0),
    ],
)
def test_how_matrices_are_stored(name, dtype, bytes_per_parameter):
    model = model_of(name, dtype)
    up = next(matrix for matrix in model.layers[0].linears(model.hidden, 1) if "up" in matrix.name)
    assert up.bytes_per_param == pytest.approx(bytes_per_parameter)


def test_experts_of_a_checkpoint_whose_attention_stays():
    model = model_of("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "")
    formats = {matrix.name: matrix.bytes_per_param for matrix in model.layers[0].linears(model.hidden, 1)}
    assert formats["o"] == 2.0 and model.layers[0].ffn.routed(model.hidden, 1).bytes_per_param == 1.0


def test_a_repacked_checkpoint_is_stored_as_its_name_says():
    plain, packed = model_of("deepseek-ai/DeepSeek-R1-0528", "fp8"), model_of("nvidia/DeepSeek-R1-FP4", "nvfp4")
    assert plain.quantisation == "fp8" and packed.quantisation == "modelopt NVFP4"
    assert model_of("openai/gpt-oss-20b", "mxfp4").quantisation == "mxfp4"


def test_a_server_with_a_longer_context_has_the_positions_for_it():
    log = case("0.19.0", model="Qwen/Qwen3-4B-Instruct-2507", max_model_len="262144")
    told = KVCase(**{**vars(log), "reported": {"num_gpu_blocks": Reported(10, 0, "blocks")}})
    assert server_of(told, {}).model.max_model_len == 262144
    # a log of a start that may have failed for that very reason does not say so
    assert server_of(log, {}).model.max_model_len < 262144


def test_a_reduced_model_keeps_its_shape():
    model = model_of("deepseek-ai/DeepSeek-V3.2-Exp-16L64E (reduced)", "fp8 block 128x128")
    assert len(model.layers) == 16 and model.layers[-1].ffn.experts == 64 and model.hidden == 7168


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        ("H100-80GB (79.19 GiB)", "H100", 79.19),
        ("2x RTX PRO 6000 Blackwell", "RTX PRO 6000", 101976440832 / GIB),
        ("RTX PRO 6000 Blackwell (101976440832 B)", "RTX PRO 6000", 101976440832 / GIB),
        # not in the catalogue: another card with the memory of this one, 0.98 of a nominal size
        ("2 GPUs of 31.37 GiB (RTX 5090 class)", "RTX 4090", 31.37),
        ("RTX 5090 Laptop 24GB", "RTX 4090", 24 * 0.98),
        ("H200", "H200", 139.8),
    ],
)
def test_devices(text, name, gib):
    device, _ = device_of(text)
    assert name in device.name and device.memory_bytes / GIB == pytest.approx(gib, abs=0.01)
    with pytest.raises(ValueError, match="the device 'unstated' is not known"):
        device_of("unstated")


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ("0.19.0", "0.19.0"),
        ("0.11-era (0.11.0 for Mistral row)", "0.11.0"),
        ("0.2.4 -> 0.2.5", "0.2.5"),
        ("0.7.x V1 (2025-01)", "0.7.0"),
        ("2025-07 V1", "0.9.2"),
        ("2026-02-17", "0.15.1"),
        ("2020-01", "0.2.4"),
    ],
)
def test_versions(words, version):
    assert version_of(KVCase("A", "", "m", "h", engine_version=words)) == version


def case(version, **fields):
    known = {"model": "meta-llama/Llama-3.1-8B", "hardware": "RTX 3090 (23.58 GiB)", "engine_version": version}
    return KVCase(**({"name": "A", "source": "s"} | known | fields))


def test_limits_of_old_releases():
    """V0 put the longest prompt into one batch, and divided it above 32,768 tokens since 0.5."""
    engine = server_of(case("0.6.4", max_model_len="20000"), {}).engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (256, 20000)
    assert server_of(case("0.6.4", max_model_len="35000"), {}).engine.max_num_batched_tokens == 512
    assert server_of(case("0.4.1", max_model_len="35000"), {}).engine.max_num_batched_tokens == 35000
    assert server_of(case("0.4.1", max_model_len="1000"), {}).engine.max_num_batched_tokens == 2048
    assert server_of(case("0.6.4", max_num_seqs="8"), {}).engine.max_num_seqs == 8
    # the two engines of one release
    first, second = (server_of(case(words), {}).engine for words in ("0.8.5 V0", "0.8.5"))
    assert first.max_num_seqs == 256 and second.max_num_seqs is None
    # profiles hold from 0.10 on
    assert server_of(case("0.10.2"), {}).engine.profile.version == "0.10.2"


def test_what_a_source_states_once_holds_for_its_other_logs():
    quoting, silent = case("0.28.0", quote="block_size 16; max_num_batched_tokens 2048"), case("0.28.0")
    said = settings_said([quoting, silent])
    assert said == {"s": {"block_size": 16, "max_num_batched_tokens": 2048}}
    assert server_of(silent, said["s"]).engine.max_num_batched_tokens == 2048
    other = case("0.28.0", quote="max_num_batched_tokens 4096")
    assert settings_said([quoting, other]) == {"s": {"block_size": 16}}


def test_parallel_sizes_and_block_sizes_in_words():
    blocks = {"num_gpu_blocks": Reported(10, 0, "blocks of 64")}
    server = server_of(case("0.28.0", quote="DP=2 EP on: summed", reported=blocks), {})
    assert (server.deployment.data_parallel, server.deployment.expert_parallel) == (2, True)
    assert server.engine.block_size == 64
    with pytest.raises(ValueError, match="does not tell over how many devices"):
        server_of(case("0.28.0", tensor_parallel=None), {})

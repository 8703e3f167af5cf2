"""Every shipped model: its published size, its cache, its notes."""

import pytest
import yaml

from sim.model.read import CATALOGUE, catalogue, load_conf, load_model, model_from_conf
from sim.model.spec import ModelConf


# its makers print whole billions only; the language model alone is 34.66B
ROUNDED = {"qwen3.5-35b-a3b": 0.5e9}

NAMES = sorted(catalogue())


def test_the_catalogue_is_there():
    assert len(NAMES) >= 60
    asked = {
        "llama-3.1-8b", "llama-3.3-70b", "llama-3.1-405b", "llama-3.2-1b", "llama-2-7b", "llama-2-70b", "llama-4-scout",
        "qwen2.5-7b", "qwen2.5-72b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-next-80b-a3b",
        "qwen3.5-27b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3", "deepseek-r1", "gpt-oss-20b", "gpt-oss-120b",
        "gemma-2-9b", "gemma-2-27b", "gemma-3-12b", "gemma-3-27b", "phi-4", "kimi-k2.5", "glm-5", "step3-316b",
        "gpt3-7b", "gpt3-13b", "gpt3-30b", "gpt3-175b", "opt-13b", "llama-7b", "llama-30b", "mistral-7b",
    }  # fmt: skip
    assert asked <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_as_published(name):
    conf, model = load_conf(catalogue()[name]), load_model(name)
    assert conf.name == model.name == name
    assert conf.source and model.source == conf.source
    assert model.params() == pytest.approx(conf.published_params, rel=0.005, abs=ROUNDED.get(name, 0))
    if conf.published_active_params is None:
        assert not model.is_moe or name.startswith("nemotron")
    else:
        # makers differ in what they count as active (the embedding, the head) and print one or two digits
        assert model.active_params() == pytest.approx(conf.published_active_params, rel=0.1, abs=0.6e9)
    assert not [note for note in model.notes if "not used" in note or "names no dtype" in note]


@pytest.mark.parametrize("name", NAMES)
def test_files_hold_plain_keys(name):
    values = yaml.safe_load((CATALOGUE / f"{name}.yaml").read_text(encoding="utf-8"))
    assert set(values) <= {"name", "hf_id", "source", "published_params", "published_active_params", "config"}
    assert model_from_conf(ModelConf(**values)) == load_model(name)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),
        ("llama-3.3-70b", 80 * 2 * 8 * 128 * 2),
        ("qwen2.5-7b", 28 * 2 * 4 * 128 * 2),
        ("qwen3-8b", 36 * 2 * 8 * 128 * 2),
        # MHA: 32 heads
        ("llama-2-7b", 32 * 2 * 32 * 128 * 2),
        # MLA: 27 layers x 576 elements = 31,104 bytes, as vLLM logged for this shape at TP 1 and TP 2
        ("deepseek-v2-lite", 31_104),
        ("deepseek-v3", 61 * 576 * 2),
        # only every fourth layer keeps a cache that grows
        ("qwen3-next-80b-a3b", 12 * 2 * 2 * 256 * 2),
        ("step3-316b", 61 * 2 * 256 * 2),
    ],
)
def test_cache_bytes_per_token(name, bytes_per_token):
    model = load_model(name)
    assert model.kv_bytes_per_token() == bytes_per_token
    assert model.kv_bytes_per_token(kv_bytes_per_element=1.0) == bytes_per_token / 2


def test_cache_under_tensor_parallelism():
    assert load_model("llama-3.1-8b").kv_bytes_per_token(4) == 32 * 2 * 2 * 128 * 2
    assert load_model("llama-3.1-8b").kv_bytes_per_token(16) == 32 * 2 * 1 * 128 * 2
    assert load_model("deepseek-v3").kv_bytes_per_token(8) == load_model("deepseek-v3").kv_bytes_per_token()


def test_states_of_hybrids():
    # 36 layers of 1,097,728 bytes
    assert load_model("qwen3-next-80b-a3b").state_bytes_per_sequence() == 36 * 1_097_728
    assert load_model("llama-3.1-8b").state_bytes_per_sequence() == 0


def test_names_of_the_hub_are_names_too():
    assert load_model("Qwen/Qwen3-8B") == load_model("qwen3-8b")


def test_groups_of_equal_layers():
    groups = list(load_model("deepseek-v3").groups())
    assert [count for _, count in groups] == [3, 58]
    assert [count for _, count in load_model("gpt-oss-20b").groups()] == [12, 12]
    assert [count for _, count in load_model("llama-3.1-405b").groups()] == [126]


def test_what_is_left_out_is_noted():
    assert any("images" in note and "421M" in note for note in load_model("gemma-3-12b").notes)
    assert any("draft layers" in note for note in load_model("deepseek-v3").notes)
    assert any("29 layers" in note for note in load_model("nemotron-3-nano-30b-a3b").notes)
    assert load_model("llama-3.1-8b").notes == ()


def test_draft_layers():
    v3 = load_model("deepseek-v3")
    # one MLA and MoE layer with its joining projection; the checkpoint's 14B count embedding and head again
    assert v3.draft_params() == pytest.approx(11.6e9, rel=0.005)
    assert v3.draft_params() + 2 * v3.vocab * v3.hidden == pytest.approx(14e9, rel=0.05)
    assert len(load_model("minimax-m2.5").draft_layers) == 3

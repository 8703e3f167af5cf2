"""One layer of each kind, its matrices, cache and attention shapes worked out by hand."""

import pytest

from sim.model.read import load_model
from sim.model.spec import (
    NO_FEEDFORWARD,
    Attention,
    CacheSpec,
    Dense,
    GatedDelta,
    HeadShape,
    Layer,
    Linear,
    Mamba2,
    MoE,
)


def shapes_of(linears):
    return {x.name: (x.k, x.n, x.bias) for x in linears}


def test_grouped_query_layer_of_llama_3_1_8b():
    layer = load_model("llama-3.1-8b").layers[0]
    # qkv: 32 query and 2 x 8 KV heads of 128; gate and up of 14336
    assert shapes_of(layer.linears(4096, 1)) == {
        "qkv": (4096, 6144, False),
        "o": (4096, 4096, False),
        "gate_up": (4096, 28672, False),
        "down": (14336, 4096, False),
    }
    # TP 16 is more than 8 KV heads: one copy on each rank, (2 + 1 + 1) x 128 columns
    assert shapes_of(layer.linears(4096, 16))["qkv"] == (4096, 512, False)
    assert layer.params(4096) == 4096 * 6144 + 4096**2 + 3 * 4096 * 14336 + 2 * 4096
    # keys and values of 8 heads of 128 in 2 bytes: 4096 B; one head at TP 8 and at TP 16: 512 B
    assert layer.mixer.cache(1, 2.0) == CacheSpec("full", 8, 128, 4096.0)
    assert layer.mixer.cache(8, 2.0).bytes_per_token == layer.mixer.cache(16, 2.0).bytes_per_token == 512
    assert layer.mixer.shapes(4, 1.0) == (HeadShape(8, 2, 128, 128, 256, 512.0),)


def test_latent_attention_layer_of_deepseek_v3():
    layer = load_model("deepseek-v3").layers[3]
    # 16 of 128 heads; latent 512 + rotary 64; query 16 x (128 + 64); kv_b 16 x (128 + 128); shared expert 2048 / 8
    assert shapes_of(layer.linears(7168, 8)) == {
        "qkv_a": (7168, 1536 + 576, False),
        "q_b": (1536, 3072, False),
        "kv_b": (512, 4096, False),
        "o": (2048, 7168, False),
        "router": (7168, 256, False),
        "shared_gate_up": (7168, 512, False),
        "shared_down": (256, 7168, False),
    }
    # one latent of 576 elements, the same on every rank
    assert layer.mixer.cache(1, 2.0) == layer.mixer.cache(8, 2.0) == CacheSpec("mla", 1, 576, 1152.0)
    # decode in the latent: 576 for scores, 512 for values; prefill expanded: 192 + 128
    assert layer.mixer.shapes(8, 2.0) == (HeadShape(16, 1, 576, 512, 320, 1152.0),)
    formats = {x.name: x.dtype for x in layer.linears(7168, 8)}
    assert formats["qkv_a"] == formats["shared_down"] == "fp8"
    assert formats["router"] == "bf16"


def test_latent_attention_without_query_rank():
    layer = load_model("deepseek-v2-lite").layers[0]
    assert shapes_of(layer.mixer.linears(2048, 1)) == {
        "q": (2048, 16 * 192, False),
        "kv_a": (2048, 576, False),
        "kv_b": (512, 16 * 256, False),
        "o": (2048, 2048, False),
    }


def test_sparse_latent_attention_scans_with_its_indexer():
    mixer = load_model("deepseek-v3.2").layers[0].mixer
    assert (
        shapes_of(mixer.linears(7168, 8)).items()
        >= {
            "index_q": (1536, 64 * 128, False),
            "index_k": (7168, 128, False),
            "index_weights": (7168, 64, False),
        }.items()
    )
    # index keys: 128 bytes and one float scale; in one byte per element: 512 + 4 scales of 4 B + 64 rotary in 16 bits
    assert mixer.cache(8, 2.0).bytes_per_token == 1152 + 132
    assert mixer.cache(8, 1.0).bytes_per_token == 656 + 132
    latent, scan = mixer.shapes(8, 2.0)
    assert (latent.keys, latent.kv_bytes_per_token) == (2048, 1152)
    assert scan == HeadShape(64, 1, 128, 0, 128, 132.0)


def test_routed_layer_of_qwen3_30b():
    layer = load_model("qwen3-30b-a3b").layers[0]
    # head_dim 128 although 2048 / 32 = 64
    assert shapes_of(layer.linears(2048, 2)) == {
        "qkv": (2048, (32 + 8) * 128 // 2, False),
        "o": (2048, 2048, False),
        "router": (2048, 128, False),
    }
    split = layer.ffn.routed(2048, 2)
    assert (split.experts, split.local_experts, split.top_k, split.inter, split.matrices) == (128, 128, 8, 384, 3)
    whole = layer.ffn.routed(2048, 2, 2)
    assert (whole.local_experts, whole.inter) == (64, 768)
    # both hold half of 128 x 3 x 2048 x 768 parameters, in 2 bytes
    assert split.params == whole.params == 64 * 3 * 2048 * 768
    assert split.weight_bytes == 2 * split.params
    assert layer.params(2048, active=True) == layer.params(2048) - 120 * 3 * 2048 * 768


def test_experts_that_do_not_divide_fill_the_first_rank():
    routed = MoE(experts=10, top_k=2, inter=64).routed(32, tensor_parallel=4, expert_parallel=4)
    assert (routed.local_experts, routed.inter) == (3, 64)


def test_experts_with_biases_and_in_a_latent_space():
    # up and gate bias 2 x 64, down bias 32
    assert MoE(4, 2, 64, bias=True).routed(32, 1).expert_params == 3 * 32 * 64 + 2 * 64 + 32
    assert MoE(4, 2, 64, gated=False, bias=True).routed(32, 1).expert_params == 2 * 32 * 64 + 64 + 32
    latent = MoE(4, 2, 64, latent=16)
    assert latent.routed(32, 1).hidden == 16
    assert (
        shapes_of(latent.linears(32, 2)).items()
        >= {"latent_down": (32, 16, False), "latent_up": (16, 32, False)}.items()
    )


def test_multi_matrix_factorised_attention_of_step3():
    model = load_model("step3-316b")
    mixer = model.layers[0].mixer
    # query of rank 2048 and one KV head of 256 on every rank, the up-projection by heads
    assert shapes_of(mixer.linears(7168, 8)) == {
        "qkv_a": (7168, 2048 + 512, False),
        "q_b": (2048, 8 * 256, False),
        "o": (8 * 256, 7168, False),
    }
    assert mixer.cache(8, 2.0).bytes_per_token == 2 * 256 * 2
    # the router's layers are 4 to 59
    assert [i for i, layer in enumerate(model.layers) if isinstance(layer.ffn, MoE)] == list(range(4, 60))


def test_output_gate_doubles_the_query():
    mixer = load_model("qwen3-next-80b-a3b").layers[3].mixer
    assert shapes_of(mixer.linears(2048, 1)) == {
        "qkv": (2048, 2 * 16 * 256 + 2 * 2 * 256, False),
        "o": (4096, 2048, False),
    }


def test_linear_attention_state_of_qwen3_next():
    # reported by vLLM for this model: 1,097,728 bytes at TP 1, 274,432 at TP 4
    mixer = load_model("qwen3-next-80b-a3b").layers[0].mixer
    assert mixer.cache(1, 2.0) == CacheSpec("mamba", state_bytes=1_097_728)
    assert mixer.cache(4, 2.0).state_bytes == 274_432
    # qkvz: (16 + 16) x 128 query and key, (32 + 32) x 128 value and gate; ba: 2 x 32
    assert shapes_of(mixer.linears(2048, 1)) == {
        "qkvz": (2048, 12288, False),
        "ba": (2048, 64, False),
        "out": (4096, 2048, False),
    }
    # convolution 2 x 4 x 8192, and 8 FLOPs for each of 32 x 128 x 128 state elements
    assert mixer.flops_per_token(1) == 65536 + 8 * 524288
    assert mixer.shapes(1, 2.0) == ()


def test_linear_attention_state_in_its_own_type():
    # Qwen3.5 keeps the state in float32, the convolution's inputs in bfloat16: (2 x 16 + 32) x 128 channels x 3 x 2 B
    mixer = load_model("qwen3.5-35b-a3b").layers[0].mixer
    assert mixer.cache(1, 2.0).state_bytes == 8192 * 3 * 2 + 32 * 128 * 128 * 4


def test_mamba2_by_hand():
    mixer = Mamba2(4, 2.0, 4.0, True, heads=8, head_dim=64, groups=2, state=16)
    # channels: 8 x 64 + 2 x 2 x 16 = 576; in: gate 512, channels 576, dt 8
    assert shapes_of(mixer.linears(256, 1)) == {"in": (256, 1096, False), "out": (512, 256, False)}
    assert mixer.cache(1, 2.0).state_bytes == 3 * 576 * 2 + 8 * 64 * 16 * 4
    assert mixer.flops_per_token(1) == 2 * 4 * 576 + 6 * 8192
    # 4 ranks share 2 groups: each has a copy of one
    assert mixer.conv_channels(4) == 2 * 64 + 2 * 1 * 16
    # conv (4 + 1) x 576, A, D and dt bias 3 x 8 in float32, gated norm 512
    assert [(x.name, x.params, x.bytes_per_param) for x in mixer.vectors(256, 1)] == [
        ("conv", 2880, 2.0),
        ("a_d_dt", 24, 4.0),
        ("gate_norm", 512, 2.0),
    ]


def test_gated_delta_needs_its_heads_divided():
    mixer = GatedDelta(4, 2.0, 2.0, False, k_heads=16, v_heads=32, k_dim=128, v_dim=128)
    with pytest.raises(ValueError, match="does not divide the 16 linear-attention key heads"):
        mixer.linears(2048, 32)


def test_windows_and_chunks():
    gemma = load_model("gemma-3-12b").layers
    assert [layer.mixer.window for layer in gemma[:7]] == [1024] * 5 + [None, 1024]
    assert sum(layer.mixer.window is None for layer in gemma) == 8
    assert gemma[0].mixer.cache(1, 2.0) == CacheSpec("swa", 8, 256, 8192.0, window=1024)
    scout = load_model("llama-4-scout").layers
    assert [layer.mixer.chunk for layer in scout[:5]] == [8192, 8192, 8192, None, 8192]
    assert scout[0].mixer.cache(4, 2.0) == CacheSpec("chunk", 2, 128, 1024.0, window=8192)
    assert scout[0].mixer.shapes(1, 2.0)[0].chunked
    assert not gemma[0].mixer.shapes(1, 2.0)[0].chunked


def test_biases_sinks_and_norms_are_vectors_not_products():
    layer = load_model("gpt-oss-20b").layers[0]
    assert shapes_of(layer.mixer.linears(2880, 1)) == {"qkv": (2880, 5120, True), "o": (4096, 2880, True)}
    assert [(x.name, x.params) for x in layer.vectors(2880, 2)] == [
        ("norms", 5760),
        ("sinks", 32),
        ("router_bias", 32),
    ]
    assert Linear("x", 3, 5, bias=True).params == 20
    assert Linear("x", 3, 5, "fp8", 1.0, True).weight_bytes == 15 + 10


def test_value_heads_of_another_size():
    mixer = Attention(heads=4, kv_heads=2, head_dim=192, v_dim=128)
    assert shapes_of(mixer.linears(512, 1)) == {"qkv": (512, 4 * 192 + 2 * 320, False), "o": (512, 512, False)}
    assert mixer.cache(1, 2.0).bytes_per_token == 2 * 320 * 2
    assert mixer.shapes(1, 2.0)[0].prefill_dim == 320


def test_no_feed_forward():
    layer = Layer(Attention(4, 4, 64), NO_FEEDFORWARD, norms=1)
    assert shapes_of(layer.linears(256, 1)) == {"qkv": (256, 768, False), "o": (256, 256, False)}
    assert NO_FEEDFORWARD.routed(256, 1) is None
    assert layer.params(256) == 4 * 256 * 256 + 256


def test_ungated_mlp():
    assert shapes_of(Dense(512, gated=False, bias=True).linears(128, 4)) == {
        "up": (128, 128, True),
        "down": (128, 128, True),
    }

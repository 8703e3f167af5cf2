"""From a model to plan arrays: what is counted, grouped, padded and refused."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from sim.deployment.exchange import library
from sim.deployment.formats import FORMATS, format_code, format_of
from sim.deployment.lower import attention_family, attention_flops_per_s, lower
from sim.deployment.plan import ELEMENTWISE_KINDS, ELEMENTWISE_SLOTS, GEMM_SLOTS, UNLIMITED, trimmed
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf
from sim.model.read import catalogue, load_model
from sim.model.spec import Attention, Dense, Layer, ModelSpec


@pytest.fixture(scope="module")
def h100() -> DeviceConf:
    return load_device("h100-sxm")


@pytest.fixture(scope="module")
def llama(h100) -> ModelSpec:
    return load_model("llama-3.1-8b")


def products(plan):
    used = plan.gemm.count > 0
    columns = (plan.gemm.n, plan.gemm.k, plan.gemm.count, plan.gemm.emitting)
    return {tuple(row) for row in np.stack([column[used] for column in columns], axis=-1)}


def test_products_of_a_dense_model(llama, h100):
    # 32 layers: qkv (32 + 2 x 8) x 128 = 6144, o, gate and up of 14336, down; head on emitting rows
    assert products(lower(llama, h100)) == {
        (6144, 4096, 32, 0),
        (4096, 4096, 32, 0),
        (28672, 4096, 32, 0),
        (4096, 14336, 32, 0),
        (128256, 4096, 1, 1),
    }


def test_products_of_a_quarter(llama, h100):
    assert products(lower(llama, h100, tensor_parallel=4)) == {
        (1536, 4096, 32, 0),
        (4096, 1024, 32, 0),
        (7168, 4096, 32, 0),
        (4096, 3584, 32, 0),
        (32064, 4096, 1, 1),
    }


def test_rates(llama, h100):
    plan = lower(llama, h100)
    assert plan.gemm.flops_per_s[0] == pytest.approx(h100.peak_flops_per_s["bf16"] * h100.matmul_efficiency["bf16"])
    assert plan.device.memory_bytes_per_s == pytest.approx(h100.memory_bytes_per_s * h100.memory_efficiency)
    assert plan.attention.flops_per_s[0] == attention_flops_per_s(h100) == pytest.approx(588e12, rel=1e-4)


def test_elementwise_kernels(llama, h100):
    slots = lower(llama, h100).elementwise
    found = {size: count for size, count in zip(slots.bytes_per_token, slots.count, strict=True) if count}
    hidden = 4096 * 2
    assert found == {
        2 * hidden: 1,  # embedding: read and written
        4 * hidden: 65,  # two norms a layer and the last, with the residual: two read, two written
        2 * (32 + 8) * 128 * 2: 32,  # rotary embedding of queries and keys
        2 * 2 * 8 * 128 * 2: 32,  # keys and values into the cache
        3 * 14336 * 2: 32,  # activation: gate and up read, one written
    }


def test_what_elementwise_kernels_do(h100):
    slots = lower(load_model("qwen3-30b-a3b"), h100).elementwise
    kinds = [ELEMENTWISE_KINDS[int(kind)] for kind, count in zip(slots.kind, slots.count, strict=True) if count]
    # rotary embedding and norm of the heads move the same bytes, and stay apart
    assert sorted(kinds) == sorted(["embedding", "norm", "rotary", "cache_write", "qk_norm", "add"])


def test_launches_by_hand(llama, h100):
    # 129 products, 162 elementwise kernels, 2 per attention layer, 10 of the sampler
    device = lower(llama, h100).device
    eager = (129 + 162 + 64 + 10) * h100.kernel_launch_s
    pieces = 33 * h100.graph_launch_s + 64 * h100.kernel_launch_s
    assert device.launch_s == pytest.approx([eager, pieces, h100.graph_launch_s])
    assert device.gap_s == pytest.approx([h100.kernel_launch_s, h100.graph_launch_s, h100.graph_launch_s])


def test_kinds_of_attention(h100):
    slots = lower(load_model("gemma-3-27b"), h100).attention
    # five sliding layers to a full one: 52 and 10 of 62
    assert sorted(zip(slots.count, slots.window, strict=True))[-2:] == [(10.0, UNLIMITED), (52.0, 1024.0)]
    chunked = lower(load_model("llama-4-scout"), h100, 8).attention
    assert [(c, w, k) for c, w, k in zip(chunked.count, chunked.window, chunked.chunked, strict=True) if k] == [
        (36.0, 8192.0, 1.0)
    ]


def test_latent_attention_has_a_kernel_of_its_own(h100):
    slots = lower(load_model("deepseek-v3"), h100, 8, 8).attention
    assert slots.count[0] == 61
    assert (slots.q_heads[0], slots.kv_heads[0], slots.joint[0], slots.packed[0]) == (16, 1, 0, 0)
    # a prior token is expanded through kv_b: 2 x 512 x 16 x (128 + 128)
    assert slots.context_flops[0] == 2 * 512 * 16 * 256


def test_sparse_attention_reads_its_best_keys_and_scans_the_rest(h100):
    slots = lower(load_model("deepseek-v3.2"), h100, 8, 8).attention
    assert [(c, w) for c, w in zip(slots.count, slots.window, strict=True) if c] == [(61, 2048), (61, UNLIMITED)]


def test_experts_of_a_rank(h100):
    model = load_model("qwen3-30b-a3b")
    sliced, whole = lower(model, h100, 4).moe, lower(model, h100, 4, 4).moe
    assert (sliced.count[0], sliced.local_experts[0], sliced.inter[0]) == (48, 128, 192)
    assert (whole.count[0], whole.local_experts[0], whole.inter[0]) == (48, 32, 768)


def test_states(h100):
    slots = lower(load_model("mamba2-2.7b"), h100).recurrent
    assert slots.count[0] == 64
    assert slots.state_bytes[0] == load_model("mamba2-2.7b").layers[0].mixer.cache(1, 2.0).state_bytes
    # 80 heads of 64 with 128 elements per channel; the convolution runs over them and over B and C of one group.
    assert (slots.elements[0], slots.channels[0], slots.delta[0]) == (80 * 64 * 128, 80 * 64 + 2 * 128, 0.0)
    delta = lower(load_model("qwen3-next-80b-a3b"), h100, 2).recurrent
    # 32 value heads of 128 and 16 key heads of 128 on two ranks
    assert (delta.elements[0], delta.channels[0], delta.delta[0]) == (16 * 128 * 128, (2 * 8 + 16) * 128, 1.0)


def test_collectives(llama, h100):
    alone, four = (lower(llama, h100, ranks).collective for ranks in (1, 4))
    assert alone.count.sum() == 0
    # after each mixer, each feed-forward part and the embedding; then the logits of emitting rows
    assert list(four.count[:2]) == [65, 1]
    assert list(four.bytes_per_token[:2]) == [4096 * 2, 128256 * 2]
    assert list(four.emitting[:2]) == [0, 1]
    assert four.factor[0] == pytest.approx(2 * 3 / 4)


def test_quantised_weights(h100):
    plan = lower(load_model("llama-3.1-8b-fp8"), h100)
    quantised = plan.gemm.weight_bytes_per_param < 1.5
    assert quantised.sum() == 4  # the head stays in 16 bits
    assert np.all(plan.gemm.input_bytes[quantised] == 1)
    assert np.all(plan.gemm.flops_per_s[quantised] > plan.gemm.flops_per_s[~quantised & (plan.gemm.count > 0)].max())
    # each of the four products of a layer has its input quantised
    assert plan.elementwise.count.sum() == lower(load_model("llama-3.1-8b"), h100).elementwise.count.sum() + 4 * 32


def test_cache_type(llama, h100):
    half = lower(llama, h100, kv_bytes_per_element=1.0).attention.kv_bytes_per_token[0]
    assert lower(llama, h100).attention.kv_bytes_per_token[0] == 2 * half == 2 * 2 * 8 * 128


def test_every_shipped_model_fits_the_slots(h100):
    """One shape of plan for all: weights agree with the model's own count."""
    shapes = set()
    for name in catalogue():
        model = load_model(name)
        plan = lower(model, h100)
        shapes.add(tuple(leaf.shape for leaf in jax.tree.leaves(plan)))
        gemm, moe = plan.gemm, plan.moe
        weights = np.sum(gemm.count * gemm.n * gemm.k * gemm.weight_bytes_per_param)
        weights += np.sum(
            moe.count * moe.local_experts * moe.matrices * moe.hidden * moe.inter * moe.weight_bytes_per_param
        )
        tables = 0 if model.tied else model.padded_vocab * (model.embedding_dim or model.hidden) * 2
        tables += model.positions * model.hidden * 2
        assert weights + tables == pytest.approx(model.parameter_bytes()[0], rel=5e-3), name
    assert len(shapes) == 1


def test_trimmed_drops_only_unused_slots(llama, h100):
    plan = lower(llama, h100)
    small = trimmed(plan)
    assert small.gemm.n.shape == (5,)
    assert small.moe.count.shape == (0,)
    assert small.collective.a_s.shape == (0, 3)
    assert products(small) == products(plan)
    both = jax.tree.map(lambda *leaves: np.stack(leaves), plan, lower(llama, h100, 4))
    assert trimmed(both).gemm.n.shape == (2, 5)
    assert trimmed(both).collective.a_s.shape == (2, 2, 3)


def test_too_many_shapes(h100):
    layers = tuple(Layer(Attention(8, 8, 128), Dense(1024 + 64 * i)) for i in range(GEMM_SLOTS))
    with pytest.raises(ValueError, match=f"distinct weight shapes on one rank, more than the {GEMM_SLOTS}"):
        lower(ModelSpec("odd", "x", 1024, 32000, 4096, layers), h100)


def test_elementwise_kernels_are_merged_to_fit(h100):
    layers = tuple(Layer(Attention(8, 8, 128), Dense(1024 << i)) for i in range(6))
    slots = lower(ModelSpec("odd", "x", 1024, 32000, 4096, layers), h100).elementwise
    assert slots.count.shape == (ELEMENTWISE_SLOTS,)
    # embedding, 13 norms, 6 each of rotary, cache and activation; bytes are kept
    assert slots.count.sum() == 1 + 13 + 18
    moved = 2 * 2048 + 13 * 4 * 2048 + 6 * 2 * 16 * 128 * 2 * 2 + 3 * 2 * 1024 * (2**6 - 1)
    assert np.sum(slots.count * slots.bytes_per_token) == pytest.approx(moved)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("h100-sxm", "FlashAttention-3"),
        ("rtx-pro-6000", "FlashAttention-2"),
        ("mi300x", "balanced"),
        ("l4", "FlashAttention-2"),
    ],
)
def test_attention_families(name, family):
    assert attention_family(load_device(name))["name"] == family


def test_attention_rate_of_an_unmeasured_device():
    device = load_device("mi300x")
    assert attention_flops_per_s(device) == pytest.approx(0.75 * 1307e12 * device.matmul_efficiency["bf16"])


def test_formats(h100):
    a100 = load_device("a100-sxm-80gb")
    assert format_of("fp8", h100).computed == "fp8"
    assert format_of("fp8", a100)[:2] == ("fp8", "bf16")  # dequantised
    assert format_of("int8", a100).computed == "int8"
    assert format_of("int4", h100).computed == "bf16"  # weight-only
    assert format_of("bf16", load_device("t4")).computed == "fp16"
    assert [format_of(name, h100).quantises_input for name in ("fp8", "bf16", "int4")] == [True, False, False]


@pytest.mark.parametrize(
    ("dtype", "bytes_per_param", "name"),
    [
        ("fp16", 2.0, "bf16"),
        ("bf16", 2.0, "bf16"),
        ("fp8", 1.0, "fp8"),
        ("fp8", 1.0 + 4 / 128**2, "fp8_block"),
        ("fp8", 1.0 + 2 / 128, "fp8_block"),
        ("fp8", 1.0 + 1 / 32, "mxfp8"),
        ("int8", 1.0, "int8"),
        ("int4", 0.5 + 2 / 128, "int4"),
        ("fp4", 0.5 + 1 / 16, "nvfp4"),
        ("fp4", 0.5 + 1 / 32, "mxfp4"),
    ],
)
def test_scales_tell_the_format(dtype, bytes_per_param, name):
    assert FORMATS[format_code(dtype, bytes_per_param)] == name


def test_plans_carry_the_format(h100):
    # Every matrix of the fp8 checkpoint is stored in blocks of 128 x 128, the head in 16 bits.
    gemm = lower(load_model("deepseek-v3"), h100, 8).gemm
    stored = set(zip(gemm.weight_bytes_per_param, [FORMATS[int(code)] for code in gemm.format], strict=True))
    assert stored == {(1.0 + 4 / 128**2, "fp8_block"), (2.0, "bf16")}


def test_no_rate_for_a_format(h100):
    device = replace(h100, peak_flops_per_s={"fp8": 2e15})
    with pytest.raises(
        ValueError, match=r"no peak rate for bf16 weights, nor for fp16.*it has: fp8.*peak_flops_per_s.fp16"
    ):
        format_of("bf16", device)


def test_collectives_of_other_engines():
    assert [library(name) for name in ("vllm", "sglang", "orca")] == ["vllm", "sglang", "nccl"]


def test_few_large_units_count_as_many(llama):
    """Same rates in sum: 8 units of a TPU v5p become 64."""
    device = load_device("tpu-v5p")
    arrays = lower(llama, device).device
    assert arrays.compute_units == 64
    stream = device.unit_stream_bytes_per_s * device.compute_units
    assert arrays.compute_units * arrays.unit_stream_bytes_per_s == pytest.approx(stream)

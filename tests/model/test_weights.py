"""Weight bytes of a rank, the division of a model, and both against what vLLM printed at start-up."""

import csv

import pytest
from hypothesis import given, settings, strategies as st

from sim.model.read import by_hub_name, load_model, read_model
from sim.model.spec import Attention, Dense, Layer, ModelSpec, MoE
from sim.model.weights import allocated
from sim.units import GIB, MIB


def tiny(**changes):
    """Two layers: 8 heads of 16, 4 KV heads, MLP of 256."""
    fields = dict(name="tiny", model_type="llama", hidden=128, vocab=1000, max_model_len=64)
    layer = Layer(Attention(8, 4, 16), Dense(256))
    return ModelSpec(**{**fields, "layers": (layer,) * 2, **changes})


def test_bytes_of_a_small_model_by_hand():
    # layer: qkv 128 x (8 + 2 x 4) x 16, o 128 x 128, MLP 3 x 128 x 256, norms 2 x 128: 147,712 parameters
    # embedding and head 1024 (1000 padded to 64s) x 128 each, last norm 128
    layer = 128 * 256 + 128 * 128 + 3 * 128 * 256 + 256
    assert tiny().parameter_bytes() == (2 * (2 * layer + 2 * 1024 * 128 + 128),)
    assert tiny().params() == 2 * layer + 2 * 1000 * 128 + 128
    # TP 2 halves all but the norms
    assert tiny().parameter_bytes(2) == ((2 * (2 * layer + 2 * 1024 * 128 + 128) - 2 * 5 * 128) / 2 + 2 * 5 * 128,)


def test_a_tied_head_is_stored_once_on_one_stage_and_twice_on_two():
    untied, tied = tiny(), tiny(tied=True)
    assert untied.parameter_bytes()[0] - tied.parameter_bytes()[0] == 2 * 1024 * 128
    assert tied.params() == untied.params() - 1000 * 128
    assert tied.parameter_bytes(1, 2) == untied.parameter_bytes(1, 2)


def test_stages_hold_what_is_theirs():
    layer = 2 * (128 * 256 + 128 * 128 + 3 * 128 * 256 + 256)
    first, last = tiny().parameter_bytes(1, 2)
    assert (first, last) == (layer + 2 * 1024 * 128, layer + 2 * 1024 * 128 + 2 * 128)


def test_draft_layers_count_only_where_they_are_loaded():
    layer = tiny().layers[0]
    model = tiny(draft_layers=(Layer(layer.mixer, layer.ffn, norms=3, joins=True),))
    # the joining projection 2 x 128 x 128, two norms more for it and one of its own
    extra = layer.params(128) + 2 * 128 * 128 + 3 * 128
    assert model.draft_params() == extra
    assert model.params() == tiny().params()
    plain, drafting = model.parameter_bytes(1, 2), model.parameter_bytes(1, 2, draft=True)
    assert (drafting[0] - plain[0], drafting[1] - plain[1]) == (0, 2 * extra)


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (30, 4, [7, 8, 8, 7]), (31, 4, [8, 8, 8, 7]), (5, 5, [1] * 5)],
)
def test_pipeline_remainder_goes_before_the_last_stage(layers, stages, counts):
    model = tiny(layers=tiny().layers[:1] * layers)
    assert [len(stage) for stage in model.stages(stages)] == counts


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "message"),
    [
        ("qwen3-14b", 5, r"does not divide the 151936 rows of the padded vocabulary .*tensor_parallel .*1, 2, 4, 8"),
        ("qwen3-8b", 3, r"does not divide the 32 attention heads"),
        ("llama-3.1-8b", 0, r"tensor_parallel must be at least 1, got 0"),
        ("phi-4", 4, r"10 KV heads cannot be divided over, or copied to, 4"),
        ("gemma-2-2b", 16, r"does not divide the 8 attention heads"),
    ],
)
def test_what_does_not_divide_is_named(name, tensor_parallel, message):
    model = load_model(name)
    with pytest.raises(ValueError, match=message):
        model.weight_bytes(tensor_parallel)


def test_experts_may_be_whole_where_their_units_do_not_divide():
    model = tiny(layers=(Layer(Attention(8, 4, 16), MoE(8, 2, 36)),))
    with pytest.raises(ValueError, match="8 does not divide the 36 expert units"):
        model.weight_bytes(8)
    assert model.weight_bytes(8, 1, 8)[0] > 0
    with pytest.raises(ValueError, match="expert parallel size 16 is more than its 8 routed experts"):
        model.weight_bytes(8, 1, 16)


def test_pipeline_longer_than_the_model():
    with pytest.raises(ValueError, match="pipeline parallel size must be between 1 and the 2 layers, got 3"):
        tiny().weight_bytes(1, 3)


def test_allocator_rounding():
    # below 10 MiB to 512 bytes; above, a rest of at most 1 MiB of a 2 MiB multiple is not given back
    assert allocated(1) == 512
    assert allocated(9 * MIB + 1) == 9 * MIB + 512
    assert allocated(31.5 * MIB) == 32 * MIB
    assert allocated(24.5 * MIB) == 24.5 * MIB
    assert allocated(259 * MIB) == 260 * MIB


@given(
    st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 2, 4]), st.booleans(), st.integers(1, 6), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_ranks_together_hold_the_model_and_more_ranks_hold_less_each(power, kv_power, stages, tied, depth, routed):
    ffn = MoE(8, 2, 64, shared_inter=128) if routed else Dense(256)
    layer = Layer(Attention(8, 2 ** min(kv_power, 3), 16), ffn)
    model = tiny(layers=(layer,) * (depth + stages), tied=tied)
    whole = 2 * model.params()
    ranks = 2**power
    expert_parallel = ranks if routed else 1
    for group in {1, expert_parallel}:
        stored = model.parameter_bytes(ranks, stages, group)
        assert ranks * sum(stored) >= whole
        assert all(x >= y for x, y in zip(model.weight_bytes(ranks, stages, group), stored, strict=True))
        if ranks > 1:
            half = model.parameter_bytes(ranks // 2, stages, 1 if group == 1 else group // 2)
            assert all(x < y for x, y in zip(stored, half, strict=True))


# vLLM's "Model loading took ... GiB" on 80 GB cards, one rank of stage 0 (start-up logs of 0.11 to 0.19)
LOGGED = [
    ("llama-3.1-8b", 1, 1, 14.99),
    ("llama-3.1-8b", 2, 1, 7.51),
    ("llama-3.1-8b", 4, 1, 3.77),
    ("llama-3.1-8b", 1, 2, 7.51),
    ("llama-3.1-8b", 1, 4, 4.26),
    ("llama-3.3-70b-fp8", 1, 1, 67.72),
    ("llama-3.3-70b-fp8", 2, 1, 33.88),
    ("llama-3.3-70b-fp8", 4, 1, 16.96),
    ("llama-4-scout", 4, 1, 53.12),
    ("codellama-7b", 1, 1, 12.56),
    ("qwen2.5-7b", 1, 1, 14.25),
    ("qwen2.5-7b", 2, 1, 7.12),
    ("qwen2.5-7b", 4, 1, 3.55),
    ("qwen2.5-72b", 2, 1, 67.80),
    ("qwen3-0.6b", 1, 1, 1.12),
    ("qwen3-8b", 1, 1, 15.27),
    ("qwen3-14b", 1, 1, 27.52),
    ("qwen3-32b", 1, 1, 61.03),
    ("qwen3-32b", 2, 1, 30.59),
    ("qwen3-30b-a3b", 1, 1, 56.88),
    ("mixtral-8x7b", 2, 1, 43.51),
    ("gemma-2-2b", 1, 1, 4.90),
    ("gemma-2-9b", 1, 1, 17.22),
    ("gemma-2-27b", 1, 1, 50.72),
    ("gemma-3-4b", 1, 1, 8.58),
    ("gemma-3-12b", 1, 1, 23.31),
    ("gemma-3-27b", 1, 1, 51.45),
    ("gemma-7b", 1, 1, 15.91),
    ("phi-2", 1, 1, 5.19),
    ("phi-4", 1, 1, 27.39),
    ("granite-3.1-2b", 1, 1, 4.74),
    ("deepseek-v2-lite", 1, 1, 29.43),
    ("gpt-oss-20b", 1, 1, 13.47),
    ("gpt-oss-120b", 1, 1, 64.38),
    ("llama-3.1-8b-w8a8", 1, 1, 8.49),
]


@pytest.mark.parametrize(("name", "tensor_parallel", "pipeline_parallel", "gib"), LOGGED)
def test_weights_as_vllm_reports_them(name, tensor_parallel, pipeline_parallel, gib):
    ours = load_model(name).weight_bytes(tensor_parallel, pipeline_parallel)[0] / GIB
    assert ours == pytest.approx(gib, abs=0.03)


def test_engine_flags_change_the_type():
    # the same logs with --dtype float32 and --quantization fp8
    assert load_model("llama-3.1-8b", dtype="float32").weight_bytes()[0] / GIB == pytest.approx(29.98, abs=0.01)
    assert load_model("llama-3.1-8b", quantization="fp8").weight_bytes()[0] / GIB == pytest.approx(8.49, abs=0.01)


# not explained to the log's last digit, and by how much at most: kernels that repack on loading, older engines
LOOSE = {"KV040": 0.015, "KV041": 0.027, "KV042": 0.027, "KV057": 0.008, "KV096": 0.02}
HUB = {
    "redhatai/llama-3.3-70b-instruct-fp8-dynamic": "llama-3.3-70b-fp8",
    "redhatai/meta-llama-3.1-8b-instruct-quantized.w4a16": "llama-3.1-8b-w4a16",
    "redhatai/meta-llama-3.1-8b-instruct-quantized.w8a8": "llama-3.1-8b-w8a8",
    "meta-llama/meta-llama-3.1-405b-instruct-fp8": "llama-3.1-405b-fp8",
}


def test_all_collected_logs(shared):
    hub = by_hub_name() | HUB
    compared = 0
    with (shared / "data" / "cases" / "cases.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "weights" and row["engine"] == "vllm"]
    for row in rows:
        name = hub.get(row["model"].lower())
        if name is None or not row["tp"]:
            continue
        dtype = "float32" if row["dtype"] == "fp32" else "auto"
        model = load_model(name, dtype, "fp8" if "w=fp8" in row["dtype"] else None)
        ours = model.weight_bytes(int(row["tp"]), int(row["pp"] or 1))[0] / GIB
        case = row["id"].split(".")[0]
        assert ours == pytest.approx(float(row["value"]), rel=LOOSE.get(case, 0.0), abs=0.03), case
        compared += 1
    assert compared >= 55


def test_the_rope_table_is_counted_on_every_stage_and_rank():
    config = dict(
        model_type="llama",
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=512,
        torch_dtype="bfloat16",
    )
    short = read_model({**config, "max_position_embeddings": 64}, "short")
    long = read_model({**config, "max_position_embeddings": 2**20}, "long")
    extra = [x - y for x, y in zip(long.weight_bytes(2, 2), short.weight_bytes(2, 2), strict=True)]
    # 2^20 rows of 64 rotated dims in 2 bytes, on each stage and rank, less the 64 rows of the short one
    assert extra == [2**20 * 64 * 2 - 64 * 64 * 2] * 2

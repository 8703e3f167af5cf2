"""The memory sum: hand-worked terms, verdicts, ranges, and how it moves with memory and ranks."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf
from sim.deployment.settings import load_engine, resolve_engine
from sim.hardware.read import load_device
from sim.memory import memory_budget, to_json, to_text
from sim.memory.describe import describe
from sim.model.read import catalogue, load_conf, load_model
from sim.units import GIB


LLAMA = load_model(str(catalogue()["llama-3.1-8b"]))
QWEN_MOE = load_model(str(catalogue()["qwen3-30b-a3b"]))
H100 = load_device("h100-sxm")
B200 = load_device("b200-sxm")


def budget(model=LLAMA, device=H100, tp=1, pp=1, ep=False, **keys):
    deployment = DeploymentConf(tensor_parallel=tp, pipeline_parallel=pp, expert_parallel=ep)
    conf = EngineConf(**({"version": "0.19.0", "max_model_len": 8192} | keys))
    return memory_budget(model, device, resolve_engine(conf, model, device, deployment), deployment)


def test_the_sum_by_hand():
    found = budget(gpu_memory_utilization=0.9, max_num_seqs=256, max_num_batched_tokens=8192)
    stage = found.stage
    assert stage.value("requested") == pytest.approx(0.9 * H100.memory_bytes)
    # 8.03 G parameters in 16 bits (14.957 GiB) and one rope table of 131,072 x 128 x 2 B = 32 MiB
    assert stage.value("weights") / GIB == pytest.approx(14.957 + 1 / 32, abs=0.002)
    # sampler: 256 x 128,256 logits x (12.55 + 2) B + 1.53 x 8,192 x 4,096 x 2 B + 10 MB = 590 MB; the forward
    # pass is more: 8,192 x 2 B x (3 x 14,336 + 4.3 x 4,096) = 993.2 MB
    assert stage.value("peak_activation") == pytest.approx(8192 * 2 * (3 * 14336 + 4.3 * 4096))
    counted = [row.value_bytes for row in found.terms[1:] if row.counted]
    assert found.available_bytes == pytest.approx(found.terms[0].value_bytes - sum(counted))
    # 32 layers x 16 tokens x 8 heads x 128 x 2 x 2 B = 2 MiB
    assert found.bytes_per_block == 2**21
    assert found.num_blocks == int(found.available_bytes // 2**21)
    assert found.tokens == 16 * found.num_blocks == found.usable_tokens
    assert found.max_concurrency == found.num_blocks / 512
    assert found.fits and found.verdict.startswith("fits: ")


def test_sampler_above_the_forward_pass():
    # 1,024 x 128,256 x 14.55 B + 1.53 x 8,192 x 4,096 x 2 B + 10 MB = 2,024 MB = 1.88 GiB
    assert budget().stage.value("peak_activation") == pytest.approx(1024 * 128256 * 14.55 + 1.53 * 8192 * 8192 + 10e6)


def test_experts_keep_two_workspaces():
    # 8,192 tokens x 8 experts x 2 B x (2,048 + 2,048), on top of the sampler's 1,024 x 151,936 x 14.55 B ...
    workspaces = 8192 * 8 * 2 * (2048 + 2048)
    sampler = 1024 * 151936 * 14.55 + 1.53 * 8192 * 2048 * 2 + 10e6
    assert budget(QWEN_MOE).stage.value("peak_activation") == pytest.approx(workspaces + sampler)
    # whole experts on two ranks are as wide, halves are narrower than the hidden size: the same buffers
    assert budget(QWEN_MOE, tp=2, ep=True).stage.value("peak_activation") == pytest.approx(workspaces + sampler)


def test_the_last_stage_decides():
    found = budget(pp=4, gpu_memory_utilization=0.95)
    assert found.worst == 3
    assert [stage.num_blocks for stage in found.stages].index(found.num_blocks) == 3
    assert found.stages[0].available_bytes > found.stages[3].available_bytes
    assert "stage 4 decides" in to_text(found)


def test_graphs_count_from_0_20():
    before, after = budget(version="0.19.0"), budget(version="0.20.0", gpu_memory_utilization=0.9)
    graphs = after.stage.value("cuda_graphs")
    # 213 MB + 51 sizes x 32 layers x 376 kB
    assert graphs == pytest.approx(213e6 + 51 * 32 * 376e3)
    assert before.available_bytes - after.available_bytes == pytest.approx(graphs)
    assert budget(version="0.20.0", enforce_eager=True).stage.value("cuda_graphs") == 0
    assert "cuda graphs (outside)" in to_text(before) and "- CUDA graphs" in to_text(after)


def test_the_second_runner_of_dense_models():
    """0.25 to 0.28 run dense models in a runner that estimates no graphs and samples greedily; 0.29 all models."""

    def counted(model, version):
        row = next(row for row in budget(model, version=version).terms if row.name == "cuda_graphs")
        return row.counted

    assert [counted(LLAMA, version) for version in ("0.22.0", "0.23.0", "0.25.0", "0.28.0", "0.29.0")] == [
        True, False, False, False, True,
    ]  # fmt: skip
    assert all(counted(QWEN_MOE, version) for version in ("0.23.0", "0.28.0", "0.29.0"))
    # greedy: the forward pass decides, 8,192 x 2 B x (3 x 14,336 + 4.3 x 4,096)
    peak = budget(version="0.28.0").stage.value("peak_activation")
    assert peak == pytest.approx(8192 * 2 * (3 * 14336 + 4.3 * 4096))
    # experts stay in the first runner, which samples 1,024 x 151,936 logits
    assert budget(QWEN_MOE, version="0.28.0").stage.value("peak_activation") > 1024 * 151936 * 14.55
    quantised = load_model(str(catalogue()["llama-3.1-8b-fp8"]))
    assert counted(quantised, "0.23.0") and not counted(quantised, "0.25.0")


def test_sparse_latent_attention_keeps_room_for_unpacked_keys():
    sparse = load_model(str(catalogue()["deepseek-v3.2"]))
    keys = {"device": B200, "tp": 8, "version": "0.28.0", "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    short, long = (
        budget(sparse, **keys, max_model_len=length).stage.value("peak_activation") for length in (100_000, 160_000)
    )
    # beyond the experts' own room: 5 requests of 60,000 tokens more, 576 numbers of 2 B each
    assert long - short == pytest.approx(5 * 60_000 * 576 * 2)


def test_bitsandbytes_unpacks_the_largest_matrix():
    plain = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
    packed = load_model(str(catalogue()["llama-3.1-8b"]), quantization="bitsandbytes")
    more = budget(packed, **plain).stage.value("peak_activation") - budget(**plain).stage.value("peak_activation")
    # gate and up in one: 4,096 x 28,672 x 2 B
    assert more == pytest.approx(4096 * 28672 * 2)


def test_buffers_of_a_group_depend_on_its_link():
    alone = budget().stage.value("non_torch")
    # 0.25 GiB alone; with NVLink 1.8 GiB more for two ranks, 32 layers x 0.58 MB of exchanged buffers
    assert budget(tp=2).stage.value("non_torch") == pytest.approx(alone + 1.933e9 + 32 * 0.58e6)
    # four ranks: one doubling more, three peers
    assert budget(tp=4).stage.value("non_torch") == pytest.approx(alone + 1.933e9 + 32e6 + 3 * 32 * 0.58e6)
    card = load_device("l40s")
    assert budget(device=card, tp=2).stage.value("non_torch") == pytest.approx(alone + 0.43e9 + 32 * 0.58e6)
    assert budget(pp=2).stage.value("non_torch") == 75e6


def test_heads_are_divided_until_they_are_copied():
    sizes = {tp: budget(tp=tp).bytes_per_block for tp in (1, 2, 4, 8)}
    assert sizes == {1: 2**21, 2: 2**20, 4: 2**19, 8: 2**18}
    two_heads = load_model(str(catalogue()["qwen2.5-0.5b"]))
    assert two_heads.layers[0].mixer.kv_heads == 2
    latent = load_model(str(catalogue()["deepseek-v2-lite"]))
    assert budget(latent, tp=1).bytes_per_block == budget(latent, tp=2).bytes_per_block
    assert budget(latent).bytes_per_block == 27 * 16 * (512 + 64) * 2


def test_given_bytes_and_blocks():
    found = budget(kv_cache_memory_bytes=10.0 * GIB)
    assert found.available_bytes == 10 * GIB and found.num_blocks == 5120
    assert found.blocks_low == found.blocks_high == 5120
    # the smaller pool leaves what it does not take
    assert found.margin_bytes > budget().margin_bytes
    found = budget(num_gpu_blocks_override=600)
    assert found.num_blocks == found.blocks_low == found.blocks_high == 600 and found.fits
    assert found.tokens == 9600


def test_range_holds_the_estimate():
    found = budget()
    assert found.blocks_low < found.num_blocks < found.blocks_high
    spread = [(row.high_bytes - row.low_bytes) / 2 for row in found.terms if row.counted]
    assert found.stage.spread_bytes == pytest.approx(sum(x**2 for x in spread) ** 0.5)
    estimated = budget(device=replace(H100, memory_bytes_estimated=True))
    assert estimated.blocks_high > found.blocks_high
    assert any("estimated from its nominal size" in note for note in estimated.notes)


def test_too_long_says_the_longest_that_fits():
    # 24 GiB card: 21.6 - 14.99 - 1 ... leave a few GiB, 128 KiB per token
    device = replace(H100, memory_bytes=24.0 * GIB)
    found = budget(device=device, max_model_len=131072, max_num_seqs=128)
    assert not found.fits
    assert f"the largest max_model_len that fits is {found.longest_model_len:,} tokens" in found.verdict
    assert found.longest_model_len % 16 == 0
    keys = {"device": device, "max_num_seqs": 128}
    assert budget(max_model_len=found.longest_model_len, **keys).fits
    assert not budget(max_model_len=found.longest_model_len + 1, **keys).fits


def test_too_heavy_says_the_smallest_tensor_parallel():
    big = load_model(str(catalogue()["llama-3.1-70b"]))
    found = budget(big)
    assert not found.fits and found.available_bytes < 0 and found.num_blocks == 0
    assert "which has 71.27 GiB for them and the KV cache" in found.verdict  # 0.9 x 79.19
    assert found.verdict.endswith("it fits with deployment.tensor_parallel=2.")
    assert found.smallest_tensor_parallel == 2 and found.longest_model_len == 0
    assert budget(big, tp=2).fits
    card = load_device("l40s")
    many = budget(big, device=replace(card, devices_per_node=2))
    assert many.smallest_tensor_parallel == 4
    assert "would need deployment.tensor_parallel=4, more than the 2 of one node or scale-up domain" in many.verdict
    tiny = replace(H100, memory_bytes=1.0 * GIB)
    hopeless = budget(big, device=tiny)
    assert hopeless.smallest_tensor_parallel == 0 and "no tensor-parallel size" in hopeless.verdict


def test_too_heavy_for_any_tensor_parallel_size_names_stages_and_a_shorter_length():
    # 756 GiB of weights are 11.8 GiB on 64 cards of 23.5. With tensor parallel 64 the 8 KV heads are on 8 ranks each,
    # and 131,072 tokens take 67.6 / 8 = 8.4 GiB of a rank; a quarter of them takes 2.1. Over 8 stages it is 67.6 / 64.
    card, large = load_device("rtx-4090"), load_model(str(catalogue()["llama-3.1-405b"]))
    found = budget(large, device=card, max_model_len=131072)
    assert found.smallest_tensor_parallel == 0
    assert (
        "engine.max_model_len=32768 fits with deployment.tensor_parallel=64, more than the 8 of one node or scale-up "
        "domain, or it fits with deployment.tensor_parallel=8 and deployment.pipeline_parallel=8."
    ) in found.verdict
    assert budget(large, tp=64, device=card, max_model_len=32768).fits
    assert not budget(large, tp=64, device=card, max_model_len=65536).fits


def test_asking_for_more_than_is_free():
    found = budget(gpu_memory_utilization=1.0)
    assert not found.fits
    assert "gpu_memory_utilization 1 asks for 79.19 GiB, but about 78.96 GiB are free" in found.verdict


QWEN = load_model(str(catalogue()["qwen2.5-0.5b"]))
GEMMA = load_model(str(catalogue()["gemma-3-12b"]))
SMALL = replace(H100, memory_bytes=24.0 * GIB)


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        # one block is the engine's own; six groups of layers need two each
        (
            {"num_gpu_blocks_override": 1},
            r"engine.num_gpu_blocks_override=1 .* set it to at least 2, or leave it out\.",
        ),
        ({"num_gpu_blocks_override": 11, "model": GEMMA}, r"at least 12, two for each of 6 groups of layers"),
        # 79.19 GiB less 14.99 GiB of weights are 32,869 blocks of 2 MiB
        ({"num_gpu_blocks_override": 10**9}, r"more than the 32,8\d\d KV blocks that the weights leave .*; lower it"),
        ({"kv_cache_memory_bytes": 1000.0}, r"bytes=1000 holds 0 KV blocks, .* at least 4,194,304 bytes, or leave"),
        # 512 blocks of 2 MiB for 8,192 tokens; 5 blocks hold 80
        (
            {"kv_cache_memory_bytes": 5 * 2.0**21},
            r"needs 1073741824 bytes of KV cache, more than engine.kv_cache_memory_bytes=10485760; "
            r"the largest max_model_len that fits is 80 tokens .engine.max_model_len=80., or raise engine.kv_cache_mem",
        ),
        ({"kv_cache_memory_bytes": 1e12}, r"=1000000000000 is more than the 68\d{9} bytes that the weights leave"),
        ({"gpu_memory_utilization": 1e-9, "model": QWEN}, r"it fits with engine.gpu_memory_utilization=0.05\.$"),
        (
            {"gpu_memory_utilization": 1.0},
            r"are free on an idle device; it fits with engine.gpu_memory_utilization=0.99\.",
        ),
        (
            {"gpu_memory_utilization": 1.0, "device": SMALL, "max_num_seqs": 8, "max_model_len": 131072},
            r"are free on .*; with 0.99 it does not fit: one request .*; the largest max_model_len that fits is \d",
        ),
        (
            {"gpu_memory_utilization": 0.5, "device": SMALL},
            r"for them and the KV cache; it fits with engine.gpu_memory_util",
        ),
        # 2 million tokens of a batch take more than the device: no number of ranks helps as much as a smaller batch
        (
            {"max_num_batched_tokens": 2**20, "max_num_seqs": 256},
            r"KV cache; it fits with engine.max_num_batched_tokens=\d+, or it fits with deployment.tensor_parallel",
        ),
        ({"model": LLAMA, "device": replace(H100, memory_bytes=1e9)}, r"no tensor-parallel size"),
    ],
)
def test_the_verdict_blames_the_right_key(keys, verdict):
    found = budget(**keys)
    assert not found.fits and re.search(verdict, found.verdict), found.verdict
    assert "\n" not in found.verdict and found.verdict.endswith(".") and not found.verdict.endswith("..")
    # what it names does fit
    remedies = dict(re.findall(r"it fits with engine\.(\w+)=([\d.]*\d)", found.verdict))
    for key, value in remedies.items():
        assert budget(**(keys | {key: float(value) if "." in value else int(value)})).fits
    advised = re.search(r"largest max_model_len that fits is ([\d,]+)", found.verdict)
    if advised:
        assert int(advised[1].replace(",", "")) < found.max_model_len


@given(st.integers(1, 40), st.sampled_from([LLAMA, QWEN, GEMMA]), st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]))
@hypothesis_settings(max_examples=30, deadline=None)
def test_what_fits_has_two_blocks_for_each_group(blocks, model, version):
    """The facade gives each group its part of the blocks and refuses fewer than two: the verdict says the same."""
    found = budget(model, num_gpu_blocks_override=blocks, version=version, max_model_len=64)
    assert found.fits is (found.num_blocks // len(found.layout.groups) >= 2)


def test_an_override_of_blocks_moves_the_margin():
    few, many = budget(num_gpu_blocks_override=600), budget(num_gpu_blocks_override=32_800)
    assert few.margin_bytes - many.margin_bytes == pytest.approx(32_200 * 2**21)
    assert (few.oom_risk, many.oom_risk) == ("low", "likely")


def test_risk_grows_with_utilization():
    levels = [budget(gpu_memory_utilization=value).oom_risk for value in (0.8, 0.9, 0.95, 0.98)]
    order = ["low", "possible", "likely"]
    assert [order.index(level) for level in levels] == sorted(order.index(level) for level in levels)
    assert levels[0] == "low" and levels[-1] == "likely"


def test_bad_shapes_are_one_sentence():
    with pytest.raises(ValueError, match="tensor parallel size 3 does not divide"):
        budget(tp=3)
    engine = resolve_engine(EngineConf(), LLAMA, H100, DeploymentConf())
    wrong = replace(engine, profile=replace(engine.profile, memory_rule="orca"))
    with pytest.raises(ValueError, match="memory rule must be one of vllm, sglang, trtllm, got 'orca'"):
        memory_budget(LLAMA, H100, wrong, DeploymentConf())


def test_sglang_and_tensorrt_llm_by_hand():
    deployment = DeploymentConf()
    conf = replace(load_engine("sglang"), gpu_memory_utilization=0.9)
    found = memory_budget(LLAMA, H100, resolve_engine(conf, LLAMA, H100, deployment), deployment)
    before = conf.profile.memory["context_bytes"]
    weights = LLAMA.weight_bytes()[0]
    assert found.available_bytes == pytest.approx(0.9 * (H100.memory_bytes - before) - weights)
    assert found.margin_bytes == pytest.approx(0.1 * (H100.memory_bytes - before))
    assert found.tokens == int(found.available_bytes // 131072)
    conf = replace(load_engine("trtllm"), gpu_memory_utilization=0.9)
    found = memory_budget(LLAMA, H100, resolve_engine(conf, LLAMA, H100, deployment), deployment)
    free = H100.memory_bytes - weights - conf.profile.memory["runtime_bytes"]
    assert found.available_bytes == pytest.approx(0.9 * free)
    assert found.margin_bytes == pytest.approx(0.1 * free)
    assert found.tokens % 32 == 0


@given(st.floats(20, 300), st.floats(0, 100), st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]))
@hypothesis_settings(max_examples=40, deadline=None)
def test_more_memory_is_never_fewer_blocks(gib, more, version):
    keys = {"version": version, "max_num_seqs": 256, "max_num_batched_tokens": 4096}
    small = budget(device=replace(H100, memory_bytes=gib * GIB), **keys)
    large = budget(device=replace(H100, memory_bytes=(gib + more) * GIB), **keys)
    assert large.num_blocks >= small.num_blocks
    for found in (small, large):
        assert found.num_blocks * found.bytes_per_block <= max(found.available_bytes, 0)
        assert found.blocks_low <= found.num_blocks <= found.blocks_high


@given(st.sampled_from([LLAMA, QWEN_MOE]), st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]), st.floats(0.6, 0.95))
@hypothesis_settings(max_examples=20, deadline=None)
def test_more_ranks_are_never_fewer_tokens(model, version, utilization):
    keys = {"version": version, "gpu_memory_utilization": utilization}
    tokens = [budget(model, tp=tp, **keys).tokens for tp in (1, 2, 4)]
    assert tokens == sorted(tokens)


def test_text_has_the_words_of_the_log():
    found = budget(gpu_memory_utilization=0.95)
    lines = to_text(found).splitlines()
    assert lines[:4] == [
        "Model loading took 14.99 GiB",
        "Available KV cache memory: 58.11 GiB",
        f"GPU KV cache size: {found.tokens:,} tokens",
        f"Maximum concurrency for 8,192 tokens per request: {found.max_concurrency:.2f}x",
    ]
    text = "\n".join(lines)
    assert "requested memory" in text and "- peak activation" in text and found.risk in text
    marks = {f"[{i}]" for i in range(1, 10) if any(line.startswith(f"[{i}]") for line in lines)}
    assert marks and all(any(mark in line for line in lines if not line.startswith(mark)) for mark in marks)


def test_json_is_plain_and_complete():
    gemma = load_model(str(catalogue()["gemma-3-12b"]))
    found = budget(gemma, tp=2)
    values = json.loads(json.dumps(to_json(found)))
    counted = [row["bytes"] for row in values["terms"][1:] if row["counted"]]
    assert values["terms"][0]["bytes"] - sum(counted) == pytest.approx(values["available_bytes"], abs=3)
    assert values["num_blocks"] == found.num_blocks and values["kv_cache_size_tokens"] == found.tokens
    assert len(values["groups"]) == 6 and {group["kind"] for group in values["groups"]} == {"swa", "full"}
    assert values["fits"] is True and values["longest_model_len"] is None
    assert all(row["source"] and row["formula"] for row in values["terms"])


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_the_whole_catalogue_has_a_budget(name):
    """Every shipped model gets a sum, and what it says would fit does fit."""
    model = load_model(str(catalogue()[name]))
    keys = {"device": B200, "version": "0.33.0", "max_model_len": min(8192, model.max_model_len)}
    found = budget(model, **keys)
    assert found.bytes_per_block > 0 and found.num_blocks * found.bytes_per_block <= max(found.available_bytes, 0)
    assert found.fits or found.smallest_tensor_parallel or found.longest_model_len
    if found.smallest_tensor_parallel:
        assert budget(model, tp=found.smallest_tensor_parallel, **keys).fits


def test_auto_length_is_the_longest_that_fits():
    """vLLM's `auto`: an H100 has room for all 131,072 tokens of 8B; for 70B in FP8 for less, and not a block more."""
    engine = EngineConf(version="0.19.0", max_model_len=-1, gpu_memory_utilization=0.97)
    small = describe(load_conf(catalogue()["llama-3.1-8b"]), H100, engine, DeploymentConf())
    assert small.fits and small.max_model_len == 131072
    model = load_conf(catalogue()["llama-3.3-70b-fp8"])
    large = describe(model, H100, engine, DeploymentConf())
    assert large.fits and 0 < large.max_model_len < 131072
    longer = replace(engine, max_model_len=large.max_model_len + large.block_size)
    assert not describe(model, H100, longer, DeploymentConf()).fits


def test_constants_of_another_device_are_said_to_be_carried_over():
    rows = {row.name: row.source for row in budget().terms}
    others = {row.name: row.source for row in budget(device=replace(H100, name="Acme One")).terms}
    assert "H100" in rows["non_torch"] and not any("carried over" in source for source in rows.values())
    for name in ("peak_activation", "non_torch", "cuda_graphs"):
        assert others[name] == f"carried over from other devices: {rows[name]}"
    assert others["weights"] == rows["weights"]

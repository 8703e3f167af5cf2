"""Context parallelism of a deployment: devices, what ranks send and keep, what engines refuse, what flags mean."""

from dataclasses import replace

import numpy as np
import pytest

from conf.compose import compose
from sim.api import build, prepare, run, sweep, why_exact
from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine, resolve_engine
from sim.event.padding import Padding
from sim.hardware.read import load_device
from sim.memory import memory_budget
from sim.memory.plan_tree import pool_branch, tree_lines
from sim.model.read import load_model


DEEPSEEK, QWEN, LITE, LLAMA = "deepseek-v3", "qwen3-235b-a22b-fp8", "deepseek-v2-lite", "llama-3.1-70b"


def plan_of(model, engine="vllm-0.33.0", device="h200-sxm", **deployment):
    name, _, version = engine.partition("-")
    engine_conf = load_engine(name, version)
    return compile_plan(load_model(model), load_device(device), engine_conf, DeploymentConf(**deployment))


def budget_of(model, engine="vllm-0.33.0", device="h200-sxm", **deployment):
    name, _, version = engine.partition("-")
    spec, hardware, conf = load_model(model), load_device(device), DeploymentConf(**deployment)
    return memory_budget(spec, hardware, resolve_engine(load_engine(name, version), spec, hardware, conf), conf)


def moved(plan):
    """Collectives for attention: count, bytes a row, rows of a prefilled token, a decoding row and an earlier token."""
    slots = plan.arrays.context.moved
    names = ("count", "bytes_per_token", "prefills", "decodes", "prior")
    rows = zip(*(getattr(slots, name).tolist() for name in names), strict=True)
    return sorted(tuple(row) for row in rows if row[0])


def test_latent_attention_decodes_on_eight_ranks():
    # A rank has 16 of 128 heads. In 61 layers: queries of 128 x (512 + 64) in 16 bits, a log-sum-exp of 4 bytes for 128
    # heads from 8 ranks, outputs of 128 x 512; before a chunk, latents of 576 a token.
    got = moved(plan_of(DEEPSEEK, tensor_parallel=8, decode_context_parallel=8))
    rows = {128 * 576 * 2: "decode", 8 * 128 * 4: "decode", 128 * 512 * 2: "decode", 576 * 2: "prior"}
    assert got == sorted(
        (61.0, float(size), 0.0, float(row == "decode"), float(row == "prior")) for size, row in rows.items()
    )


def test_other_attention_sends_the_queries_of_all_tokens():
    # 8 of 64 heads of 128 and one of 4 KV heads, twice: 16 heads of two ranks, in 94 layers
    got = moved(plan_of(QWEN, tensor_parallel=8, decode_context_parallel=2))
    assert got == [(94.0, size, 1.0, 1.0, 0.0) for size in (2 * 16 * 4.0, 16 * 128 * 2.0, 16 * 128 * 2.0)]


def test_one_exchange_in_sglang():
    got = moved(plan_of(LITE, "sglang-0.5.23", tensor_parallel=4, decode_context_parallel=4))
    assert [row[1] for row in got] == sorted([576 * 2.0, 16 * 576 * 2.0, 16 * (512 * 2.0 + 4.0)])


def test_prefills_gather_keys_in_every_layer_and_hidden_states_at_the_end():
    plan = plan_of(LITE, prefill_context_parallel=4)
    assert plan.gpus == 4
    assert moved(plan) == [(1.0, 2048 * 2.0, 1.0, 0.0, 0.0), (27.0, 576 * 2.0, 1.0, 0.0, 0.0)]
    # 26 of the 27 layers have experts, for which tokens of 4 ranks are gathered and sums scattered
    slots = plan.arrays.collective
    assert [(count, size) for count, size in zip(slots.count, slots.bytes_per_token, strict=True) if count] == [
        (26.0, 4 * 2048 * 2.0)
    ] * 2
    assert plan.arrays.moe.local_experts[0] * plan.arrays.moe.inter[0] == 64 * 1408 / 4


def test_a_block_holds_its_tokens_on_every_rank_that_divides_them():
    alone, divided = (budget_of(DEEPSEEK, tensor_parallel=8, decode_context_parallel=ranks) for ranks in (1, 8))
    assert divided.num_blocks == alone.num_blocks and divided.bytes_per_block == alone.bytes_per_block
    assert (alone.block_size, divided.block_size) == (16, 128)
    assert divided.max_concurrency == pytest.approx(8 * alone.max_concurrency)
    # 61 layers x 16 tokens x 576 in 16 bits on a rank
    assert divided.bytes_per_block == 61 * 16 * 576 * 2
    # ranks that divide prefills each keep all keys; what they gain is a half of the experts
    more = budget_of(LITE, prefill_context_parallel=2)
    assert more.bytes_per_block == budget_of(LITE).bytes_per_block
    assert more.stage.value("weights") < budget_of(LITE).stage.value("weights")


def test_padding_is_that_of_a_rank():
    settings = resolve_engine(
        load_engine("vllm", "0.33.0"),
        load_model(LITE),
        load_device("h200-sxm"),
        DeploymentConf(prefill_context_parallel=4),
    )

    class Batch:
        tokens, decodes = 4001 + 3, 3

    # 4,001 tokens on 4 ranks are 1,001 on the fullest, and three rows that decode on all of them
    assert Padding(settings)(Batch()) == (1004, 0)
    Batch.tokens = 3
    assert Padding(settings)(Batch())[0] == Padding(replace(settings, prefill_context_parallel=1))(Batch())[0]


def test_the_tree_says_who_talks_to_whom():
    def lines(**deployment):
        from sim.deployment.topology import lay_out

        plan = plan_of(DEEPSEEK, device="b200-sxm", **deployment)
        topology = lay_out([("", plan.device, 1, plan.deployment.rank_devices)], plan.deployment.transfer, 1.0)
        budget = budget_of(DEEPSEEK, device="b200-sxm", **deployment)
        return "\n".join(tree_lines([pool_branch("", "both", plan, budget, topology, 0)]))

    text = lines(tensor_parallel=8, decode_context_parallel=8)
    # 61 x (147,456 + 4,096 + 131,072)
    assert "8 decode-context-parallel ranks over NVLink, 183 collectives for attention, 17,240,064 bytes a row" in text
    assert "the latent KV divided over 8 ranks" in text and "blocks of 128 tokens, 16 of them on a rank" in text
    text = lines(tensor_parallel=4, prefill_context_parallel=2)
    # 61 x 1,152 + 7,168 x 2; 58 x 2 x 2 x 14,336
    assert "2 prefill-context-parallel ranks over NVLink, 62 collectives for attention, 84,608 bytes" in text
    assert "116 for experts, 3,325,952 bytes a token" in text
    assert "4 tensor-parallel ranks over NVLink, 124 collectives a step" in text


@pytest.mark.parametrize(
    ("model", "engine", "deployment", "wanted"),
    [
        (
            DEEPSEEK,
            "vllm-0.33.0",
            {"tensor_parallel": 8, "decode_context_parallel": 3},
            "must divide .*=8; set it to 2",
        ),
        (DEEPSEEK, "vllm-0.33.0", {"decode_context_parallel": 2}, "must divide .*=1; set it to 1"),
        (
            LLAMA,
            "vllm-0.33.0",
            {"tensor_parallel": 8, "decode_context_parallel": 2},
            "8 KV heads.* 1 copy .*set it to 1",
        ),
        (
            QWEN,
            "vllm-0.33.0",
            {"tensor_parallel": 8, "decode_context_parallel": 4},
            "4 KV heads.* 2 copies.*set it to 2",
        ),
        (
            QWEN,
            "vllm-0.10.2",
            {"tensor_parallel": 8, "decode_context_parallel": 2},
            "for gqa.*engine=vllm-0.11.0 or later",
        ),
        (DEEPSEEK, "vllm-0.25.0", {"tensor_parallel": 4, "prefill_context_parallel": 2}, "engine=vllm-0.28.0 or later"),
        (LLAMA, "vllm-0.33.0", {"prefill_context_parallel": 2}, "for gqa attention.* as no version known here has it"),
        (
            "deepseek-v3.2",
            "vllm-0.33.0",
            {"tensor_parallel": 8, "decode_context_parallel": 8},
            "for sparse_mla attention",
        ),
        (DEEPSEEK, "trtllm-1.0", {"tensor_parallel": 8, "decode_context_parallel": 8}, "trtllm 1.0 has no decode"),
        (
            "gemma-3-27b",
            "vllm-0.33.0",
            {"tensor_parallel": 2, "decode_context_parallel": 2},
            "a window of their context",
        ),
        ("qwen3-next-80b-a3b", "sglang-0.5.23", {"prefill_context_parallel": 2}, "layers with recurrent states"),
        (DEEPSEEK, "vllm-0.33.0", {"tensor_parallel": 8, "prefill_context_parallel": 2}, "more .* than the 8 .* to 1"),
        (LITE, "vllm-0.33.0", {"data_parallel": 2, "prefill_context_parallel": 2}, "with deployment.data_parallel=2"),
        (LITE, "vllm-0.33.0", {"prefill_context_parallel": 0}, "prefill_context_parallel must be at least 1, got 0"),
    ],
)
def test_what_no_engine_could_run_is_one_sentence(model, engine, deployment, wanted):
    with pytest.raises(ValueError, match=wanted) as caught:
        plan_of(model, engine, **deployment)
    assert str(caught.value).count(". ") == 0


COMMON = [
    f"model={LITE}",
    "hardware=h200-sxm",
    "engine=vllm-0.33.0",
    "engine.max_model_len=16384",
    "engine.max_num_batched_tokens=2048",
    "engine.max_num_seqs=64",
    "workload=fixed-8192-1024",
    "workload.num_requests=6",
    "workload.output_tokens=20",
]


def simulate(*overrides, common=COMMON):
    return run(prepare(compose([*common, *overrides])))


def ttft_s(result):
    requests = result.requests
    return 1e-9 * float(np.max(np.asarray(requests.first_token_ns) - np.asarray(requests.arrival_ns)))


def test_a_long_prompt_takes_nearly_its_share_of_the_time():
    long = ["model=llama-3.1-8b", "hardware=h200-sxm", "engine=sglang-0.5.23", "workload=fixed-32768-1024"]
    long += ["workload.num_requests=1", "workload.output_tokens=2", "engine.max_num_seqs=64"]
    one, four = (simulate(f"deployment.prefill_context_parallel={ranks}", common=long) for ranks in (1, 4))
    assert (one.gpus, four.gpus) == (1, 4)
    door_s = 8e-3  # of SGLang's API server, engine.profile.api_pickup_s
    assert 3.2 < (ttft_s(one) - door_s) / (ttft_s(four) - door_s) < 4.0
    # all ranks decode: the second token takes no less
    assert four.itl_ns.max() >= 0.95 * one.itl_ns.max()
    assert all(four.checks.values())


def test_the_wide_engine_agrees_or_says_why_not():
    old = [*COMMON, "engine=vllm-0.10.2", "deployment.tensor_parallel=2"]
    job = build(compose([*old, "deployment.decode_context_parallel=2"]))
    assert why_exact(job) == ""
    found = []
    assert sweep([job], lambda index, result: found.append(result)) == {}
    exact = run(job)
    assert np.array_equal(found[0].requests.finish_ns, exact.requests.finish_ns)
    assert all(exact.checks.values()) and all(found[0].checks.values())
    assert why_exact(build(compose([*COMMON, "deployment.prefill_context_parallel=2"]))) == (
        "ranks divide the tokens of every prefill"
    )


def pools(*settings, engine="vllm-0.33.0"):
    sizes = [f"deployment.pools.{role}.tensor_parallel=2" for role in ("prefill", "decode")]
    own = [f"deployment.pools.{setting}" for setting in settings]
    return simulate("deployment=pd-1p1d", f"engine={engine}", *sizes, *own)


def test_each_token_is_handed_over_once_to_ranks_that_divide_them():
    whole = pools()
    divided = pools("prefill.settings.block_size=32", "decode.decode_context_parallel=2")
    assert whole.transfers.blocks.sum() == 2 * divided.transfers.blocks.sum() == 6 * 8192 / 16
    # two copies of 27 layers x 576 in 16 bits of every token, or one
    assert whole.transfers.bytes.sum() == 2 * divided.transfers.bytes.sum() == 2 * 6 * 8192 * 27 * 576 * 2
    assert all(divided.checks.values())


def test_what_cannot_be_handed_over_is_refused():
    both = [f"{role}.decode_context_parallel=2" for role in ("prefill", "decode")]
    with pytest.raises(ValueError, match="block_size makes them differ .* block_size x decode_context_parallel is one"):
        pools(both[1])
    with pytest.raises(ValueError, match=r"vllm 0\.19\.0 cannot hand over .*choose engine=vllm-0\.28\.0 or later"):
        pools(*both, engine="vllm-0.19.0")
    with pytest.raises(ValueError, match=r"vllm 0\.33\.0 hands over .*set it to 1 or 4"):
        pools(both[0], "prefill.tensor_parallel=4", "decode.settings.block_size=32")


def test_a_prefill_pool_of_ranks_that_divide_prompts():
    found = pools("prefill.prefill_context_parallel=2")
    assert found.gpus == 2 * 2 + 2 and all(found.checks.values())

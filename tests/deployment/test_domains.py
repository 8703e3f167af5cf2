"""Data-parallel ranks that share experts: domains, plans, what is exchanged, memory, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains
from sim.deployment.lower import lower, lower_rank
from sim.deployment.rules import ParallelRules
from sim.deployment.settings import load_engine, resolve_engine
from sim.hardware.collectives import collective_constants
from sim.hardware.read import load_device
from sim.model.read import load_model


PAIR = {"data_parallel": 2, "expert_parallel": True}
WIDTH = 2048 * 2  # bytes of one hidden state of Qwen3-30B-A3B


def build(model="qwen3-30b-a3b", device="rtx-pro-6000", engine=("vllm", "0.19.0"), **deployment):
    return compile_plan(load_model(model), load_device(device), load_engine(*engine), DeploymentConf(**deployment))


def used(slots):
    """Rows (count, bytes per token, latency, factor) of collectives."""
    rows = zip(slots.count, slots.bytes_per_token, slots.a_s[:, 0], slots.factor, strict=True)
    return [tuple(float(x) for x in row) for row in rows if row[0]]


def equal(one, other) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)


def test_two_domains_over_the_same_ranks():
    domains = build(data_parallel=4, tensor_parallel=2, expert_parallel=True).domains
    assert (domains.tp_attn, domains.dp_attn, domains.tp_ffn, domains.ep_ffn) == (2, 4, 1, 8)
    domains = build(data_parallel=4, tensor_parallel=2).domains
    assert (domains.tp_ffn, domains.ep_ffn, domains.lockstep) == (8, 1, True)
    with pytest.raises(ValueError, match="attention has 2 x 2 ranks, the experts 2 x 4"):
        Domains(2, 2, 2, 4)
    assert not build("llama-3.1-8b", data_parallel=4).domains.lockstep


def test_ranks_keep_attention_and_share_experts():
    model, device = load_model("qwen3-30b-a3b"), load_device("rtx-pro-6000")
    plan = build(replicas=3, **PAIR)
    assert plan.gpus == 6
    own, shared, alone = plan.arrays, plan.shared, lower(model, device)
    for part in ("gemm", "attention", "elementwise"):
        assert equal(getattr(own, part), getattr(alone, part)), part
    assert own.moe.count.sum() == own.collective.count.sum() == 0
    assert shared.gemm.count.sum() == shared.elementwise.count.sum() == shared.attention.count.sum() == 0
    assert equal(shared.moe, lower(model, device, 2, 2).moe)
    assert shared.moe.local_experts[0] == 64
    # without expert parallelism every expert is divided, as in a tensor-parallel group of two
    sliced = build(data_parallel=2).shared.moe
    assert equal(sliced, lower(model, device, 2).moe)
    assert sliced.inter[0] == 384


def test_kernels_of_both_parts_are_launched():
    model, device = load_model("qwen3-30b-a3b"), load_device("rtx-pro-6000")
    # one kernel to send tokens to experts, one to bring them back, in each of 48 layers
    rank = lower_rank(model, device, Domains(1, 2, 1, 2), host_s=1e-3)
    more = rank.own.device.launch_s[0] - lower(model, device).device.launch_s[0]
    assert more == pytest.approx(96 * device.kernel_launch_s)
    assert rank.own.device.host_s == device.host_step_s + 1e-3
    assert rank.shared.device.launch_s.sum() == rank.shared.device.gap_s.sum() == rank.shared.device.host_s == 0.0


def test_tokens_are_gathered_and_outputs_scattered():
    device = load_device("rtx-pro-6000")
    gather, scatter = (collective_constants(device, op, 2) for op in ("all_gather", "reduce_scatter"))
    assert used(build(**PAIR).shared.collective) == [
        (48, WIDTH + 8 * 8, gather.a_s[0], 0.5),  # with number and weight of 8 experts
        (48, WIDTH, scatter.a_s[0], 0.5),
    ]


def test_naive_exchange_broadcasts_and_sums():
    device = load_device("rtx-pro-6000")
    gather, summed = (collective_constants(device, op, 2) for op in ("all_gather", "all_reduce"))
    wanted = [(96, (WIDTH + 64) / 2, gather.a_s[0], 1.0), (48, WIDTH, summed.a_s[0], 1.0)]
    assert used(build(all_to_all="naive", **PAIR).shared.collective) == wanted
    # the default of vLLM before 0.11
    assert used(build(engine=("vllm", "0.10.2"), **PAIR).shared.collective) == wanted


def test_quantised_tokens_where_the_version_sends_them():
    # DeepSeek-V3: 7168 numbers, 8 of 256 experts, fp8 with a scale of 4 bytes per 128 numbers
    plan = build("deepseek-v3", "h200-sxm", data_parallel=8, expert_parallel=True)
    assert used(plan.shared.collective)[0][:2] == (58, 7168 * (1 + 4 / 128) + 64)
    plan = build("deepseek-v3", "h200-sxm", ("vllm", "0.15.0"), data_parallel=8, expert_parallel=True)
    assert used(plan.shared.collective)[0][:2] == (58, 7168 * 2 + 64)


def test_devices_of_a_rank_divide_its_tokens_before_the_experts():
    model, device = load_model("qwen3-30b-a3b"), load_device("h100-sxm")
    domains, rules = Domains(2, 2, 1, 4), ParallelRules()
    four, two = (collective_constants(device, "all_gather", ranks).a_s[0] for ranks in (4, 2))
    rank = lower_rank(model, device, domains, rules=rules)
    assert used(rank.shared.collective)[0][2] == four
    # 48 sums after attention and one after the embedding; outputs are gathered, then the logits
    assert [(count, size) for count, size, *_ in used(rank.own.collective)] == [
        (49, WIDTH),
        (48, WIDTH),
        (1, model.padded_vocab * 2),
    ]
    whole = lower_rank(model, device, domains, rules=replace(rules, slices_sequence=False))
    assert used(whole.shared.collective)[0][2] == two
    assert used(whole.own.collective)[0][:2] == (97, WIDTH)


def test_dense_parts_of_sglang_see_all_tokens():
    engine = replace(load_engine("sglang"), max_num_seqs=256, max_num_batched_tokens=8192)
    deployment = DeploymentConf(data_parallel=8, expert_parallel=True)
    model, device = load_model("deepseek-v3"), load_device("h200-sxm")
    plan = compile_plan(model, device, engine, deployment)
    gemm = plan.shared.gemm
    widths = {int(n) for n, count in zip(gemm.n, gemm.count, strict=True) if count}
    # gate and up of three dense layers and of the shared expert, an eighth each
    assert {2 * 18432 // 8, 2 * 2048 // 8} <= widths
    assert used(plan.shared.collective)[0][:2] == (61, 7168 * 2)
    # its limits are those of all ranks, and it reserves less for outputs
    assert (plan.engine.max_num_seqs, plan.engine.max_num_batched_tokens) == (32, 1024)
    assert plan.engine.scheduler_options["schedule_conservativeness"] == pytest.approx(0.3)
    alone = resolve_engine(load_engine("sglang"), model, device, DeploymentConf(tensor_parallel=8))
    assert plan.engine.gpu_memory_utilization < alone.gpu_memory_utilization


def test_what_is_assumed():
    rows = {what: (value, source) for what, value, source in build(**PAIR).assumptions}
    assert rows["experts"][0] == "over 2 devices, whole ones, tokens by allgather_reducescatter"
    assert rows["all-gather of 2"][0] == rows["reduce-scatter of 2"][0] == "measured constants"
    assert "34102" in rows["steps of data-parallel ranks"][1]
    assert any("before they agree that nothing is left" in line for line in build(**PAIR).not_modelled)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_parallel": 0}, r"deployment.data_parallel must be at least 1, got 0\."),
        ({"data_parallel": 5000}, r"deployment.data_parallel must be at most 4,096, got 5,000\."),
        ({"data_parallel": 256, "expert_parallel": True}, r"the 256 ranks .* are more than its 128 routed experts"),
        (
            {"data_parallel": 5},
            r"the 5 ranks of .* cannot divide the 768 units of an expert; set deployment.expert_parallel=true",
        ),
        (
            {"data_parallel": 2, "pipeline_parallel": 2},
            r"cannot be simulated with pipeline stages, got .*data_parallel=2",
        ),
        ({"all_to_all": "naive"}, r"all_to_all=naive has no effect without data-parallel ranks"),
        (
            {"all_to_all": "naiv", "data_parallel": 2},
            r"must be one of auto, allgather_reducescatter, naive, .*, got 'naiv' \(did you mean naive\?\)",
        ),
    ],
)
def test_what_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**change)

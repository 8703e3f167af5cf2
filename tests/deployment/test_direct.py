"""Tokens that go only to their experts: bytes by hand, what a plan says of them, engines' rules, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from sim.deployment.all_to_all import modes_of
from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.plan import FEWEST, MOST
from sim.deployment.settings import load_engine
from sim.hardware.exchange_form import holders
from sim.hardware.read import load_device
from sim.model.read import load_model


def build(way, model="deepseek-v3", device="h200-sxm", engine=("vllm", "0.19.0"), **deployment):
    sizes = {"data_parallel": 8, "expert_parallel": True} | deployment
    conf = DeploymentConf(all_to_all=way, **sizes)
    return compile_plan(load_model(model), load_device(device), load_engine(*engine), conf)


def sent(slots):
    """Rows (count, bytes per token of all ranks, share that leaves a rank)."""
    rows = zip(slots.count, slots.bytes_per_token, slots.factor, strict=True)
    return [tuple(float(x) for x in row) for row in rows if row[0]]


def test_bytes_of_deepseek_v3():
    """58 layers of 256 experts, 8 a token, 7168 numbers, fp8 with 4 bytes per 128 there, 16 bits back, 8 devices."""
    there, back = 7168 * (1 + 4 / 128), 7168 * 2
    plan = build("deepep_low_latency")
    assert sent(plan.shared.collective) == [(58, 8 * there / 8, 7 / 8), (58, 8 * back / 8, 7 / 8)]
    assert (plan.exchange.decides, plan.exchange.prefill) == (MOST, None)
    # one copy to every device that holds one of 8 experts: 8 (1 - C(224, 8) / C(256, 8)) = 5.29
    copies = holders(8, 256, 8)
    assert copies == pytest.approx(5.29, abs=0.01)
    wanted = [(58, copies * there / 8, 7 / 8), (58, copies * back / 8, 7 / 8)]
    assert np.array(sent(build("deepep_high_throughput").shared.collective)) == pytest.approx(np.array(wanted))
    auto = build("deepep_auto")
    assert sent(auto.shared.collective) == sent(plan.shared.collective)
    assert np.array(sent(auto.exchange.prefill)) == pytest.approx(np.array(wanted))
    assert modes_of("allgather_reducescatter") == ("", "")


def test_gathering_is_as_before():
    assert build("auto").exchange.decides == FEWEST
    assert build("auto").exchange.prefill is None


def test_only_block_scaled_experts_are_sent_in_8_bits():
    # Qwen3-30B-A3B in 16 bits: 2048 numbers, 8 of 128 experts
    plan = build("deepep_low_latency", "qwen3-30b-a3b")
    assert sent(plan.shared.collective)[0] == (48, 2048 * 2, 7 / 8)


def test_devices_of_a_rank_divide_its_tokens():
    """4 ranks of 2 devices: 8 devices send, and outputs are gathered inside a rank, whatever the version does else."""
    for version in ("0.10.2", "0.19.0"):
        plan = build("deepep_low_latency", engine=("vllm", version), data_parallel=4, tensor_parallel=2)
        assert sent(plan.shared.collective)[1] == (58, 7168 * 2, 7 / 8)
        assert float(np.sum(plan.arrays.collective.count)) > 0


def test_dense_parts_of_sglang_are_each_rank_s_own():
    engine = replace(load_engine("sglang"), max_num_seqs=256, max_num_batched_tokens=8192)
    model, device = load_model("deepseek-v3"), load_device("h200-sxm")
    for way, own in (("auto", False), ("deepep_auto", True)):
        conf = DeploymentConf(data_parallel=8, expert_parallel=True, all_to_all=way)
        plan = compile_plan(model, device, engine, conf)
        assert (float(plan.shared.gemm.count.sum()) == 0.0) is own
        assert plan.domains.gathers_dense is not own


@pytest.mark.parametrize(
    ("engine", "way", "mode"),
    [
        (("vllm", "0.11.0"), "deepep_high_throughput", "NONE"),
        (("vllm", "0.11.0"), "deepep_low_latency", "FULL_AND_PIECEWISE"),
        (("vllm", "0.19.0"), "deepep_high_throughput", "PIECEWISE"),
        (("sglang", "0.5"), "deepep_high_throughput", "NONE"),
    ],
)
def test_graphs_with_high_throughput_kernels(engine, way, mode):
    plan = build(way, engine=engine)
    assert plan.engine.graph_mode == mode
    assert any("CUDA graph mode" in note for note in plan.engine.notes) == (way == "deepep_high_throughput")


def test_what_is_assumed():
    rows = {what: (value, source) for what, value, source in build("deepep_auto").assumptions}
    assert rows["experts"][0] == "over 8 devices, whole ones, tokens by deepep_auto"
    value, source = rows["deepep_low_latency dispatch of 8 without prefills"]
    assert value.startswith("measured, ") and "sglang/0.5.12" in source
    assert "deepep_high_throughput combine of 8 with a prefill" in rows
    assert "even" in rows["routing"][0]
    assert rows["dense parts and shared experts"][0].startswith("each rank's own")
    many = {what: value for what, value, _ in build("deepep_low_latency", data_parallel=128).assumptions}
    assert many["deepep_low_latency dispatch of 128"].startswith("estimated, 12 %")
    assert any("low-latency buffers" in line for line in build("deepep_low_latency").not_modelled)
    assert not any("low-latency buffers" in line for line in build("deepep_high_throughput").not_modelled)


@pytest.mark.parametrize(
    ("way", "change", "sentence"),
    [
        ("deepep_low_latency", {"expert_parallel": False}, r"whole experts: set deployment.expert_parallel=true"),
        ("deepep_auto", {"data_parallel": 1}, r"all_to_all=deepep_auto has no effect without data-parallel ranks"),
        (
            "nvlink_one_sided",
            {"data_parallel": 16},
            r"reaches the 8 NVIDIA H200 .* not 16 ranks: lower deployment.data_pa",
        ),
        ("deepep", {}, r"must be one of auto, .*nvlink_one_sided, got 'deepep' \(did you mean .*deepep_auto\?\)"),
    ],
)
def test_what_is_refused(way, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(way, **change)


def test_one_sided_over_a_wide_domain():
    plan = build("nvlink_one_sided", device="gb200", data_parallel=32)
    copies = holders(32, 256, 8)
    assert sent(plan.shared.collective)[1] == pytest.approx((58, copies * 7168 * 2 / 32, 31 / 32))

"""Compiling a deployment: checks, assumptions, what is not modelled."""

from dataclasses import replace

import numpy as np
import pytest

from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.hardware.spec import LinkConf
from sim.model.read import load_model


def build(model="llama-3.1-8b", device="h100-sxm", version="0.19.0", **deployment):
    device = load_device(device) if isinstance(device, str) else device
    return compile_plan(load_model(model), device, load_engine("vllm", version), DeploymentConf(**deployment))


def rows(plan):
    return {what: (value, source) for what, value, source in plan.assumptions}


def test_a_plan():
    plan = build(tensor_parallel=2, replicas=3)
    assert plan.gpus == 6
    assert (plan.arrays.attention.count[0], plan.arrays.attention.kv_heads[0]) == (32, 4)
    assert plan.engine.version == "0.19.0"
    assert plan.arrays.gemm.n[0] == 3072


def test_cache_type_reaches_the_arrays():
    engine = replace(load_engine("vllm", "0.19.0"), kv_cache_dtype="fp8")
    plan = compile_plan(load_model("llama-3.1-8b"), load_device("h100-sxm"), engine, DeploymentConf())
    assert plan.arrays.attention.kv_bytes_per_token[0] == 2 * 8 * 128


def test_expert_parallel():
    plan = build("qwen3-30b-a3b", tensor_parallel=4, expert_parallel=True)
    assert plan.arrays.moe.local_experts[0] == 32
    assert "expert parallelism" in rows(plan)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"replicas": 0}, r"deployment.replicas must be at least 1, got 0\."),
        ({"replicas": 10_001}, r"deployment.replicas must be at most 10,000, got 10,001\."),
        ({"tensor_parallel": 10**9}, r"deployment.tensor_parallel must be at most 4,096, got 1,000,000,000\."),
        (
            {"tensor_parallel": 2, "device": replace(load_device("l40s"), pcie=LinkConf())},
            r"2 ranks of NVIDIA L40S have to talk, .* give hardware.pcie.kind .* lower deployment.tensor_parallel",
        ),
        ({"tensor_parallel": 0}, r"deployment.tensor_parallel must be at least 1, got 0\."),
        ({"pipeline_parallel": 33}, r"pipeline parallel size must be between 1 and the 32 layers, got 33"),
        (
            {"pipeline_parallel": 2, "device": replace(load_device("l40s"), pcie=LinkConf())},
            r"2 ranks of NVIDIA L40S have to talk, .* lower deployment.pipeline_parallel",
        ),
        ({"tensor_parallel": 3}, r"tensor parallel size 3 does not divide the 32 attention heads"),
        ({"tensor_parallel": 16}, r"tensor_parallel=16 needs more NVIDIA H100 SXM 80GB than the 8"),
        ({"expert_parallel": True}, r"expert_parallel is set, but llama-3.1-8b has no experts"),
    ],
)
def test_bad_shapes(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**change)


def test_rates_are_listed_with_their_sources():
    found = rows(build("llama-3.1-8b-fp8", tensor_parallel=2))
    device = load_device("h100-sxm")
    assert found["memory stream rate"] == ("2.92 TB/s", device.sources["memory_efficiency"])
    assert found["fp8 products"] == ("1403 TFLOP/s in fp8", device.sources["matmul_efficiency.fp8"])
    assert found["attention kernel"][0] == "FlashAttention-3"
    assert found["all-reduce"][1]
    assert "max_num_seqs" in found
    assert "fp8 weights" not in found


def test_dequantised_weights_are_an_assumption():
    found = rows(build("llama-3.1-8b-fp8", "a100-sxm-80gb"))
    assert found["fp8 weights"] == ("dequantised to bf16 inside each product", "NVIDIA A100 SXM4 80GB has no fp8 peak")
    assert rows(build("llama-3.1-8b-w4a16"))["int4 weights"][1] == "weight-only format"


def test_settings_say_where_they_come_from():
    found = rows(build())
    assert found["max_num_batched_tokens"][1].startswith("vllm 0.19.0")


def test_what_is_not_modelled():
    dense, routed = build(), build("deepseek-v3", "b200-sxm", tensor_parallel=8)
    assert not any("draft" in sentence for sentence in dense.not_modelled)
    assert any("draft" in sentence for sentence in routed.not_modelled)
    assert any("priced as a GPU" in sentence for sentence in build(device="tpu-v5p").not_modelled)


def test_pipeline_stages():
    plan = build(tensor_parallel=2, pipeline_parallel=4, replicas=3)
    assert plan.gpus == 24
    assert len(plan.stages) == 4
    assert [float(stage.attention.count.sum()) for stage in plan.stages] == [8, 8, 8, 8]
    assert plan.hand_over is not None and plan.tokens_back is not None
    assert plan.engine.pipeline_parallel == 4
    found = rows(plan)
    assert found["pipeline stages"][0] == "8 + 8 + 8 + 8 layers, embedding first, head and sampler last"
    assert found["batches in the pipeline"][0].startswith("4, one at a time: the first stage waits")
    assert rows(build(version="0.33.0", pipeline_parallel=4))["batches in the pipeline"][0].startswith("5; scheduled")
    assert any("until the next one can receive" in sentence for sentence in plan.not_modelled)
    assert build().hand_over is None


def test_pipeline_stages_want_vllms_scheduler():
    engine = replace(load_engine("vllm", "0.19.0"), scheduler="orca")
    with pytest.raises(ValueError, match="with the scheduler of vllm only, got deployment.pipeline_parallel=2 with en"):
        compile_plan(load_model("llama-3.1-8b"), load_device("h100-sxm"), engine, DeploymentConf(pipeline_parallel=2))


def test_host_time_is_hidden_by_scheduling_ahead():
    """vLLM 0.10.2 schedules one batch at a time; 0.19.0 two, unless told not to."""
    waiting = build(version="0.10.2")
    assert waiting.arrays.device.host_s == waiting.engine.profile.host_step_s > 0
    assert rows(waiting)["host time per step"][0] == "1.5 ms"
    ahead = build()
    assert ahead.arrays.device.host_s == 0
    assert "hidden behind the step before" in rows(ahead)["host time per step"][0]
    engine = replace(load_engine("vllm", "0.19.0"), async_scheduling=False)
    told = compile_plan(load_model("llama-3.1-8b"), load_device("h100-sxm"), engine, DeploymentConf())
    assert told.arrays.device.host_s == told.engine.profile.host_step_s


def test_experts_that_one_operator_launches_are_submitted_once_a_layer():
    """Qwen3-30B has 48 layers of nine kernels of experts: 1.7 launches instead of 9 are 48 x 7.3 fewer."""
    model, device = load_model("qwen3-30b-a3b"), load_device("h100-sxm")
    engine = load_engine("trtllm", "1.0")
    assert engine.profile.expert_launches == 1.7
    each = replace(engine, profile=replace(engine.profile, expert_launches=0.0))
    eager_s = [compile_plan(model, device, conf, DeploymentConf()).arrays.device.launch_s[0] for conf in (each, engine)]
    launch_s = device.kernel_launch_s * engine.profile.eager_launches
    np.testing.assert_allclose(eager_s[0] - eager_s[1], 48 * (9 - 1.7) * launch_s)


def test_what_pieces_cost_is_not_lost_on_a_full_graph():
    plan, device = build(), load_device("h100-sxm")
    lost_s = plan.engine.profile.pieces_s
    gap_s = np.array([device.kernel_launch_s * plan.engine.profile.eager_launches, *[device.graph_launch_s] * 2])
    np.testing.assert_allclose(plan.arrays.device.gap_s, gap_s + lost_s * np.array([1.0, 1.0, 0.0]))
    assert lost_s > 0 and rows(plan)["lost between pieces of a step"][0].startswith(f"{1e3 * lost_s:.1f} ms")

"""Buffers of DeepEP and rows at the experts, by hand, and what they decide."""

import pytest

from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains
from sim.deployment.rules import ParallelRules
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.memory.budget import memory_budget
from sim.memory.exchange import buffer_bytes, expert_rows
from sim.model.read import load_model


GIB = 2**30
# DeepSeek-V3: 256 tokens of each rank at 256 experts, 7168 numbers in 16 bits and 56 x 4 bytes, 2 x 2 buffers
LOW_LATENCY = 4 * 256 * 256 * (2 * 7168 + 224)


def plan_of(way, ranks=8, engine="vllm-0.19.0"):
    name, _, version = engine.partition("-")
    conf = DeploymentConf(data_parallel=ranks, expert_parallel=True, all_to_all=way)
    return compile_plan(load_model("deepseek-v3"), load_device("h200-sxm"), load_engine(name, version), conf)


@pytest.mark.parametrize(
    ("way", "ranks", "wanted"),
    [
        ("auto", 8, 0.0),
        ("deepep_low_latency", 8, GIB + LOW_LATENCY),
        ("deepep_high_throughput", 8, GIB),
        ("deepep_high_throughput", 16, 2 * GIB),
        ("deepep_auto", 16, 2 * GIB + LOW_LATENCY),
    ],
)
def test_buffers(way, ranks, wanted):
    plan = plan_of(way, ranks)
    assert buffer_bytes(plan.model, plan.device, plan.engine, plan.deployment) == wanted


def test_sglang_keeps_room_for_fewer_tokens():
    plan = plan_of("deepep_low_latency", engine="sglang-0.5")
    assert buffer_bytes(plan.model, plan.device, plan.engine, plan.deployment) == GIB + LOW_LATENCY / 2


def test_rows_at_the_experts():
    domains, rules = Domains(1, 4, 1, 4), ParallelRules(low_latency_tokens=16)
    # 100 tokens on each of 4 ranks, 1 of 8 experts each
    assert expert_rows("naive", rules, domains, 100, 1, 8) == 400
    # a token reaches one rank
    assert expert_rows("deepep_high_throughput", rules, domains, 100, 1, 8) == pytest.approx(100)
    # 2 local experts x 4 ranks x 16 tokens
    assert expert_rows("deepep_low_latency", rules, domains, 100, 1, 8) == 128
    assert expert_rows("deepep_auto", rules, domains, 1000, 1, 8) == pytest.approx(1000)


def test_many_ranks_do_not_hold_every_token():
    """64 ranks with batches of 8,192 tokens: gathered they are too many for one device."""
    for way, fits in (("allgather_reducescatter", False), ("deepep_low_latency", True)):
        plan = plan_of(way, 64)
        assert memory_budget(plan.model, plan.device, plan.engine, plan.deployment).fits is fits

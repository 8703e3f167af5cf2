"""Factors on the time of kernels: each scales its own part of a step, and nothing of its bytes and operations."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.step_cost import SECONDS


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("product_time", {"gemm_s"}),
        ("attention_time", {"attention_s"}),
        ("expert_time", set()),
        ("elementwise_time", {"elementwise_s"}),
    ],
)
def test_a_factor_scales_its_own_kernels(plan, cost, batch, field, parts):
    stats = batch([(64, 100)], [500, 700])
    before = cost(plan, stats)
    after = cost(replace(plan, device=replace(plan.device, **{field: np.asarray(1.5)})), stats)
    for name in SECONDS:
        factor = 1.5 if name in parts else 1.0
        if (field, name) != ("product_time", "head_s"):  # the head holds a product, and a sampler
            assert float(getattr(after, name)) == pytest.approx(factor * float(getattr(before, name))), name
    assert float(after.head_s) > float(before.head_s) or field != "product_time"
    assert (float(after.memory_bytes), float(after.flops)) == (float(before.memory_bytes), float(before.flops))


def test_experts(experts, device, cost, batch):
    from sim.deployment.lower import lower

    plan, stats = lower(experts, device), batch([], [500, 700])
    before, after = (
        cost(replace(plan, device=replace(plan.device, expert_time=jnp.asarray(factor))), stats)
        for factor in (1.0, 0.5)
    )
    assert float(after.moe_s) == pytest.approx(0.5 * float(before.moe_s)) and float(before.moe_s) > 0.0

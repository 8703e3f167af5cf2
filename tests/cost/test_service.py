"""Factors on the time of kernels: each scales its own part of a step, and nothing of its bytes and operations."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.recurrent import RecurrentTerms, recurrent_s
from sim.cost.service import states_in_service
from sim.cost.step_cost import SECONDS


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("product_time", {"gemm_s"}),
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


@pytest.mark.parametrize("chunks", [[], [(64, 100)]])
def test_the_two_kernels_of_attention(plan, cost, batch, chunks):
    """Rows that decode alone take one factor whole; beside chunks, the two parts together take the factor of both."""
    stats = batch(chunks, [500, 700])

    def attention_s(prefill=1.0, decode=1.0):
        times = {"prefill_attention_time": np.asarray(prefill), "decode_attention_time": np.asarray(decode)}
        return float(cost(replace(plan, device=replace(plan.device, **times)), stats).attention_s)

    before, both = attention_s(), attention_s(3.0, 3.0)
    assert both == pytest.approx(3.0 * before)
    if not chunks:
        assert attention_s(prefill=3.0) == before and attention_s(decode=3.0) == pytest.approx(both)
    else:
        assert before <= attention_s(decode=3.0) < attention_s(prefill=3.0) <= both


def test_state_layers_follow_the_two_phases(plan):
    """Rows that decode three times as long, chunks five times."""
    states = RecurrentTerms(3.0, 2e-6, 1e-7, 4e-6, 2e-7, 1e-9, 5e-9, 1e-10)
    times = {"prefill_attention_time": np.asarray(5.0), "decode_attention_time": np.asarray(3.0)}
    slower = states_in_service(states, replace(plan.device, **times))
    for tokens, chunks, decodes, factor in ((0, 0, 7, 3.0), (500, 2, 0, 5.0)):
        both = (float(recurrent_s(np, one, tokens, chunks, decodes)) for one in (states, slower))
        assert factor * next(both) == pytest.approx(next(both))


def test_experts(experts, device, cost, batch):
    from sim.deployment.lower import lower

    plan, stats = lower(experts, device), batch([], [500, 700])
    before, after = (
        cost(replace(plan, device=replace(plan.device, expert_time=jnp.asarray(factor))), stats)
        for factor in (1.0, 0.5)
    )
    assert float(after.moe_s) == pytest.approx(0.5 * float(before.moe_s)) and float(before.moe_s) > 0.0

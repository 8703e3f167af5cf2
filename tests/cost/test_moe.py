"""Routed experts: a value by hand, active experts, limits, monotone, gradient."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.moe import MoeConstants, moe_s, moe_terms
from sim.cost.work import active_experts
from sim.deployment.plan import MoeSlots


CONSTANTS = MoeConstants(
    tile_rows=np.array([16.0]),
    tile_share=np.array([0.5]),
    kernels=np.float64(7.0),
    cache_share=np.float64(0.8),
    rel_error=np.float64(0.1),
)


def slots(experts=8.0, local=8.0, top_k=2.0, hidden=1024.0, inter=2048.0, matrices=3.0):
    values = {"count": 1.0, "experts": experts, "local_experts": local, "top_k": top_k, "hidden": hidden}
    values |= {
        "inter": inter,
        "matrices": matrices,
        "weight_bytes_per_param": 2.0,
        "flops_per_s": 200e12,
        "format": 0.0,
    }
    return MoeSlots(**{name: np.array([value], np.float64) for name, value in values.items()})


def terms(device, group=None):
    return moe_terms(group or slots(), device, CONSTANTS)


def seconds(plan, tokens, group=None):
    return float(moe_s(terms(plan.device, group), jnp.float64(tokens))[0])


def active(plan, group, tokens):
    found = terms(plan.device, group)
    return active_experts(found.local_experts, found.log_missed, jnp.float64(tokens))


def test_active_experts(plan):
    # One token visits exactly k; two visit k + k (1 - k/E); very many visit all; a rank of half the experts sees half.
    assert float(active(plan, slots(), 1)[0]) == pytest.approx(2.0)
    assert float(active(plan, slots(), 2)[0]) == pytest.approx(2 + 2 * (1 - 2 / 8))
    assert float(active(plan, slots(), 1000)[0]) == pytest.approx(8.0)
    assert float(active(plan, slots(local=4.0), 1)[0]) == pytest.approx(1.0)
    assert float(active(plan, slots(), 0)[0]) == 0.0


def test_every_expert_every_token(plan):
    assert float(active(plan, slots(top_k=8.0), 3)[0]) == pytest.approx(8.0)


def test_by_hand(plan):
    # One token: A = 2 experts, R = 2 rows. Weights 2 x 3 x 1024 x 2048 x 2 B = 25,165,824 B, activations 2 rows x 2 B x
    # (2048 + 4 x 2048) = 40,960 B: 25.206784 us at 1 TB/s. Products: max(2 x 16, 2 + 16) = 32 rows x 2 x 3 x 1024
    # x 2048 / (0.5 x 200e12) = 4.02653 us. Around: 8 B x (3 x 2048 + 1024) = 57,344 B, all in cache: 11.4688 ns.
    # Floors 7 x 2 us.
    want = 14e-6 + (25.206784e-6**4 + 4.0265318e-6**4) ** 0.25 + 57344 / 5e12
    assert seconds(plan, 1) == pytest.approx(want, rel=1e-6)


def test_limits(plan):
    # 65536 tokens x 2 experts x 12.58 MFLOP at half of 200 TFLOP/s: 16.49 ms; half a tile per expert is 0.05 % more;
    # around: 65536 x 2 x 4 B x 7168 / 1 TB/s = 3.76 ms
    flops = 65536 * 2 * 6 * 1024 * 2048
    around = 65536 * 2 * 4 * (3 * 2048 + 1024)
    assert seconds(plan, 65536) == pytest.approx(flops / 100e12 + around / 1e12, rel=0.01)


def test_half_the_experts_on_a_rank_take_less(plan):
    for tokens in (1, 64, 4096):
        assert seconds(plan, tokens, slots(local=4.0)) < seconds(plan, tokens)


def test_monotone_and_zero(plan):
    times = [seconds(plan, tokens) for tokens in (0, 1, 2, 4, 8, 16, 64, 256, 1024, 4096)]
    assert times[0] == 0.0
    assert times == sorted(times)


def test_gradients(plan, slope_matches):
    for tokens in (1.5, 40.0, 3000.0):
        slope_matches(lambda t: moe_s(terms(plan.device), t)[0], tokens)

    def of_bandwidth(rate):
        return moe_s(terms(replace(plan.device, memory_bytes_per_s=rate)), jnp.float64(8))[0]

    slope_matches(of_bandwidth, 1e12)
    assert np.isfinite(float(jax.grad(lambda t: moe_s(terms(plan.device), t)[0])(0.0)))

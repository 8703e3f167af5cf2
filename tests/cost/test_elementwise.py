"""Elementwise kernels and the sampler: values by hand, cache kink, gradient."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.elementwise import ElementwiseConstants, elementwise_s, elementwise_terms, move_terms, moved_s
from sim.cost.head import SamplerConstants, sampler_s, sampler_terms
from sim.deployment.plan import ElementwiseSlots


VALUES = {"floor_s": np.float64(2e-6), "cache_share": np.float64(0.8), "rel_error": np.float64(0.1)}
FIXED, SAMPLER = ElementwiseConstants(**VALUES), SamplerConstants(**VALUES)


def slots(size):
    return ElementwiseSlots(count=np.array([3.0]), bytes_per_token=np.array([float(size)]), kind=np.array([0.0]))


def test_by_hand(plan):
    # 1000 tokens x 40 kB = 40 MB = 0.8 x 50 MB: f = 1, half the bytes move at 5 TB/s, half at 1 TB/s: 4 + 20 us, and
    # 2 us of floor, three times.
    got = float(elementwise_s(elementwise_terms(slots(40e3), plan.device, FIXED), jnp.float64(1000))[0])
    assert got == pytest.approx(3 * (2e-6 + 20e6 / 5e12 + 20e6 / 1e12))


def test_limits(plan):
    small = float(moved_s(move_terms(plan.device, FIXED.cache_share), jnp.float64(4e6)))  # a tenth of what fits
    assert small == pytest.approx(4e6 / 5e12, rel=1e-3)
    large = float(moved_s(move_terms(plan.device, FIXED.cache_share), jnp.float64(4e9)))
    assert large == pytest.approx(4e9 / 1e12, rel=1e-3)


def test_no_tokens_cost_nothing(plan):
    assert float(elementwise_s(elementwise_terms(slots(40e3), plan.device, FIXED), jnp.float64(0))[0]) == 0.0


def test_monotone(plan):
    times = [
        float(elementwise_s(elementwise_terms(slots(40e3), plan.device, FIXED), jnp.float64(t))[0])
        for t in range(0, 4000, 50)
    ]
    assert times == sorted(times)
    wide = replace(plan.device, memory_bytes_per_s=np.float64(2e12))
    assert float(elementwise_s(elementwise_terms(slots(40e3), wide, FIXED), jnp.float64(2000))[0]) < times[40]


def test_gradient(plan, slope_matches):
    for tokens in (10, 1000, 20000):
        slope_matches(lambda t: elementwise_s(elementwise_terms(slots(40e3), plan.device, FIXED), t)[0], tokens)
    slope_matches(
        lambda rate: elementwise_s(
            elementwise_terms(slots(40e3), replace(plan.device, cache_bytes=rate), FIXED), jnp.float64(1000)
        )[0],
        50e6,
    )


def test_sampler_by_hand(plan):
    # 10 rows of 1 MB pass twice: f = 10 MB/40 MB, f^4/(1 + f^4) = 1/257 from memory, 256/257 from cache; 4 x 2 us
    device = replace(
        plan.device,
        sampler_kernels=np.float64(4.0),
        sampler_bytes_per_row=np.float64(1e6),
        sampler_passes=np.float64(2.0),
    )
    want = 8e-6 + 2 * (1e7 * 256 / 257 / 5e12 + 1e7 / 257 / 1e12)
    assert float(sampler_s(sampler_terms(device, SAMPLER), jnp.float64(10))) == pytest.approx(want)
    assert float(sampler_s(sampler_terms(device, SAMPLER), jnp.float64(0))) == 0.0
    assert float(sampler_s(sampler_terms(device, SAMPLER), jnp.float64(11))) > want


def test_sampler_gradient(plan, slope_matches):
    slope_matches(lambda rows: sampler_s(sampler_terms(plan.device, SAMPLER), rows), 64.0)

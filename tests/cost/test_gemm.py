"""Dense products: a value by hand, both limits, monotone, staircase, gradient."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.cost.gemm import GemmConstants, gemm_s, gemm_terms
from sim.cost.soft import soft_maximum
from sim.deployment.plan import GemmSlots


def slot(n, k, flops=200e12, weight=2.0):
    values = {"count": 1.0, "n": n, "k": k, "weight_bytes_per_param": weight, "input_bytes": 2.0}
    values |= {"flops_per_s": flops, "emitting": 0.0, "format": 0.0, "beside": 0.0}
    return GemmSlots(**{name: np.array([value], np.float64) for name, value in values.items()})


def constants(rows=(128.0,), columns=(128.0,), share=(1.0,), **fixed):
    values = {"prologue_s": 1e-6, "epilogue_s": 1e-6, "split_s": 1e-6, "max_split": 8.0, "rel_error": 0.1} | fixed
    tiles = {"tile_rows": rows, "tile_columns": columns, "tile_share": share}
    return GemmConstants(**{k: np.asarray(v, np.float64) for k, v in (tiles | values).items()})


def price(rows, slots, device, fixed):
    return gemm_s(gemm_terms(slots, device, fixed), rows)


compiled = jax.jit(price)


def seconds(plan, cost, rows, product):
    return float(compiled(np.float64(rows), product, plan.device, cost.gemm)[0])


def test_by_hand(plan):
    # 128 x 1280 outputs in tiles of 128: 10 blocks, k split in floor(100/10) -> 8 parts of 125: 80 blocks, one wave.
    # One step of k in one block: 2 128 128 / (200e12/100) = 16.384 ns of compute, (128 + 128) 2 B / 50e9 = 10.24.
    # Block: 1 + 1 + 125 x 0.016384 = 4.048 us. Split: 1 us and 4 x 8 x 128 x 1280 B / 1e12 = 5.24288. Sum 10.29088 us.
    # Memory: 1280 x 1000 x 2 + 128 x (1000 + 1280) x 2 = 3,143,680 B -> 3.14368 us.
    # 2 + (10.29088^4 + 3.14368^4)^(1/4) = 2 + 10.31322 us.
    got = float(price(np.float64(128), slot(1280, 1000), plan.device, constants())[0])
    assert got == pytest.approx(2e-6 + (10.29088e-6**4 + 3.14368e-6**4) ** 0.25, rel=1e-12)
    assert got == pytest.approx(12.31322e-6, rel=1e-6)


def test_whole_waves_stay_whole(plan):
    # 100 tiles of 128 x 128 on 100 units: exactly one wave; one more row needs a second for its row of tiles.
    whole = float(price(np.float64(1280), slot(1280, 4096), plan.device, constants(max_split=1.0))[0])
    more = float(price(np.float64(1281), slot(1280, 4096), plan.device, constants(max_split=1.0))[0])
    assert more / whole == pytest.approx(2.0, rel=0.1)


def test_least_over_tiles(plan):
    both = constants((64.0, 128.0), (64.0, 128.0), (1.0, 1.0))
    for m in (1, 100, 1000):
        alone = [
            float(price(np.float64(m), slot(4096, 4096), plan.device, constants((t,), (t,), (1.0,)))[0])
            for t in (64.0, 128.0)
        ]
        assert float(price(np.float64(m), slot(4096, 4096), plan.device, both)[0]) == pytest.approx(min(alone))


def test_one_row_reads_weights_at_the_memory_rate(plan, cost):
    # 16384 x 16384 weights of 2 B: 536.9 us at 1 TB/s, and 2 us of floor. The units could load 100 x 50 GB/s.
    assert seconds(plan, cost, 1, slot(16384, 16384)) == pytest.approx(538.9e-6, rel=0.02)


def test_large_products_reach_the_achieved_ceiling(plan, cost):
    # 2 x 16384^3 FLOPs at 200 TFLOP/s: 43.98 ms
    assert seconds(plan, cost, 16384, slot(16384, 16384)) == pytest.approx(43.98e-3, rel=0.05)


def test_no_rows_cost_nothing(plan, cost):
    assert seconds(plan, cost, 0, slot(4096, 4096)) == 0.0


@settings(max_examples=25, deadline=None)
@given(m=st.integers(1, 4000), n=st.integers(64, 20000), k=st.integers(64, 20000))
def test_never_below_either_roofline(m, n, k):
    device = _device()
    got = float(compiled(np.float64(m), slot(n, k), device, constants())[0])
    found = gemm_terms(slot(n, k), device, constants())
    moved_s = float(found.weight_stream_s[0] + m * found.row_stream_s[0])
    assert moved_s == pytest.approx(2 * (n * k + m * (n + k)) / 1e12)
    assert got > max(moved_s, 2 * m * n * k / 200e12)


def _device():
    from sim.deployment.plan import DeviceArrays

    ones = dict.fromkeys(DeviceArrays.__dataclass_fields__, np.float64(1.0))
    rates = {
        "memory_bytes_per_s": 1e12,
        "unit_stream_bytes_per_s": 50e9,
        "compute_units": 100.0,
        "kernel_floor_s": 2e-6,
    }
    return DeviceArrays(**(ones | {name: np.float64(value) for name, value in rates.items()}))


@pytest.mark.parametrize("tokens", [1, 16, 128, 700, 4096])
def test_faster_hardware_is_never_slower(plan, cost, tokens):
    product = slot(6144, 4096)
    base = seconds(plan, cost, tokens, product)
    wide = replace(plan.device, memory_bytes_per_s=2 * plan.device.memory_bytes_per_s)
    assert float(price(np.float64(tokens), product, wide, cost.gemm)[0]) < base
    quick = replace(product, flops_per_s=2 * product.flops_per_s)
    assert seconds(plan, cost, tokens, quick) <= base


def test_more_tokens_are_never_faster_across_tiles(plan, cost):
    # within one number of tiles only the moved bytes grow; over whole tiles everything does
    product = slot(6144, 4096)
    times = [seconds(plan, cost, m, product) for m in (1, 64, 128, 256, 512, 1024, 2048, 4096)]
    assert times == sorted(times)


def test_gradients(plan, cost, slope_matches):
    product = slot(6144, 4096)

    def of_bandwidth(rate):
        device = replace(plan.device, memory_bytes_per_s=rate)
        return price(jnp.float64(64.0), product, device, cost.gemm)[0]

    def of_rate(rate):
        return price(jnp.float64(2000.0), replace(product, flops_per_s=rate[None]), plan.device, cost.gemm)[0]

    def of_share(share):
        return price(
            jnp.float64(2000.0), product, plan.device, replace(cost.gemm, tile_share=share * cost.gemm.tile_share)
        )[0]

    slope_matches(of_bandwidth, 1e12)
    slope_matches(lambda r: of_rate(jnp.asarray(r)), 200e12)
    slope_matches(of_share, 1.0)


def test_gradient_is_finite_without_rows(plan, cost):
    slope = jax.grad(lambda m: price(m, slot(4096, 4096), plan.device, cost.gemm)[0])(jnp.float64(0.0))
    assert np.isfinite(float(slope))


def test_soft_maximum():
    # (3^4 + 4^4)^(1/4) = 337^(1/4) = 4.28457
    assert float(soft_maximum(jnp, jnp.float64(3.0), jnp.float64(4.0))) == pytest.approx(337**0.25)
    assert float(soft_maximum(jnp, jnp.float64(0.0), jnp.float64(0.0))) == pytest.approx(0.0, abs=1e-14)
    assert np.isfinite(float(jax.grad(soft_maximum, argnums=1)(jnp, jnp.float64(0.0), jnp.float64(0.0))))

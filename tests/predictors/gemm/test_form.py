"""The physics of products, worked by hand: tiles, waves, splits of k, streams, the cache, ragged rows, the host."""

import jax
import numpy as np
import pytest

from predictors.gemm.curves import KNOTS, curves_of, fit_curves, hats, keys_of
from predictors.gemm.form import START, Product, gemm_features, gemm_parts
from predictors.gemm.learn import quantising
from predictors.gemm.predict import Rows


PLAIN = START | {
    "t0": 1e-6,
    "start": 0.0,
    "finish": 0.0,
    "share": (1.0,) * 5,
    "unit_rate": 1e9,
    "host": 2e-5,
    "gain": 0.25,
}
"""Blocks without fixed times and loads, so that one rule shows at a time."""
CASES = {
    # name: m, n, k, FLOP/s, cache bytes, units, launched
    "split": (64, 256, 1024, 1e14, 0, 100, 0),
    "waves": (1920, 256, 1024, 1e14, 0, 100, 0),
    "memory": (1, 16384, 16384, 1e18, 0, 128, 0),
    "compute": (8192, 8192, 8192, 1e14, 0, 128, 0),
    "cached": (1, 2048, 2048, 1e18, 1e9, 128, 0),
    "ragged": (257, 2048, 2048, 1e18, 0, 128, 0),
    "even": (272, 2048, 2048, 1e18, 0, 128, 0),
    "short": (1, 256, 256, 1e18, 0, 128, 1),
    "long": (8192, 8192, 8192, 1e14, 0, 128, 1),
}


@pytest.fixture(scope="module")
def parts():
    """Parts of every case, by name; memory at 1 TB/s, 2 bytes an element."""
    columns = np.array(list(CASES.values()), np.float64).T
    m, n, k, flops, cache, units, launched = columns
    two, memory = np.full(len(m), 2.0), np.full(len(m), 1e12)
    constants = {name: np.asarray(value, np.float64)[..., None] for name, value in PLAIN.items()}
    product = Product(n, k, two, two, flops, memory, cache, units, launched)
    with jax.enable_x64(True):
        found = jax.tree.map(np.asarray, jax.jit(gemm_parts)(constants, product, m))
        seen = np.asarray(jax.jit(gemm_features)(product, found, m))
    assert np.isfinite(seen).all()
    return {name: jax.tree.map(lambda leaf, i=i: leaf[..., i], found) for i, name in enumerate(CASES)}


def test_splits_of_k_fill_idle_units(parts):
    # 64 x 64 tiles: 1 x 4 blocks, each 1024 x 2 x 4096 FLOP on one of 100 units: 8.389 us in one wave. In 8 parts 32
    # blocks, still one wave of an eighth, then 1 us and 8 x 4 B x 64 x 256 at 1 TB/s (0.524 us).
    depth_s, reduction_s = 1024 * 8192 * 100 / 1e14, 8 * 4 * 64 * 256 / 1e12
    assert parts["split"].splits_s[0] == pytest.approx(depth_s)
    least_s = depth_s / 8 + 1e-6 + reduction_s
    assert parts["split"].splits_s[3] == pytest.approx(least_s) == parts["split"].least_s
    # Weights 512 KiB, input 64 x 2 KiB, output 64 x 512 B: 0.688 us, in a soft maximum of power 4.
    stream_s = (2 * 256 * 1024 + 64 * 2 * (1024 + 256)) / 1e12
    assert parts["split"].cold_s == pytest.approx(1e-6 + (least_s**4 + stream_s**4) ** 0.25)


def test_blocks_run_in_whole_waves(parts):
    # 30 x 4 blocks of 64 x 64 on 100 units: two waves. Of 256 x 128 there are 8 x 2, in one wave, each 8 times as
    # long; of 128 x 128 15 x 2, each 4 times; 64 x 128: 30 x 2 and twice. The least: one wave of the last.
    depth_s = 1024 * 8192 * 100 / 1e14
    assert parts["waves"].tiles_s[0] == pytest.approx(2 * depth_s)
    assert parts["waves"].splits_s[0] == pytest.approx(2 * depth_s)
    # Split in two the 120 blocks are 240, three waves of half.
    assert parts["waves"].splits_s[1] == pytest.approx(1.5 * depth_s + 1e-6 + 2 * 4 * 1920 * 256 / 1e12)


def test_limits(parts):
    # One row: 16384^2 weights of 2 B at 1 TB/s. 4096 blocks of 128 x 128 on 128 units: 32 full waves, 2 m n k FLOP.
    assert parts["memory"].cold_s == pytest.approx(2 * 16384**2 / 1e12, rel=0.01)
    assert parts["compute"].cold_s == pytest.approx(2 * 8192**3 / 1e14, rel=0.01)


def test_a_repeated_product_finds_small_weights_in_the_cache(parts):
    # 8.4 MB in a fifth of 1 GB: faster by 1 + 0.25 in a table; in a model, or with a small cache, from memory.
    one = parts["cached"]
    weights_s, moved_s = 2 * 2048**2 / 1e12, 2 * (2048 + 2048) / 1e12
    assert one.stream_s == pytest.approx(weights_s / 1.25 + moved_s)
    assert one.cold_s == pytest.approx(1e-6 + weights_s + moved_s, rel=0.01) and one.warm_s < one.cold_s
    assert parts["memory"].warm_s == pytest.approx(parts["memory"].cold_s)


def test_ragged_rows_and_the_host(parts):
    # 257 rows are no multiple of 16: a hundredth of the weights' time more, beside 15 rows less.
    weights_s, row_s = 2 * 2048**2 / 1e12, 2 * (2048 + 2048) / 1e12
    less_s = parts["even"].cold_s - parts["ragged"].cold_s
    assert less_s == pytest.approx(15 * row_s - 0.01 * weights_s, rel=0.01)
    # The host's 20 us hide a short kernel, and not a long one.
    assert parts["short"].warm_s == pytest.approx(2e-5, rel=0.01) and parts["short"].cold_s < 2e-6
    assert parts["long"].warm_s == pytest.approx(parts["compute"].warm_s, rel=1e-6)


def test_curves_by_hand():
    # A shape 10 % slow at all of 300 rows: nearly that everywhere; other shapes and kernels: nothing.
    m = np.exp(np.random.default_rng(0).uniform(0.0, np.log(KNOTS[-1]), 300))
    code = np.zeros(300, int)
    found = fit_curves(keys_of(code, np.full(300, 512.0), np.full(300, 64.0)), m, np.full(300, np.log(1.1)))
    keys = keys_of(np.array([0, 1, 0]), np.array([512.0, 512.0, 513.0]), np.full(3, 64.0))
    at = np.sum(curves_of(found, keys) * hats(np, np.full(3, 50.0)), axis=1)
    assert at[0] == pytest.approx(np.log(1.1), rel=0.1) and not at[1:].any()
    # Half way between two knots in the logarithm each weighs half.
    assert hats(np, np.array([np.sqrt(8.0)]))[0].tolist() == pytest.approx([0, 0.5, 0.5, *[0] * 12])


def one(constants, **facts):
    """Parts of one product with `constants` over `PLAIN`; memory at 1 TB/s, one unit, no cache."""
    given = {"m": 1024.0, "n": 64.0, "k": 4096.0, "bytes": 2.0, "flops": 1e18} | facts
    values = {name: np.asarray(value, np.float64) for name, value in (PLAIN | constants).items()}
    narrow = given["bytes"]
    product = Product(given["n"], given["k"], narrow, narrow, given["flops"], 1e12, 0.0, 1.0, 0.0)
    with jax.enable_x64(True):
        return jax.tree.map(
            float,
            jax.jit(gemm_parts)(values, jax.tree.map(np.float64, product), given["m"])._replace(
                tiles_s=0.0, splits_s=0.0
            ),
        )


def test_a_table_times_the_quantising_of_inputs_and_a_model_does_not():
    # 1024 rows: 2 ns each, and thrice their 4096 x (2 + 1) B at 1 TB/s; 1 us of t0 is the other kernel's as well.
    law = {"row": 2e-9, "passes": 3.0, "quantise": 4e-7}
    narrow = one(law, bytes=1.0)
    assert narrow.warm_s - narrow.cold_s == pytest.approx(1024 * (2e-9 + 3 * 4096 * 3 / 1e12) + 4e-7)
    assert narrow.cold_s == pytest.approx(one({}, bytes=1.0).cold_s - 4e-7)
    wide = one(law | {"quantise": 0.0})
    assert wide.warm_s == pytest.approx(wide.cold_s) == one({}).cold_s


def test_of_all_waves_but_the_first_a_part_of_the_fixed_time_shows():
    # On one unit 64 x 64 tiles of 256 x 64 make four waves; of 256 x 128 one, whose outputs take eight times as long.
    law = {"finish": 8e-6, "exposed": 0.25, "split": 1.0}
    finish_s = 8e-6 * 64 * 64 / 16384
    assert one(law, m=256.0, k=1.0).least_s == pytest.approx(finish_s * (1 + 3 * 0.25), rel=1e-3)
    assert one(law | {"exposed": 1.0}, m=256.0, k=1.0).least_s == pytest.approx(4 * finish_s, rel=1e-3)


def test_what_the_quantising_kernel_takes_is_what_t0_is_longer_than_that_of_16_bit_products():
    codes = np.array([0, 1, 2, 3])
    bytes_in, hosted = np.array([2.0, 2.0, 1.0, 2.0]), np.array([0.0, 0.0, 0.0, 1.0])
    rows = Rows(Product(*[np.ones(4)] * 3, bytes_in, *[np.ones(4)] * 4, hosted), np.ones(4), codes)
    found = quantising(rows, np.array([2e-6, 4e-6, 1e-5, 5e-5]))
    np.testing.assert_allclose(found, [0.0, 0.0, 1e-5 - 3e-6, 0.0])

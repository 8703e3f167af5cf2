"""Fitting experts: the form by hand, what a fit leaves out and finds, and that it is the same every time."""

import jax
import numpy as np
import pytest

from predictors import moe
from predictors.moe.form import START, Experts, moe_parts
from predictors.moe.loads import Loads
from predictors.moe.rows import LOPSIDED, doubtful, kernel_names, used
from predictors.moe.series import KNOTS, curves_of, fit_curves, hats
from predictors.table import GROUP_LIMITED
from tests.predictors.moe.conftest import expert_table


@pytest.fixture(scope="module")
def fitted(known_table, h100):
    return moe.fit(known_table, h100, 0, True)


def test_the_form_by_hand():
    # 10 active experts of 1000 x 1000 with three matrices in 2 B: 60 MB; 100 rows x (1000 + 4 x 1000) x 2 B = 1 MB; at
    # 1 TB/s 61 us. 160 rows in tiles of 16: 2 x 160 x 3e6/0.3e12... of a peak of 10 TFLOP/s 96 us at full share.
    one = np.ones(1)
    work = Experts(*(value * one for value in (1000.0, 1000.0, 10.0, 10.0, 1.0, 3.0, 2.0, 1e13, 1e12, 100.0, 8e5)))
    padded = np.array([160.0, 320.0, 640.0, 1280.0])[:, None]
    constants = {name: np.asarray(value)[..., None] * one for name, value in START.items()}
    constants |= {"tile_share": np.ones((4, 1)), "start": 0.0 * one, "step": 0.0 * one, "power": 4.0 * one}
    constants |= {"t0": 1e-5 * one, "activation": 1.0 * one, "sum": 1.0 * one, "expert": 0.0 * one, "token": 0.0 * one}
    with jax.enable_x64(True):
        parts = moe_parts(constants | {"untuned": 0.0 * one}, work, Loads(100.0 * one, 10.0 * one, padded), 100.0 * one)
        ruled = moe_parts(constants | {"untuned": one}, work, Loads(100.0 * one, 10.0 * one, padded), 100.0 * one)
    # around: (3 x 1000 + 1000) x 2 B x 100 rows = 0.8 MB, all of the cache: half at 0.6 of the time, 0.8 x 0.8 us
    assert float(parts.products_s[0]) == pytest.approx(96e-6)
    assert float(parts.seconds[0]) == pytest.approx(1e-5 + (96e-6**4 + 61e-6**4) ** 0.25 + 0.64e-6)
    # More tokens than experts: an untuned kernel takes tiles of 64.
    assert float(ruled.products_s[0]) == pytest.approx(4 * 96e-6)


def test_a_fit_finds_a_known_device(fitted, known_table, h100):
    found = moe.predict(fitted, known_table, h100)
    error = np.abs(found.seconds / known_table.seconds - 1.0)
    assert np.median(error) < 0.05 and np.quantile(error, 0.9) < 0.25
    assert fitted.kernels == ("vllm/0.24.0 bf16 k", "vllm/0.24.0 bf16 slow")
    # A kernel that the fit does not know takes the one of the most like name.
    other = expert_table(tokens=[64.0], kernel=["slow"], engine=["sglang"])
    alike = expert_table(tokens=[64.0], kernel=["slow"])
    assert moe.predict(fitted, other, h100).seconds == moe.predict(fitted, alike, h100).seconds


def test_the_same_seed_gives_the_same_fit(known_table, h100, fitted):
    again = moe.fit(known_table, h100, 0, True)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(dict(fitted.arrays)), jax.tree.leaves(dict(again.arrays)), strict=True)
    )


def test_beyond_what_was_measured_is_marked(fitted, h100):
    inside, beyond = expert_table(tokens=[64.0]), expert_table(tokens=[64.0], hidden=[9000.0])
    assert moe.predict(fitted, inside, h100).outside == 0.0
    far = moe.predict(fitted, beyond, h100)
    assert far.outside == 1.0 and far.rel_error > moe.predict(fitted, inside, h100).rel_error


def test_what_a_fit_leaves_out():
    table = expert_table(
        tokens=[1.0] * 5,
        engine_version=["0.19.0", "0.24.0", "0.24.0", "0.24.0", "0.24.0"],
        kernel=["old", "new", "deepepmoe, context", "new", "new"],
        dtype=["bf16", "bf16", "bf16", "strange", "fp8"],
        op=["experts", "experts", "experts", "experts", "experts_eplb"],
    )
    assert used(table).tolist() == [False, True, False, False, False]
    assert kernel_names(table)[1] == "vllm/0.24.0 bf16 new"


def test_even_rows_that_do_not_reach_all_experts_are_left_out():
    # Of group-limited ones those on several ranks; of the lopsided kernel those on one.
    table = expert_table(
        tokens=[1.0] * 6,
        op=[GROUP_LIMITED] * 3 + ["experts"] * 3,
        ep=[1.0, 2.0, 2.0, 1.0, 2.0, 1.0],
        skew=[0.0, 0.0, 1.2, 0.0, 0.0, 1.2],
        kernel=["k"] * 3 + [LOPSIDED] * 3,
    )
    assert used(table).tolist() == [True, False, True, False, True, True]


def test_a_rank_with_less_work_that_takes_longer_is_doubtful():
    # Four ranks instead of two, then fewer tokens: 1.6 times as long is doubtful, 1.4 is not.
    table = expert_table([1.0, 1.6, 1.0, 1.4, 1.6], tokens=[64.0, 64.0, 64.0, 32.0, 16.0], ep=[2.0, 4.0, 1.0, 2.0, 1.0])
    assert doubtful(table).tolist() == [False, True, False, False, True]


def test_splits_hold_out_whole_shapes(known_table, h100):
    found = moe.splits(known_table, h100)
    assert set(found) == {"shapes", "tokens", "parallel", "model", "top"}
    layout = list(zip(*(known_table[name].tolist() for name in ("hidden", "inter", "ep")), strict=True))
    held = {key for key, out in zip(layout, found["shapes"], strict=True) if out}
    assert not held & {key for key, out in zip(layout, found["shapes"], strict=True) if not out}
    assert (found["top"] == (known_table["tokens"] >= 4096)).all()


def test_curves_by_hand():
    # A layout 10 % slow at all of 300 rows: nearly 10 % everywhere; another, even or unknown layout: nothing.
    keys = np.tile(np.arange(7.0), (300, 1))
    tokens = np.exp(np.random.default_rng(0).uniform(0, np.log(KNOTS[-1]), 300))
    found = fit_curves(keys, np.ones(300, int), tokens, np.full(300, np.log(1.1)))
    at = np.sum(curves_of(found, keys[:1], np.ones(1, int)) * hats(np, np.array([50.0])), axis=1)
    assert at == pytest.approx(np.log(1.1), rel=0.1)
    assert (
        not curves_of(found, keys[:1], np.zeros(1, int)).any()
        and not curves_of(found, keys[:1] + 1, np.ones(1, int)).any()
    )
    # Half way between two knots in the logarithm, each weighs half.
    weights = hats(np, np.array([np.sqrt(KNOTS[2] * KNOTS[3])]))[0]
    assert weights.tolist() == pytest.approx([0, 0, 0.5, 0.5, *[0] * 7])

"""Fitting: constants that were moved are found again, within bounds, the same each time; bad data are refused."""

import struct
from hashlib import sha256

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors.check import check_determined, digest
from predictors.constants import scaled
from predictors.fit import fit, fit_loss
from sim.cost.analytic import analytic_cost
from sim.cost.kernel_cost import KernelCost
from sim.cost.stats import BatchStats
from sim.cost.step_cost import StepCost
from sim.cost.table import price_steps
from sim.deployment.plan import trimmed


def test_moved_constants_are_found(found, truth):
    assert found.factors == pytest.approx(truth, rel=1e-4)
    assert np.abs(found.error_after).max() < 1e-5
    assert found.at_bound == ()


def test_the_loss_falls_and_the_best_is_kept(found):
    assert found.loss[0] > 1e-3
    assert found.loss.min() < 1e-9 * found.loss[0]
    assert np.median(np.abs(found.error_after)) < np.median(np.abs(found.error_before))


def test_the_fitted_trees_price_as_reported(found, cost, plan, stats, measured_s):
    before = price_steps(cost, plan, stats)["total_s"]
    after = price_steps(found.cost, found.plan, stats)["total_s"]
    assert np.allclose(found.error_before, before / measured_s - 1, rtol=0, atol=1e-12)
    assert np.allclose(found.error_after, after / measured_s - 1, rtol=0, atol=1e-12)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves((found.cost, found.plan)))


def test_noise_and_outliers_move_little(cost, plan, stats, measured_s, truth):
    # 1 % noise, and three steps in which something else took nine times as long.
    noisy = measured_s * np.exp(np.random.default_rng(1).normal(0.0, 0.01, len(measured_s)))
    noisy[[4, 20, 43]] *= 10.0
    result = fit(cost, plan, stats, noisy, leaves=tuple(truth))
    assert result.factors["device.memory_bytes_per_s"] == pytest.approx(0.85, rel=0.04)
    assert result.factors["gemm.flops_per_s"] == pytest.approx(0.9, rel=0.04)
    assert np.median(np.abs(result.error_after)) < 0.02 < np.median(np.abs(result.error_before))


def test_factors_stay_within_bounds(cost, plan, stats, measured_s, truth):
    # Steps four times as long: every constant would have to move by 4, and may by 1.25.
    result = fit(cost, plan, stats, 4.0 * measured_s, leaves=tuple(truth), bounds=1.25)
    assert all(0.8 * (1 - 1e-12) <= factor <= 1.25 * (1 + 1e-12) for factor in result.factors.values())
    assert result.at_bound == tuple(truth)
    assert result.factors["gemm.flops_per_s"] == pytest.approx(0.8)
    assert result.factors["decode.floor_s"] == pytest.approx(1.25)
    assert "gemm.flops_per_s: x 0.8, at the bound of 1.25" in str(result)


def test_the_same_data_give_the_same_constants(found, cost, plan, stats, measured_s, truth):
    again = fit(cost, plan, stats, measured_s, leaves=tuple(truth))
    assert again.factors == found.factors
    assert np.array_equal(again.loss, found.loss)
    assert again.data_sha256 == found.data_sha256


def test_the_gradient_equals_finite_differences(cost, plan, stats, measured_s, truth):
    def by_hand(values) -> float:
        # Huber with 0.1: half the square up to there, then 0.1 |e| - 0.005.
        factors = dict(zip(truth, np.exp(values).tolist(), strict=True))
        error = np.abs(np.log(price_steps(*scaled(cost, plan, factors), stats)["total_s"] / measured_s))
        return float(np.where(error < 0.1, error**2 / 2, 0.1 * error - 0.005).mean())

    point = np.array([0.05, -0.03, 0.1, 0.2])
    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(fit_loss), static_argnums=1)
        exact = np.asarray(gradient(point, tuple(truth), cost, trimmed(plan), stats, measured_s))
    for index, step in enumerate(1e-6 * np.eye(len(point))):
        slope = (by_hand(point + step) - by_hand(point - step)) / 2e-6
        assert exact[index] == pytest.approx(slope, rel=1e-4, abs=1e-9)
    assert (np.abs(exact) > 1e-6).all()


class Cliff(KernelCost):
    """A price that ends where the memory is 1 % faster than published."""

    def __call__(self, plan, stats):
        seconds = jnp.sqrt(1.01 - plan.device.memory_bytes_per_s / 2.9212e12) + 0.0 * stats.decodes
        return StepCost(seconds, *[jnp.zeros_like(seconds)] * 11)


def test_a_price_that_ends_is_said(plan, stats, measured_s):
    with pytest.raises(ValueError, match="the loss is no number after 1 updates; lower bounds"):
        fit(Cliff(**vars(analytic_cost())), plan, stats, 1e-3 * measured_s, leaves="device.memory_bytes_per_s")


def test_the_report_names_constants_and_errors(found):
    lines = str(found).splitlines()
    assert lines[0] == "device.memory_bytes_per_s: x 0.85"
    assert lines[-1].startswith("median error of 60 steps:") and lines[-1].endswith("0.00% after")


def test_the_digest_is_that_of_the_columns():
    fields = BatchStats.__dataclass_fields__
    stats = BatchStats(**{name: np.array([float(index)]) for index, name in enumerate(fields)})
    expected = sha256(struct.pack(f"<{len(fields) + 1}d", *range(len(fields)), 0.5)).hexdigest()
    assert digest(stats, np.array([0.5])) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leaves": []}, "leaves must name at least one constant to fit"),
        ({"leaves": ["gemm.split_s"] * 2}, "once, got 'gemm.split_s' twice"),
        ({"leaves": "gemm.flops_per_"}, "'gemm.flops_per_' is no rate.*nearest is 'gemm.flops_per_s'"),
        ({"leaves": ["gemm.count"]}, "'gemm.count' is no rate, time or share"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be positive and finite, got -1.0"),
        ({"bounds": 1.0}, "bounds must be a finite factor above 1, got 1.0"),
    ],
)
def test_settings_that_cannot_be(cost, plan, stats, measured_s, changes, message):
    with pytest.raises(ValueError, match=message):
        fit(cost, plan, stats, measured_s, **({"leaves": ["gemm.flops_per_s"]} | changes))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, -0.01])
def test_times_that_cannot_be(cost, plan, stats, measured_s, wrong):
    times = measured_s.copy()
    times[7] = wrong
    with pytest.raises(ValueError, match=f"measured_s must be finite and positive, got {wrong} in step 7"):
        fit(cost, plan, stats, times, leaves=["gemm.flops_per_s"])


def test_batches_that_cannot_be(cost, plan, stats, measured_s):
    column = stats.decodes.copy()
    column[3] = -1.0
    negative = eqx.tree_at(lambda s: s.decodes, stats, column)
    with pytest.raises(ValueError, match="stats.decodes must be finite and at least 0, got -1.0 in step 3"):
        fit(cost, plan, negative, measured_s, leaves=["gemm.flops_per_s"])


def test_shapes_that_do_not_fit(cost, plan, stats, measured_s):
    leaves = ["gemm.flops_per_s", "gemm.split_s"]
    with pytest.raises(
        ValueError, match=r"stats.prefill_tokens must have the shape of measured_s, \(59,\), got \(60,\)"
    ):
        fit(cost, plan, stats, measured_s[:-1], leaves=leaves)
    with pytest.raises(ValueError, match=r"measured_s must have one axis, \[step\], got shape \(\)"):
        fit(cost, plan, stats, 0.01, leaves=leaves)
    with pytest.raises(ValueError, match="2 constants need at least as many measured steps, got 1"):
        fit(cost, plan, jax.tree.map(lambda column: column[:1], stats), measured_s[:1], leaves=leaves)
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 3), plan)
    with pytest.raises(ValueError, match="plan must hold one plan, got a stack of 3"):
        fit(cost, stacked, stats, measured_s, leaves=leaves)


def test_data_that_do_not_determine_the_constants():
    prices = np.zeros(3)
    # The second constant does to every step twice what the first does.
    tied = np.array([[1.0, 2.0, 0.3], [0.5, 1.0, 0.1], [0.2, 0.4, 0.9]])
    with pytest.raises(ValueError, match="cannot tell '(a|b)' from '(a|b)'; leave one of them out"):
        check_determined(("a", "b", "c"), prices, tied)
    with pytest.raises(ValueError, match="no measured step depends on 'b'"):
        check_determined(("a", "b", "c"), prices, tied * [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="step 1 is an empty batch, which costs nothing"):
        check_determined(("a",), np.array([0.0, -np.inf]), np.ones((2, 1)))
    check_determined(("a", "c"), prices, tied[:, [0, 2]])


def test_a_constant_that_no_step_uses(plan, stats, measured_s):
    with pytest.raises(ValueError, match="no measured step depends on 'moe.flops_per_s'"):
        fit(Cliff(**vars(analytic_cost())), plan, stats, measured_s, leaves="moe.flops_per_s")

"""Fitting constants of a form: exact laws, outliers, bounds, and what is refused."""

import numpy as np
import pytest

from predictors.physics import fit_constants


BYTES = np.logspace(3, 10, 60)
START = {"floor": 1e-5, "rate": np.array([1e12, 1e12])}
KIND = np.arange(60) % 2


def form(constants):
    return constants["floor"] + BYTES / constants["rate"][KIND]


TRUTH = {"floor": 3e-6, "rate": np.array([2e12, 5e11])}
MEASURED = form(TRUTH)


@pytest.fixture(scope="module")
def exact():
    return fit_constants(form, START, MEASURED, steps=400)


def test_constants_of_a_law_are_found(exact):
    found, loss = exact
    assert found["floor"] == pytest.approx(3e-6, rel=1e-3)
    assert found["rate"] == pytest.approx(TRUTH["rate"], rel=1e-3)
    # huber(e) = e^2/2 near 0
    assert 0.0 <= loss < 1e-6
    assert np.mean(np.log(form(found) / MEASURED) ** 2) / 2 == pytest.approx(loss, abs=1e-12)


def test_the_same_data_give_the_same_bytes(exact):
    found, loss = fit_constants(form, START, MEASURED, steps=400)
    assert all(found[name].tobytes() == exact[0][name].tobytes() for name in found) and loss == exact[1]


def test_an_outlier_does_not_rule():
    # One row in 30 took ten times as long; without its weight it is as if it were not there.
    wrong = MEASURED * np.where(np.arange(60) % 30 == 7, 10.0, 1.0)
    robust, _ = fit_constants(form, START, wrong, steps=400)
    assert robust["rate"] == pytest.approx(TRUTH["rate"], rel=0.05)
    weights = np.where(wrong == MEASURED, 1.0, 0.0)
    without, loss = fit_constants(form, START, wrong, weights=weights, steps=400)
    assert without["rate"] == pytest.approx(TRUTH["rate"], rel=1e-3) and loss < 1e-6


def test_bounds_hold_and_others_move_a_hundredfold_at_most():
    bounds = {"rate": (np.array([1e11, 1e11]), np.array([1.5e12, 1e13]))}
    found, _ = fit_constants(form, START, 1e-6 * MEASURED, bounds=bounds, steps=400)
    assert (found["rate"] <= bounds["rate"][1] * (1 + 1e-9)).all()
    assert found["rate"] == pytest.approx(bounds["rate"][1]) and found["floor"] == pytest.approx(1e-7)


@pytest.mark.parametrize("wrong", [0.0, np.nan, -1.0])
def test_seconds_that_cannot_be_are_refused(wrong):
    measured = MEASURED.copy()
    measured[3] = wrong
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="must be positive and finite"):
        fit_constants(form, START, measured, steps=2)

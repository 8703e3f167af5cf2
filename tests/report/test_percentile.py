"""Weighted statistics equal those of the expanded samples."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.report.percentile import distribution, weighted_percentiles


SAMPLES = st.lists(st.tuples(st.floats(0, 1e4, allow_nan=False), st.integers(0, 20)), min_size=1, max_size=30).filter(
    lambda pairs: sum(count for _, count in pairs) > 0
)


@given(SAMPLES, st.lists(st.floats(0, 100), min_size=1, max_size=4))
def test_weighted_percentiles_are_numpys_of_the_expanded_sample(pairs, percentiles):
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    expanded = np.repeat(values, counts)
    found = weighted_percentiles(values, counts, percentiles)
    assert np.array_equal(found, np.percentile(expanded, percentiles))


@given(SAMPLES)
def test_weighted_moments_are_numpys_of_the_expanded_sample(pairs):
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    expanded = np.repeat(values, counts)
    found = distribution(values, counts)
    assert found.count == len(expanded)
    assert found.mean_s == pytest.approx(expanded.mean(), rel=1e-12, abs=1e-12)
    assert found.std_s == pytest.approx(expanded.std(), rel=1e-9, abs=1e-9)
    assert found.median_s == np.percentile(expanded, 50)
    assert (found.min_s, found.max_s) == (expanded.min(), expanded.max())


def test_counts_of_zero_are_no_samples():
    found = distribution(np.array([1.0, 9.0]), np.array([3, 0]))
    assert (found.count, found.max_s) == (3, 1.0)


def test_no_sample_gives_none_without_a_warning():
    for found in (distribution(np.array([])), distribution(np.array([1.0]), np.array([0]))):
        assert (found.count, found.mean_s, found.median_s, found.std_s) == (0, None, None, None)
        assert found.percentile_s(99.0) is None


def test_asking_for_an_unknown_percentile_names_the_known_ones():
    found = distribution(np.array([1.0]))
    with pytest.raises(ValueError, match=r"one of \[90.0, 95.0, 99.0\], got 42"):
        found.percentile_s(42)
    with pytest.raises(ValueError, match="numbers from 0 to 100, got 101"):
        distribution(np.array([1.0]), percentiles=(101,))


def test_rounding_is_no_spread():
    """Three times 0.1 s: their mean is 1e-17 off, a spread of 1e-8 of the mean is one."""
    assert distribution(np.array([0.1, 0.1, 0.1])).std_s == 0.0
    assert distribution(np.array([1.0, 1.0 + 2e-8])).std_s == pytest.approx(1e-8, rel=1e-3)

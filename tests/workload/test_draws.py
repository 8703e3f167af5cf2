"""The random numbers: accuracy of the portable logarithm and exponential, streams, and rejection in order."""

import numpy as np
import pytest

from sim.workload import draws


def test_logarithm_and_exponential_agree_with_the_library_to_four_last_places():
    x = np.concatenate([np.exp(np.linspace(-700, 700, 5001)), np.linspace(0.5, 2, 5000)])
    assert np.max(np.abs(draws.log(x) - np.log(x)) / np.spacing(np.maximum(np.abs(np.log(x)), 1e-3))) <= 4
    y = np.linspace(-700, 700, 10_001)
    assert np.max(np.abs(draws.exp(y) / np.exp(y) - 1)) <= 4 * 2.0**-52


def test_exact_values():
    assert draws.log(np.array([1.0]))[0] == 0.0
    assert draws.exp(np.array([0.0]))[0] == 1.0


def test_streams_of_one_seed_differ_and_repeat():
    first = draws.stream(7, draws.ARRIVALS).random(4)
    assert np.array_equal(first, draws.stream(7, draws.ARRIVALS).random(4))
    assert not np.array_equal(first, draws.stream(7, draws.LENGTHS).random(4))
    assert not np.array_equal(first, draws.stream(8, draws.ARRIVALS).random(4))
    with pytest.raises(ValueError, match="seed wants an integer >= 0, got -1"):
        draws.stream(-1, draws.ARRIVALS)


def test_accepted_keeps_the_order_whatever_the_number():
    def below_half(u):
        return u, u[:, 0] < 0.5

    short, long = (draws.accepted(draws.stream(1, 0), count, 2, below_half, "none") for count in (10, 500))
    assert short.shape == (10, 2) and np.all(long[:, 0] < 0.5)
    assert np.array_equal(short, long[:10])


def test_accepted_gives_up_with_the_given_sentence():
    with pytest.raises(ValueError, match="nothing fits"):
        draws.accepted(draws.stream(1, 0), 3, 1, lambda u: (u, u[:, 0] < 0), "nothing fits")


def test_polar_normal_is_standard_normal():
    z, inside = draws.polar_normal(*draws.stream(0, 0).random((2, 400_000)))
    z = z[inside]
    # The circle takes pi / 4 of the square.
    assert abs(inside.mean() - np.pi / 4) < 4 * 0.41 / np.sqrt(400_000)
    assert abs(z.mean()) < 4 / np.sqrt(len(z)) and abs(z.var() - 1) < 4 * np.sqrt(2 / len(z))
    assert abs((z**4).mean() - 3) < 4 * np.sqrt(96 / len(z))

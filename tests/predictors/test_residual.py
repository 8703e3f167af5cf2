"""The ensemble: what it learns, its own doubt, ranges and slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors.residual import AGREEMENT, Network, Residual, Schedule, train


QUICK = Schedule(members=3, width=16, steps=400, batch=128, rate=1e-2)


apply = jax.jit(lambda net, features: net(features))


def bump(features):
    return 0.2 * np.sin(features[:, 0]) + 0.1 * features[:, 1]


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(0).uniform((-2.0, 0.0), (2.0, 1.0), (512, 2))


@pytest.fixture(scope="module")
def trained(features):
    return train(features, bump(features), seed=3, schedule=QUICK)


def members(values):
    """An ensemble of one feature whose members give `values`, whatever the feature."""
    network = Network(4)
    one = network.init(jax.random.key(0), jnp.zeros((1, 1)))["params"]
    many = jax.tree.map(lambda leaf: np.repeat(np.zeros_like(leaf)[None], len(values), axis=0), one)
    many["Dense_2"]["bias"] = np.asarray(values)[:, None]
    unit = {"center": np.zeros(1), "scale": np.ones(1), "low": np.zeros(1), "high": np.ones(1)}
    return Residual(parameters=many, width=4, **unit)


def test_a_smooth_factor_is_learned(trained):
    unseen = np.random.default_rng(1).uniform((-1.9, 0.05), (1.9, 0.95), (200, 2))
    found = apply(trained, jnp.asarray(unseen, jnp.float32))
    assert np.abs(found.log_factor - bump(unseen)).mean() < 0.02
    assert not np.asarray(found.outside).any() and (np.asarray(found.spread) >= 0.0).all()


def test_the_same_seed_gives_the_same_bytes(features, trained):
    same, other = (train(features, bump(features), seed=seed, schedule=QUICK) for seed in (3, 4))
    leaves = [[np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(one)] for one in (trained, same, other)]
    assert leaves[0] == leaves[1] != leaves[2]


def test_members_that_disagree_are_not_trusted():
    # Mean 0.1, standard deviation 0.05: trusted by half.
    found = apply(members([0.05, 0.15]), jnp.zeros((1, 1)))
    assert (found.spread[0], found.log_factor[0]) == (pytest.approx(AGREEMENT), pytest.approx(0.05))
    # All alike, and one alone: fully.
    for values in ([0.1, 0.1], [0.1]):
        found = apply(members(values), jnp.zeros((1, 1)))
        assert (found.spread[0], found.log_factor[0]) == (0.0, pytest.approx(0.1))


def test_beyond_its_range_the_factor_is_constant_and_marked(trained, features):
    high = features.max(axis=0)
    at, beyond = (apply(trained, jnp.asarray([point], jnp.float32)) for point in (high, high + 5.0))
    assert (at.outside[0], beyond.outside[0]) == (0.0, 1.0)
    assert float(at.log_factor[0]) == float(beyond.log_factor[0])


def test_slopes_are_finite_even_where_members_agree(trained):
    def total(net, at):
        found = net(at)
        return jnp.sum(found.log_factor + found.spread)

    for net, width in ((trained, 2), (members([0.1, 0.1]), 1), (members([0.1]), 1)):
        assert np.isfinite(jax.jit(jax.grad(total, argnums=1))(net, jnp.full((3, width), 0.5))).all()


def test_slopes_by_finite_differences(trained):
    with jax.enable_x64(True):
        at = np.array([[0.3, 0.4]])
        price = jax.jit(lambda row: trained(row).log_factor[0])
        slope = np.asarray(jax.jit(jax.grad(price))(at))[0]
        for axis in (0, 1):
            step = 1e-5 * np.eye(2)[axis]
            high, low = (float(price(at + side * step)) for side in (1, -1))
            assert slope[axis] == pytest.approx((high - low) / 2e-5, rel=1e-5)

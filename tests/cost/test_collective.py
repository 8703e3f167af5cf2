"""The collective kernel: hand values, monotone, differentiable."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.cost.collective import collective_s, collective_terms, soft_min
from sim.deployment.plan import CollectiveSlots
from sim.hardware.collectives import collective_constants
from sim.hardware.read import load_device


def slots(count=(1.0,), bytes_per_token=(8192.0,), factor=(1.5,), a_s=None, bytes_per_s=None, emitting=(0.0,)):
    """One configuration; defaults: all-reduce of 4 ranks, three protocols of a round device."""
    a_s = [[5e-6, 10e-6, 40e-6]] if a_s is None else a_s
    bytes_per_s = [[2e9, 100e9, 300e9]] if bytes_per_s is None else bytes_per_s
    arrays = (jnp.asarray(x) for x in (count, bytes_per_token, factor, a_s, bytes_per_s, emitting))
    return CollectiveSlots(*arrays)


compiled = jax.jit(lambda group, tokens, rows: collective_s(collective_terms(group), tokens, rows))


def price(group, tokens, rows=0.0):
    return compiled(group, jnp.asarray(tokens), jnp.asarray(rows))


def test_by_hand():
    # 64 tokens x 8192 B = 524,288 B; x 1.5 = 786,432 B sent.
    # LL 5 + 393.2 = 398.2 us, LL128 10 + 7.864 = 17.864 us, Simple 40 + 2.621 = 42.621 us.
    # Soft minimum: 17.864 x (1 + (17.864/42.621)^4 + (17.864/398.2)^4)^(-1/4) = 17.864 x 1.03087^(-1/4) = 17.729 us.
    assert float(price(slots(), 64.0)[0]) == pytest.approx(17.729e-6, rel=1e-3)


def test_limits():
    # Nothing to move: the latency of LL, rounded at its corner; very much: Simple's rate.
    assert float(price(slots(), 0.0)[0]) == pytest.approx(5e-6 * (1 + 1 / 16 + 1 / 4096) ** -0.25, rel=1e-5)
    assert float(price(slots(), 1e9)[0]) == pytest.approx(1.5 * 8192e9 / 300e9, rel=0.01)


def test_rows_that_emit_and_count():
    group = slots(
        count=(2.0, 3.0),
        bytes_per_token=(1e4, 1e4),
        factor=(1.0, 1.0),
        a_s=[[1e-6] * 3] * 2,
        bytes_per_s=[[1e9] * 3] * 2,
        emitting=(0.0, 1.0),
    )
    # Three equal protocols: t x 3^(-1/4). 100 tokens: 1 us + 1 ms; 10 emitting rows: 1 us + 0.1 ms.
    expected = np.array([2 * 1.001e-3, 3 * 0.101e-3]) * 3**-0.25
    np.testing.assert_allclose(price(group, 100.0, 10.0), expected, rtol=1e-5)


def test_unused_slots_and_protocols_cost_nothing():
    empty = slots(count=(0.0,), bytes_per_token=(0.0,), factor=(0.0,), a_s=[[0.0] * 3], bytes_per_s=[[0.0] * 3])
    assert float(price(empty, 100.0)[0]) == 0.0
    gradient = jax.grad(lambda s: jnp.sum(price(s, 100.0)))(empty)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    # One rank: no latency, no traffic.
    one = collective_constants(load_device("h100-sxm"), "all_reduce", 1)
    alone = slots(factor=(one.factor,), a_s=[one.a_s], bytes_per_s=[one.bytes_per_s])
    assert float(price(alone, 100.0)[0]) == 0.0
    # A protocol without bandwidth is left out.
    single = slots(a_s=[[5e-6, 0.0, 0.0]], bytes_per_s=[[1e9, 0.0, 0.0]])
    assert float(price(single, 100.0)[0]) == pytest.approx(5e-6 + 1.5 * 8192 * 100 / 1e9, rel=1e-5)


def test_axes_broadcast_over_configurations():
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), slots())
    tokens = jnp.asarray([1.0, 10.0, 100.0, 1e3, 1e4])
    together = compiled(stacked, tokens, jnp.zeros(5))
    assert together.shape == (1, 5)
    np.testing.assert_allclose(together[0], [float(price(slots(), float(t))[0]) for t in tokens], rtol=1e-6)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(1.001, 100))
def test_more_bytes_never_take_less(tokens, more):
    with jax.enable_x64(True):
        assert float(price(slots(), tokens)[0]) <= float(price(slots(), tokens * more + 1.0)[0])


@settings(deadline=None)
@given(st.lists(st.floats(1e-7, 10.0), min_size=3, max_size=3))
def test_soft_minimum_is_close_below(times):
    value = float(jax.jit(soft_min)(jnp.asarray(times)))
    assert min(times) * 3**-0.25 * (1 - 1e-5) <= value <= min(times) * (1 + 1e-5)


def micros(group, tokens):
    return 1e6 * jnp.sum(compiled(group, tokens, jnp.zeros_like(tokens)))


@pytest.mark.parametrize("tokens", [1.0, 30.0, 64.0, 400.0, 5000.0])
def test_gradient_equals_finite_differences(tokens):
    """As elasticities, leaf x derivative, so that a millionth of the time is the yardstick for every leaf."""
    with jax.enable_x64(True):
        value, slope = jax.jit(micros), jax.jit(jax.grad(micros, argnums=(0, 1)))
        group, point, step = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), slots()), jnp.asarray(tokens), 1e-5
        small = 1e-6 * float(value(group, point))
        gradients, by_tokens = slope(group, point)
        numeric = (value(group, point * (1 + step)) - value(group, point * (1 - step))) / (2 * step)
        assert float(by_tokens) * tokens == pytest.approx(float(numeric), rel=1e-4, abs=small)
        for name in ("count", "bytes_per_token", "factor", "a_s", "bytes_per_s"):
            leaf = getattr(group, name)
            for index in np.ndindex(leaf.shape):
                ends = []
                for sign in (1, -1):
                    moved = eqx.tree_at(
                        lambda g, name=name: getattr(g, name), group, leaf.at[index].multiply(1 + sign * step)
                    )
                    ends.append(float(value(moved, point)))
                analytic = float(getattr(gradients, name)[index] * leaf[index])
                assert analytic == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=small)

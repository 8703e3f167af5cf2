"""The collective kernel: hand values, monotone, differentiable."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.cost.collective import collective_price, collective_s, collective_terms, soft_min
from sim.deployment.exchange import collective, collective_slots, measured_points
from sim.deployment.plan import CollectiveSlots
from sim.hardware.collective_points import monotone, shipped_points
from sim.hardware.collectives import collective_constants
from sim.hardware.read import load_device


def slots(
    count=(1.0,), bytes_per_token=(8192.0,), factor=(1.5,), a_s=None, bytes_per_s=None, emitting=(0.0,), points=None
):
    """One configuration; defaults: all-reduce of 4 ranks, three protocols of a round device, nothing measured.

    `points`: (bytes sent, ratio) by slot.
    """
    a_s = [[5e-6, 10e-6, 40e-6]] if a_s is None else a_s
    bytes_per_s = [[2e9, 100e9, 300e9]] if bytes_per_s is None else bytes_per_s
    measured = [
        measured_points(tuple(np.log(sent)), tuple(np.log(ratio))) for sent, ratio in points or [((), ())] * len(count)
    ]
    log_sent, log_ratio = ([one[name] for one in measured] for name in ("log_sent", "log_ratio"))
    largest = [sent[-1] if len(sent) else np.inf for sent, _ in points or [((), ())] * len(count)]
    claims = (np.full(len(count), 0.04), np.zeros(len(count)), largest)
    arrays = (count, bytes_per_token, factor, a_s, bytes_per_s, emitting, log_sent, log_ratio, *claims)
    return CollectiveSlots(*(jnp.asarray(x) for x in arrays))


compiled = jax.jit(lambda group, tokens, rows: collective_s(collective_terms(group), tokens, rows))
claimed = jax.jit(lambda group, tokens, rows: collective_price(collective_terms(group), tokens, rows))


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


POINTS = [((1e5, 4e5, 1.6e6), (2.0, 1.0, 0.5))]


def test_measured_ratios_are_met_and_interpolated_in_the_logarithm():
    # 1.5 x 8192 B a token: 4e5 bytes are 32.55 tokens; half way to 1.6e6 in the logarithm is 8e5, ratio 2 ** -0.5.
    form, measured = slots(), slots(points=POINTS)
    for sent, ratio in ((1e4, 2.0), (1e5, 2.0), (2e5, 2**0.5), (4e5, 1.0), (8e5, 2**-0.5), (1.6e6, 0.5), (1e9, 0.5)):
        tokens = sent / (1.5 * 8192)
        assert float(price(measured, tokens)[0] / price(form, tokens)[0]) == pytest.approx(ratio, rel=1e-4)


def test_a_plan_meets_the_measured_time():
    # H200, 8 ranks, vLLM 0.24: the shipped series at three of its sizes, tokens of 8 KiB.
    device = load_device("h200-sxm")
    series = next(
        one for one in shipped_points()["h200_sxm", "vllm", "all_reduce"] if (one.build, one.group) == ("0.24.0", 8)
    )
    found = collective_constants(device, "all_reduce", 8, "vllm")
    group = jax.tree.map(jnp.asarray, collective_slots([collective(found, 3.0, 8192.0, 0.0)]))
    for size, seconds in list(zip(series.size_bytes, monotone(series.time_s), strict=True))[6:20:5]:
        assert float(price(group, size / 8192)[0]) == pytest.approx(3 * seconds, rel=1e-4)


def test_a_price_says_what_it_does_not_know():
    group = slots(
        count=(1.0, 1.0),
        bytes_per_token=(1e3, 1e3),
        factor=(1.0, 1.0),
        a_s=[[1e-6] * 3] * 2,
        bytes_per_s=[[1e9] * 3] * 2,
        emitting=(0.0, 1.0),
        points=POINTS * 2,
    )
    inside, beyond = (claimed(group, jnp.asarray(tokens), jnp.asarray(0.0)) for tokens in (1600.0, 1601.0))
    assert float(inside.error_s[0]) == pytest.approx(0.04 * float(inside.seconds[0]))
    assert inside.outside_s[0] == 0.0 and beyond.outside_s[0] == beyond.seconds[0]
    assert [float(leaf[1]) for leaf in inside] == [0.0, 0.0, 0.0]  # no emitting rows


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
        group = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), slots(points=POINTS))
        point, step = jnp.asarray(tokens), 1e-5
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

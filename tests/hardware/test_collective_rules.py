"""Closed forms of collectives, worked by hand, and their limits."""

import jax
import jax.numpy as jnp
import pytest

from sim.hardware.collective_rules import Dimension, Rules, closed_form_ns, phases_of
from sim.hardware.collective_steps import steps_of


PLAIN = Rules(splits=4, active=1, endpoint_ns=10, memory_bytes_per_ns=100.0)
QUEUED = Rules(splits=4, active=1, endpoint_ns=10, memory_bytes_per_ns=100.0, queued=True)


def test_a_ring_by_hand():
    """4 ranks, 4 chunks of 4,000 bytes, messages of 1,000: 500 + 1,000 / 50 = 520 ns a hop, 30 ns to sum one."""
    ring = [Dimension("Ring", 4, 500, 50)]
    assert closed_form_ns("all_reduce", 16_000, ring, PLAIN) == 4 * (6 * (520 + 10) + 3 * 30 + 10)
    assert closed_form_ns("reduce_scatter", 16_000, ring, PLAIN) == 4 * (3 * (520 + 10 + 30) + 10)
    # an all-gather's ranks put in 16,000 bytes each: messages of 4,000, 580 ns a hop
    assert closed_form_ns("all_gather", 16_000, ring, PLAIN) == 4 * (3 * (580 + 10) + 10)
    # every message goes 1, 2 or 3 times to a neighbour: 6 in a row
    assert closed_form_ns("all_to_all", 16_000, ring, PLAIN) == 4 * (6 * (520 + 10) + 10)


def test_a_switch_by_hand():
    """Up and down: 2 x 500 + 20 ns, or 2 x 520 where the switch takes in a whole message before it sends it on."""
    switch = [Dimension("Switch", 4, 500, 50)]
    assert closed_form_ns("all_to_all", 16_000, switch, PLAIN) == 4 * (6 * (1020 + 10) + 10)
    assert closed_form_ns("all_to_all", 16_000, switch, QUEUED) == 4 * (6 * (1040 + 10) + 10)
    # three messages at once leave one after the other; the last is sent on when it is in: 1,000 + 3 x 20 + 20
    direct = [Dimension("Switch", 4, 500, 50, "direct")]
    assert closed_form_ns("all_to_all", 16_000, direct, QUEUED) == 4 * (1080 + 10 + 10)
    # halving: 2,000 bytes then 1,000 (1,040 and 1,020 ns), the second summed
    halving = [Dimension("Switch", 4, 500, 50, "halvingDoubling")]
    assert closed_form_ns("reduce_scatter", 16_000, halving, PLAIN) == 4 * (1040 + 10 + 1020 + 10 + 30 + 10)


def test_two_chunks_at_a_switch_hide_its_store_and_forward():
    switch = [Dimension("Switch", 4, 500, 50)]
    two = Rules(4, 2, 10, 100.0, queued=True)
    # half the rounds, and one message of the second chunk behind the first
    assert closed_form_ns("all_to_all", 16_000, switch, two) == 2 * (6 * (1040 + 10) + 10) + 20


def test_chunks_overlap_across_dimensions():
    """A slow second dimension: the first chunk waits for its scatter, the last gathers when the second one is done."""
    inner, outer = Dimension("Ring", 2, 0, 100), Dimension("Ring", 2, 0, 1)
    bare = Rules(4, 1, 0, 1e12)
    # chunks of 4,000: scatter 2,000 / 100 = 20 ns, all-reduce of 2,000 in two messages of 1,000, gather 20 ns
    assert closed_form_ns("all_reduce", 16_000, [inner, outer], bare) == pytest.approx(20 + 4 * 2000 + 20)
    # the other way round the first dimension works for all chunks twice: 4 x (2,000 + 2,000), the rest is hidden
    assert closed_form_ns("all_reduce", 16_000, [outer, inner], bare) == pytest.approx(16_000)


def test_phases_put_in_what_the_ones_before_left():
    found = [(phase.dimension, phase.op, float(phase.share)) for phase in phases_of("all_reduce", (4, 2))]
    assert found == [(0, "reduce_scatter", 1.0), (1, "all_reduce", 0.25), (0, "all_gather", 0.25)]
    assert [(one.dimension, float(one.share)) for one in phases_of("all_gather", (4, 2))] == [(1, 1.0), (0, 2.0)]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_more_bandwidth_is_less_time_and_the_slope_is_known(op):
    """The gradient in a link's rate is the one of finite differences, below zero, also through the maximum."""

    def time_ns(rate):
        return closed_form_ns(op, 1e6, [Dimension("Ring", 4, 500, rate), Dimension("Switch", 2, 900, 25.0)], PLAIN)

    with jax.enable_x64(True):
        slope = jax.grad(time_ns)(jnp.asarray(8.0))
        assert slope < 0
        assert slope == pytest.approx((time_ns(8.001) - time_ns(7.999)) / 0.002, rel=1e-4)
        assert jax.vmap(time_ns)(jnp.asarray([8.0, 16.0])).tolist() == [
            pytest.approx(float(time_ns(8.0))),
            pytest.approx(float(time_ns(16.0))),
        ]


def test_what_has_no_closed_form_is_said():
    with pytest.raises(ValueError, match="only events"):
        closed_form_ns("all_reduce", 1e6, [Dimension("Ring", 8, 500, 50)], Rules(active=2, queued=True))
    with pytest.raises(ValueError, match="only events"):
        closed_form_ns("all_reduce", 1e6, [Dimension("Ring", 8, 500, 50, "direct")], PLAIN)
    with pytest.raises(ValueError, match="one of all_reduce"):
        closed_form_ns("broadcast", 1e6, [Dimension("Ring", 8, 500, 50)], PLAIN)
    with pytest.raises(ValueError, match="2, 4, 8"):
        steps_of("all_reduce", "halvingDoubling", 6)
    with pytest.raises(ValueError, match="an algorithm of ring"):
        steps_of("all_reduce", "tree", 4)
    with pytest.raises(ValueError, match="Ring, FullyConnected, Switch"):
        Dimension("Mesh", 4, 500, 50)

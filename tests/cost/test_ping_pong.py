"""Micro-batches between two kinds of devices: closed forms, bounds that no schedule can pass, and a plain longest path.

With L equal layers, m micro-batches and links that take no time, the side that needs longer works without a pause once
it has begun, and the other is before it once, or after it once: L m max(a, f) + min(a, f) for m > 1. One micro-batch is
in one place at a time: L (a + f).
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.cost.ping_pong import Hops, cycles, ping_pong_s


FREE = 0.0
EQUAL = ((0, 0),)


def even(layers, parts, a, f, x=FREE, y=FREE, there=0.0, back=0.0):
    """Equal layers and equal micro-batches."""
    ways = Hops([x] * parts, there), Hops([y] * parts, back)
    return ping_pong_s(cycles(EQUAL * layers), [[a] * parts], [[f] * parts], *ways)


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize(("a", "f"), [(3.0, 5.0), (5.0, 3.0), (4.0, 4.0), (5.0, 0.0)])
def test_infinite_links_are_a_pipeline_of_the_slower_side(parts, a, f):
    assert even(61, parts, a, f) == pytest.approx(61 * parts * max(a, f) + min(a, f), rel=1e-12)


def test_one_micro_batch_is_everything_in_turn():
    assert even(61, 1, 3.0, 5.0, 1.0, 2.0, 0.5, 0.25) == pytest.approx(61 * (3 + 1 + 0.5 + 5 + 2 + 0.25), rel=1e-12)


def test_free_ffn_devices_leave_attention_alone():
    """Also with one micro-batch."""
    assert even(10, 1, 3.0, 0.0) == pytest.approx(30.0)
    assert even(10, 3, 3.0, 0.0) == pytest.approx(90.0)


def test_slow_links_bound_the_step():
    """Three micro-batches of 10 a layer on the way there, that never pauses after the first attention of 2; then the
    last one's latency of 1, its FFN of 3, and 4 and 1 back. The round trip of 11 hides behind the other two's 20."""
    wanted = 2 + 50 * 3 * 10 + 1 + 3 + 4 + 1
    assert even(50, 3, 2.0, 3.0, 10.0, 4.0, 1.0, 1.0) == pytest.approx(wanted, rel=1e-12)
    # the same on the way back: the first is there after 2 + 4 + 1 + 3, and the last waits for its latency
    wanted = 2 + 4 + 1 + 3 + 50 * 3 * 10 + 1
    assert even(50, 3, 2.0, 3.0, 4.0, 10.0, 1.0, 1.0) == pytest.approx(wanted, rel=1e-12)


def test_a_round_trip_too_long_for_two_hides_behind_three():
    """a = f = 2 and latencies of 1: the round trip of 6 leaves two micro-batches (4) idle, not three (6)."""
    assert even(100, 2, 2.0, 2.0, there=1.0, back=1.0) == pytest.approx(100 * 6 + 2, rel=1e-12)
    assert even(100, 3, 2.0, 2.0, there=1.0, back=1.0) == pytest.approx(100 * 6 + 4, rel=1e-12)
    # of equal work in all, three parts are faster
    assert even(100, 3, 4 / 3, 4 / 3, there=1.0, back=1.0) < even(100, 2, 2.0, 2.0, there=1.0, back=1.0)


def test_more_micro_batches_are_faster_without_floors_and_slower_with_them():
    def step(parts, floor, latency=0.0):
        return even(60, parts, floor + 12.0 / parts, floor + 12.0 / parts, there=latency, back=latency)

    free = [step(parts, 0.0) for parts in (1, 2, 4, 8)]
    assert free == pytest.approx([60 * 24, 60 * 12 + 6, 60 * 12 + 3, 60 * 12 + 1.5])
    assert sorted(free, reverse=True) == free
    # a floor of 2 is paid by each: 2 x (2 + 6) = 16 a layer, 4 x (2 + 3) = 20, 8 x (2 + 1.5) = 28
    floors = [step(parts, 2.0) for parts in (2, 4, 8)]
    assert floors == pytest.approx([60 * 16 + 8, 60 * 20 + 5, 60 * 28 + 3.5])


def test_a_layer_without_a_feed_forward_part_stays_where_it_is():
    """Attention alone for 2 x 2, then one layer with FFN: 2 x 2 + 3 after the first attention of it."""
    layers = ((0, None), (0, 0))
    found = ping_pong_s(cycles(layers), [[2.0, 2.0]], [[3.0, 3.0]], Hops([0.0] * 2, 0.0), Hops([0.0] * 2, 0.0))
    assert found == pytest.approx(4 + 2 + 3 + 3)


def test_layers_fall_into_patterns():
    dense, expert = (0, 0), (0, 1)
    step3 = (dense,) * 4 + (expert,) * 56 + (dense,)
    assert cycles(step3) == [((dense,), 4), ((expert,), 56), ((dense,), 1)]
    sliding, full = (0, 0), (1, 0)
    assert cycles((sliding, sliding, full) * 5 + (sliding,)) == [((sliding, sliding, full), 5), ((sliding,), 1)]
    assert cycles(()) == []


seconds = st.floats(0.0, 10.0)


@st.composite
def drawn(draw):
    parts = draw(st.integers(1, 4))
    kinds = draw(st.integers(1, 2))
    feeds = st.one_of(st.none(), st.integers(0, kinds - 1))
    pattern = draw(st.lists(st.tuples(st.integers(0, kinds - 1), feeds), min_size=1, max_size=3))
    layers = tuple(pattern) * draw(st.integers(1, 20)) + tuple(draw(st.lists(st.sampled_from(pattern), max_size=2)))
    each = st.lists(seconds, min_size=parts, max_size=parts)
    times = [draw(st.lists(each, min_size=kinds, max_size=kinds)) for _ in range(2)]
    ways = [Hops(draw(each), draw(seconds)) for _ in range(2)]
    return layers, *times, *ways


def longest_path(layers, attention, ffn, there, back):
    """The four rules of the module, written down as they stand."""
    ends = {}
    order = [(i, j) for i in range(len(layers)) for j in range(len(there.occupied_s))]
    previous = {"A": 0.0, "X": 0.0, "F": 0.0, "Y": 0.0}
    for i, j in order:
        mixer, feed = layers[i]
        at = max(previous["A"], ends.get((i - 1, j), 0.0)) + attention[mixer][j]
        previous["A"] = ends[i, j] = at
        if feed is not None:
            previous["X"] = at = max(previous["X"], at) + there.occupied_s[j]
            previous["F"] = at = max(previous["F"], at + there.latency_s) + ffn[feed][j]
            previous["Y"] = at = max(previous["Y"], at) + back.occupied_s[j]
            ends[i, j] = at + back.latency_s
    return max([previous["A"], *ends.values()])


@given(drawn())
def test_it_is_the_longest_path(case):
    layers, attention, ffn, there, back = case
    wanted = longest_path(layers, attention, ffn, there, back)
    assert ping_pong_s(cycles(layers), attention, ffn, there, back) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@given(drawn())
def test_arrays_of_steps_are_each_step(case):
    layers, attention, ffn, there, back = case
    wanted = [longest_path(layers, *stretched(attention, ffn, there, back, k)) for k in (1.0, 2.5)]
    arrays = [np.multiply.outer(np.array(values), [1.0, 2.5]) for values in (attention, ffn)]
    ways = [Hops(np.multiply.outer(np.array(way.occupied_s), [1.0, 2.5]), way.latency_s) for way in (there, back)]
    found = ping_pong_s(cycles(layers), *arrays, *ways, maximum=np.maximum, steady=False)
    assert np.broadcast_to(found, 2) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def stretched(attention, ffn, there, back, k):
    """Everything but latencies k times as long."""
    times = [[[k * value for value in row] for row in values] for values in (attention, ffn)]
    return *times, *(Hops([k * value for value in way.occupied_s], way.latency_s) for way in (there, back))


@given(drawn())
def test_no_step_is_shorter_than_a_side_a_link_or_a_round_trip(case):
    layers, attention, ffn, there, back = case
    found = ping_pong_s(cycles(layers), attention, ffn, there, back)
    visits = [feed for _, feed in layers if feed is not None]
    computed = sum(sum(attention[mixer]) for mixer, _ in layers), sum(sum(ffn[feed]) for feed in visits)
    moved = [len(visits) * sum(way.occupied_s) for way in (there, back)]
    around = [
        sum(attention[mixer][j] for mixer, _ in layers)
        + sum(ffn[feed][j] + sum(way.occupied_s[j] + way.latency_s for way in (there, back)) for feed in visits)
        for j in range(len(there.occupied_s))
    ]
    assert found >= max(*computed, *moved, *around) - 1e-9
    assert found <= sum(around) + 1e-9


@given(drawn())
def test_faster_links_never_slow_a_step(case):
    layers, attention, ffn, there, back = case
    faster = Hops([0.5 * value for value in there.occupied_s], 0.5 * there.latency_s)
    before = ping_pong_s(cycles(layers), attention, ffn, there, back)
    assert ping_pong_s(cycles(layers), attention, ffn, faster, back) <= before + 1e-9

"""Quantities over time are conserved when they are binned."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.report.series import (
    bin_means,
    emitted_per_second,
    holds_until_ns,
    nice_width_s,
    running_and_waiting,
    series,
)


def test_values_hold_until_the_next_step_but_not_over_an_idle_pause():
    # Replica 0: pause of 2 ms (host time), then of 90 ms (idle); replica 1 in between.
    replica = np.array([0, 1, 0, 0])
    start = np.array([0, 5, 12, 110]) * 1_000_000
    end = np.array([10, 9, 20, 115]) * 1_000_000
    assert holds_until_ns(replica, start, end).tolist() == [12_000_000, 9_000_000, 20_000_000, 115_000_000]


def test_bin_means_by_hand():
    # One replica: 4 during [0, 15), 2 during [15, 20), idle, 6 during [30, 40); bins of 10.
    start, until, value = np.array([0, 15, 30]), np.array([15, 20, 40]), np.array([4.0, 2.0, 6.0])
    found = bin_means(np.zeros(3), start, until, value, np.array([0.0, 10, 20, 30, 40]))
    assert found.tolist() == [4, 3, 0, 6]


def test_series_of_the_three_requests(three):
    found = series(three(), 0.5)
    assert found.t_s.tolist() == [0, 0.5]
    # First half: 1 running for 100 ms, 2 for 200 ms (the pause of 200 ms is idle); second half: 2.
    assert found.running == pytest.approx([(100 * 1 + 200 * 2) / 500, 2])
    assert found.waiting == pytest.approx([200 / 500, 0])
    assert found.kv_mean == pytest.approx([(100 * 0.1 + 200 * 0.3) / 500, 0.5])
    assert found.kv_max == pytest.approx([0.3, 0.5])
    # Tokens count when their step ends: 100 and 300 ms, then 1000 ms, in the last bin.
    assert found.output_tokens_per_s.tolist() == [6, 12]
    assert found.input_tokens_per_s.tolist() == [60, 80]
    assert found.preemptions.tolist() == [0, 2]
    assert found.busy == pytest.approx([0.6, 1])


@pytest.mark.parametrize("width_s", [0.03, 0.5, 7.0])
def test_nothing_is_lost_in_binning(toy, width_s):
    run = toy(requests=60, replicas=2)
    found = series(run, width_s)
    assert (found.output_tokens_per_s * width_s).sum() == pytest.approx(run.requests.output_tokens.sum())
    assert (found.input_tokens_per_s * width_s).sum() == pytest.approx(run.steps.prefill_tokens.sum())
    span_s = (run.steps.end_ns - run.steps.start_ns) / 1e9
    assert (found.busy * width_s * 2).sum() == pytest.approx(span_s.sum())
    until_s = (holds_until_ns(run.steps.replica, run.steps.start_ns, run.steps.end_ns) - run.steps.start_ns) / 1e9
    assert (found.running * width_s).sum() == pytest.approx((run.steps.running * until_s).sum())
    assert (found.kv_mean <= found.kv_max + 1e-12).all()


@given(st.floats(1e-3, 1e6), st.integers(1, 500))
def test_nice_widths_are_round_and_as_small_as_can_be(span_s, most):
    width = nice_width_s(span_s, most)
    assert round(width / 10 ** np.floor(np.log10(width) + 1e-9), 6) in (1, 2, 5)
    assert span_s / width <= most * (1 + 1e-9)
    assert span_s / width > most / 2.5 * (1 - 1e-9)


def test_running_and_waiting_at_instants(three):
    # At 0: request 0 runs. 120 ms: 0 and 1 run. 400 ms: 0 runs, 2 waits since 300. 600 ms: 2 runs. 1000 ms: all done.
    running, waiting = running_and_waiting(three().requests, np.array([0, 120, 400, 600, 1000]) * 1_000_000)
    assert running.tolist() == [1, 2, 1, 1, 0]
    assert waiting.tolist() == [0, 0, 1, 0, 0]


def test_answers_without_steps_are_spread_evenly(three):
    edges = np.array([0, 500, 1000]) * 1e6
    # First half: first tokens of 0 and 1, all 4 others of 0; second half: first of 2 and its 2 others.
    assert emitted_per_second(three().requests, None, edges).tolist() == [12, 6]

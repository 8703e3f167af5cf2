"""The hit rate over the most recent look-ups: hand-worked windows, and the literal queue of updates."""

import dataclasses
from collections import deque

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.report.hit_rate import LookupTotals, lookup_totals, recent_hit_rate


def totals(*updates):
    """Running totals of updates (look-ups, queries, hits)."""
    return np.cumsum(np.array(updates, np.int64).reshape(-1, 3), axis=0).T


def literal(updates, window, drops_one):
    """A queue of updates, kept as the engine keeps it."""
    queue, rates = deque(), []
    for update in updates:
        if drops_one:
            queue.append(update)
            if sum(u[0] for u in queue) > window:
                queue.popleft()
        elif update[0]:
            queue.append(update)
            while len(queue) > 1 and sum(u[0] for u in queue) > window:
                queue.popleft()
        asked = sum(u[1] for u in queue)
        rates.append(sum(u[2] for u in queue) / asked if asked else 0.0)
    return rates


def test_whole_updates_leave_the_window():
    """Window of 3 look-ups. After update 3 there are 2 + 2: the first leaves; update 4 is empty and changes nothing.

    Rates: 4/20, 4/20 + ... = 4/20; then (2 look-ups, 40 tokens, 30 found) alone; and update 5, larger than the window,
    alone as well: 8/100.
    """
    updates = [(2, 20, 4), (0, 0, 0), (2, 40, 30), (0, 0, 0), (5, 100, 8)]
    assert recent_hit_rate(*totals(*updates), False, window=3).tolist() == [0.2, 0.2, 0.75, 0.75, 0.08]


def test_the_old_window_drops_one_update_at_a_time():
    """The same updates in 0.10.2's way: empty updates have places, and one leaves at a time.

    Update 3: 4 > 3 look-ups, update 1 leaves: 30/40. Update 5: 2 + 5 > 3, the empty update 2 leaves and nothing else:
    (30 + 8) / 140.
    """
    updates = [(2, 20, 4), (0, 0, 0), (2, 40, 30), (0, 0, 0), (5, 100, 8)]
    rates = recent_hit_rate(*totals(*updates), True, window=3)
    assert rates.tolist() == pytest.approx([0.2, 0.2, 0.75, 0.75, 38 / 140])


def test_an_update_larger_than_the_old_window_throws_itself_out():
    assert recent_hit_rate(*totals((4, 10, 5)), True, window=3).tolist() == [0.0]
    assert recent_hit_rate(*totals((4, 10, 5)), False, window=3).tolist() == [0.5]


update = st.integers(0, 4).flatmap(
    lambda n: st.just((0, 0, 0)) if n == 0 else st.tuples(st.just(n), st.integers(5, 9), st.integers(0, 5))
)


@given(st.lists(update, max_size=40), st.integers(1, 12), st.booleans())
def test_any_window_is_the_literal_queue(updates, window, drops_one):
    rates = recent_hit_rate(*totals(*updates), drops_one, window=window)
    assert rates.tolist() == pytest.approx(literal(updates, window, drops_one))


def test_totals_are_the_last_rows_of_all_replicas(three):
    result = three()
    assert lookup_totals(result.steps) is None
    steps = dataclasses.replace(
        result.steps,
        replica=np.array([0, 0, 1]),
        lookups=np.array([1, 3, 2]),
        queries=np.array([10, 30, 50]),
        hits=np.array([0, 8, 32]),
        preempted_lookups=np.array([0, 0, 1]),
        preempted_queries=np.array([0, 0, 20]),
        preempted_hits=np.array([0, 0, 16]),
    )
    found = lookup_totals(steps)
    assert found == LookupTotals(5, 80, 40, 1, 20, 16)
    assert (found.hit_rate, found.hit_rate_with_preempted) == (0.5, 0.56)

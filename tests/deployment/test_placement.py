"""Where experts and their copies stand."""

import numpy as np
from hypothesis import given, strategies as st

from sim.deployment.placement import place


def loads(shares, placement, ranks):
    """Share of each rank's rows, one layer."""
    found = np.zeros(ranks)
    for expert, share in enumerate(shares):
        copies = int(placement.copies[0, expert])
        for copy in placement.copy[0, expert, :copies]:
            found[placement.rank[0, copy]] += share / copies
    return found


def test_in_line_experts_fill_ranks_in_order_and_copies_are_of_the_first():
    found = place(np.ones((1, 6)) / 6, 4, 2, "linear")
    assert found.rank.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]]
    assert found.copies.tolist() == [[2, 2, 1, 1, 1, 1]]
    assert found.copy[0, 0].tolist() == [0, 6] and found.copy[0, 5].tolist() == [5, 5]
    assert place(np.ones((1, 5)) / 5, 2, 0, "linear").rank.tolist() == [[0, 0, 0, 1, 1]]


def test_balanced_by_hand():
    """Shares 8, 4, 2, 2 of 16 on two ranks of three places: both copies go to the first expert (8/1, then 4/1 against
    8/2: the first again, for it comes first). Its three copies of 8/3 and 4, 2, 2: heaviest first, 4 | 8/3, then 8/3 to
    the second, 8/3 to the first (4 against 16/3), 2 to the second, which is full then, 2 to the first."""
    shares = np.array([[8, 4, 2, 2]]) / 16
    found = place(shares, 2, 2, "balanced")
    assert found.copies.tolist() == [[3, 1, 1, 1]]
    assert sorted(loads(shares[0], found, 2) * 16 * 3) == [22, 26]


@given(st.lists(st.floats(0.01, 100.0), min_size=4, max_size=24), st.integers(2, 4), st.integers(0, 3))
def test_every_expert_has_a_place_every_rank_its_number_and_balance_does_not_hurt(weights, ranks, extra):
    experts = len(weights)
    redundant = -experts % ranks + extra * ranks
    shares = np.array([weights]) / np.sum(weights)
    balanced, linear = (place(shares, ranks, redundant, rule) for rule in ("balanced", "linear"))
    for found in (balanced, linear):
        assert (found.copies >= 1).all() and found.copies.sum() == experts + redundant
        assert np.bincount(found.rank[0], minlength=ranks).tolist() == [(experts + redundant) // ranks] * ranks
        assert sorted({int(copy) for line in found.copy[0] for copy in line}) == list(range(experts + redundant))
    heaviest = (shares[0] / balanced.copies[0]).max()
    assert loads(shares[0], balanced, ranks).max() <= 1 / ranks + heaviest + 1e-12

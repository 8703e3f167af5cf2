"""Loads of experts: the rules of the tables by hand, and what plans expect of random routing."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from predictors.moe.loads import TILES, expected_loads
from predictors.moe.sampled import DRAWS, STAY, _in_turn, _to_the_largest, skewed, strided, table_loads
from predictors.table import GROUP_LIMITED
from tests.predictors.moe.conftest import expert_table


compiled = jax.jit(expected_loads)


def loads(tokens, experts, local, top_k, skew=0.0):
    with jax.enable_x64(True):
        found = compiled(*(np.float64(x) for x in (tokens, experts, local, top_k, skew)))
        return [np.asarray(leaf) for leaf in found]


def test_strided_by_hand():
    # 8 experts, 2 of them per token: a stride of 4. Four tokens visit each expert once.
    assert strided(4, 8, 2).tolist() == [1] * 8
    # Two tokens start 2 apart: experts 0, 4 and 2, 6. Six go round: tokens 4 and 5 visit 4, 0 and 5, 1 again.
    assert strided(2, 8, 2).tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    assert strided(6, 8, 2).tolist() == [2, 2, 1, 1, 2, 2, 1, 1]


def test_remainders_by_hand():
    # Two ranks of two experts, 3 rows to hand out: rank 0 gets two, rank 1 one, the emptiest first.
    counts = np.array([[[0, 3], [1, 1]]])
    assert _in_turn(counts, np.array([3]), 1, 4).tolist() == [[[2, 3], [2, 1]]]
    # None above 1: the rest of rank 0 finds no place.
    assert _in_turn(np.array([[[0, 1], [1, 1]]]), np.array([3]), 1, 1).tolist() == [[[1, 1], [1, 1]]]
    # Three rows to take: from the fullest of each.
    assert _in_turn(counts, np.array([3]), -1, 4).tolist() == [[[0, 1], [0, 1]]]
    drawn = np.array([[0.3, 0.1, 0.6]])
    assert _to_the_largest(np.array([[1, 0, 1]]), drawn, 4).tolist() == [[2, 0, 2]]
    assert _to_the_largest(np.array([[1, 1, 1]]), drawn, 2).tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(("tokens", "experts", "top_k", "ranks"), [(1, 16, 2, 4), (100, 64, 8, 4), (4000, 8, 2, 2)])
def test_every_row_is_at_an_expert(tokens, experts, top_k, ranks):
    drawn = skewed(tokens, experts, top_k, ranks, 1.2)
    assert drawn.shape == (DRAWS, ranks, experts // ranks)
    assert (drawn.sum(axis=(1, 2)) == tokens * top_k).all() and drawn.min() >= 0 and drawn.max() <= tokens
    assert np.array_equal(drawn, skewed(tokens, experts, top_k, ranks, 1.2))


def test_known_loads_are_taken_as_they_are():
    # 64 tokens on 8 of 128 experts, one of two ranks: 64 x 8/2 rows, 8 experts, half a tile more for each.
    table = expert_table(tokens=[64.0], ep=[2.0], active=[8.0], skew=[np.nan])
    found = table_loads(table)
    assert (found.rows[0], found.active[0]) == (256.0, 8.0)
    assert found.padded[:, 0].tolist() == [max(8 * tile, 256 + 8 * (tile - 1) / 2) for tile in TILES]


def test_group_limited_rows_by_hand():
    # 8 of 256 experts over 8 groups of 32. Even: a token keeps one expert in each of 4 groups and gets a second one in
    # each, so 16 tokens reach 64 experts with 2 rows each, 64 tokens all of half the experts with 4.
    table = expert_table(tokens=[16.0, 64.0], experts=[256.0] * 2, top_k=[8.0] * 2, op=[GROUP_LIMITED] * 2)
    found = table_loads(table)
    assert found.active.tolist() == [64.0, 128.0] and found.rows.tolist() == [128.0, 512.0]
    assert found.padded[0].tolist() == [16.0 * 64, 16.0 * 128]
    # Drawn: an expert with c rows stays active unless none of them stays, 1 - (1 - 6.68/8)^c.
    names = {"tokens": [16.0], "experts": [256.0], "top_k": [8.0], "skew": [1.2]}
    free, limited = table_loads(expert_table(**names)), table_loads(expert_table(**names, op=[GROUP_LIMITED]))
    assert free.rows[0] == limited.rows[0] and STAY * free.active[0] < limited.active[0] < free.active[0]


def test_even_routing_by_hand():
    # 128 tokens, 2 of 64 experts: 4 rows at each, visited with 1 - e^-4; in 16s one tile each.
    rows, active, padded = loads(128, 64, 64, 2)
    assert rows == 256 and active == pytest.approx(64 * (1 - np.exp(-4)))
    assert padded[0] == pytest.approx(16 * active)
    # 100 rows an expert in 16s: 6.25 + 15/32 tiles
    assert loads(3200, 64, 64, 2)[2][0] == pytest.approx(64 * 16 * (6.25 + 15 / 32))
    assert [float(np.sum(leaf)) for leaf in loads(0, 64, 64, 2)] == [0.0, 0.0, 0.0]


def test_the_busiest_rank_is_waited_for():
    # Simulated: 1024 tokens, 8 of 256 experts on 8 ranks, all alike.
    rng = np.random.default_rng(0)
    chosen = np.argsort(rng.random((20, 1024, 256)), axis=2)[:, :, :8] // 32
    busiest = np.mean([np.bincount(one.ravel(), minlength=8).max() for one in chosen])
    assert loads(1024, 256, 32, 8)[0] == pytest.approx(busiest, rel=0.01)
    # Skewed as the tables draw: within a tenth of them.
    drawn = skewed(1024, 256, 8, 8, 1.2).sum(axis=2).max(axis=1).mean()
    assert loads(1024, 256, 32, 8, 1.2)[0] == pytest.approx(drawn, rel=0.1)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 20_000),
    st.integers(1, 2000),
    st.sampled_from([(8, 8, 2), (128, 16, 8), (256, 1, 8), (512, 512, 22)]),
    st.sampled_from([0.0, 0.6, 1.0, 1.2]),
)
def test_more_tokens_never_load_less(tokens, more, sizes, skew):
    less, greater = loads(tokens, *sizes, skew), loads(tokens + more, *sizes, skew)
    if skew == 0.0:
        assert all((a <= b * (1 + 1e-9)).all() for a, b in zip(less, greater, strict=True))
    experts, local, top_k = sizes
    rows, active, padded = greater
    assert rows <= min(local, top_k) * (tokens + more) * (1 + 1e-9)
    assert active <= min(local, rows * (1 + 1e-6)) and (padded >= rows * (1 - 1e-9)).all()

"""The table path equals the component path; stacked terms equal single ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.cost.lengths import FLOATS, lengths_s
from sim.cost.step_cost import SECONDS
from sim.cost.table import STATS, price_steps, price_table, stack_terms
from sim.deployment.lower import lower


LENGTHS = STATS[:9]


def path_s(table, stats):
    """What an engine computes."""
    return (
        table.token_s[int(stats.graph_mode)][int(stats.padded_tokens)]
        + table.row_s[int(stats.emitting)]
        + lengths_s(FLOATS, table.lengths, *(float(getattr(stats, name)) for name in LENGTHS))
    )


def columns(stats):
    return {name: np.array([float(getattr(one, name)) for one in stats]) for name in STATS}


@pytest.fixture(scope="module")
def tables(dense, experts, device, cost):
    with jax.enable_x64(True):
        plans = [lower(dense, device), lower(experts, device, 2)]
        return [(plan, price_table(cost, plan, 2048, 128)) for plan in plans]


def test_shapes(tables):
    for _, table in tables:
        assert table.token_s.shape == (3, 2049)
        assert table.row_s.shape == (129,)
        assert table.token_s.dtype == table.row_s.dtype == np.float64
        assert all(isinstance(leaf, float) for leaf in jax.tree.leaves(table.lengths))


def test_nothing_costs_nothing(tables):
    for _, table in tables:
        assert np.array_equal(table.token_s[:, 0], np.zeros(3))
        assert table.row_s[0] == 0.0


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(0, 20_000)), max_size=3),
    st.lists(st.integers(1, 30_000), max_size=100),
    st.sampled_from([0.0, 1.0, 2.0]),
)
def test_table_path_equals_component_path(tables, cost, batch, prefills, decodes, mode):
    stats = batch(prefills, decodes, mode)
    for plan, table in tables:
        steps = price_steps(cost, plan, columns([stats]))
        assert path_s(table, stats) == pytest.approx(float(steps["total_s"][0]), abs=1e-9)
        assert steps["total_s"][0] == pytest.approx(sum(steps[name][0] for name in SECONDS))


def test_price_steps_of_many(tables, cost, batch):
    plan, table = tables[0]
    stats = [batch([(n, 10 * n)] if n % 3 else [], [n + 5] * (n % 7), float(n % 3)) for n in range(1, 300)]
    steps = price_steps(cost, plan, columns(stats))
    assert all(len(column) == len(stats) for column in steps.values())
    assert np.allclose(steps["total_s"], [path_s(table, one) for one in stats], rtol=0, atol=1e-9)


def test_price_steps_reads_attributes(tables, cost, batch):
    plan, _ = tables[0]

    class Steps:
        pass

    steps = Steps()
    for name, values in columns([batch(decodes=[100])]).items():
        setattr(steps, name, values)
    want = price_steps(cost, plan, columns([batch(decodes=[100])]))["total_s"]
    assert np.array_equal(price_steps(cost, plan, steps)["total_s"], want)


def test_table_of_part_equals_table_of_all(cost, dense, device, tables):
    small = price_table(cost, lower(dense, device), 10, 3)
    assert small.token_s.shape == (3, 11)
    assert np.array_equal(small.token_s, tables[0][1].token_s[:, :11])
    assert np.array_equal(small.row_s, tables[0][1].row_s[:4])


def test_stacked_terms(tables, batch):
    """Two plans, one with a window, one without: lanes equal the plans alone."""
    terms = [table.lengths for _, table in tables]
    assert [len(one.attention) for one in terms] == [2, 1]
    stacked = stack_terms(terms)
    stats = [batch([(100, 3000)], [700, 2000]), batch([], [100] * 9)]
    with jax.enable_x64(True):
        got = lengths_s(jnp, stacked, *(jnp.asarray(columns(stats)[name]) for name in LENGTHS))
    for lane, (one, stat) in enumerate(zip(terms, stats, strict=True)):
        want = lengths_s(FLOATS, one, *(float(getattr(stat, name)) for name in LENGTHS))
        assert float(got[lane]) == pytest.approx(want, rel=1e-9)


def test_stacked_terms_without_windows_have_none(tables):
    terms = tables[1][1].lengths
    stacked = stack_terms([terms, terms])
    assert stacked.attention[0].window is None
    assert stacked.attention[0].layers.shape == (2,)

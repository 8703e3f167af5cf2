"""Unevenly spread experts: draws, loads of ranks, their price by hand, and both details of a step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.cost.experts.build import routed_experts
from sim.cost.experts.draw import step_draw, step_draws
from sim.cost.experts.times import ExchangeTimes
from sim.cost.experts.waits import rank_waits
from sim.cost.moe import loaded_s, moe_s, moe_terms
from sim.deployment.domains import Domains
from sim.deployment.lower import lower_rank
from sim.deployment.plan import MOST, ExchangeRule
from sim.workload.experts.conf import ExpertsConf


@pytest.fixture(scope="module")
def shared(experts, device):
    """Three layers of 16 experts over four ranks."""
    return lower_rank(experts, device, Domains(1, 4, 1, 4)).shared


def spread(cost, plan, ranks=4, seed=0, rule="linear", redundant=0, tokens=4096, **conf):
    return routed_experts(
        cost, plan, ExpertsConf(**conf), seed, ranks=ranks, redundant=redundant, rule=rule, tokens=tokens
    )


whole = st.integers(0, 2**40)


@given(st.integers(0, 2**31), st.lists(st.tuples(whole, whole, whole, whole), min_size=1, max_size=5))
def test_one_batch_and_many_draw_alike(seed, batches):
    many = step_draws(seed, *(np.array(column, np.float64) for column in zip(*batches, strict=True)))
    assert many.tolist() == [step_draw(seed, *batch) for batch in batches]
    assert (many >= 0).all() and (many < 1).all()


def test_draws_are_uniform_and_independent_of_the_step_before():
    drawn = step_draws(0, np.arange(20_000.0), np.full(20_000, 8.0), np.zeros(20_000), np.zeros(20_000))
    assert np.histogram(drawn, 10, (0, 1))[0] == pytest.approx(2000, rel=0.1)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("law", ["uniform", "zipf", "domains"])
def test_no_row_is_lost_and_no_rank_has_more_active_experts_than_rows(cost, shared, law):
    found = spread(cost, shared, law=law)
    for tokens in (1, 7, 300, 1024, 4096):
        rows, active = found.loads.of_steps(np.full(50, float(tokens)), np.arange(50) / 50)
        assert rows.sum(axis=-1) == pytest.approx(2.0 * tokens)
        assert (active <= np.minimum(rows, 4.0) + 1e-12).all() and (active >= np.minimum(rows, 1.0)).all()
        if tokens <= 1024:
            assert (rows == np.rint(rows)).all()


def test_one_rank_has_all_rows_and_waits_for_nobody(cost, experts, device):
    """16 experts, 2 of them per token: of one token two are active, of many nearly all."""
    own = lower_rank(experts, device, Domains()).own
    found = spread(cost, own, ranks=1, law="uniform", detail="layers")
    rows, active = found.loads.of_steps(np.array([1.0, 64.0, 2048.0]), np.array([0.3, 0.3, 0.3]))
    assert rows[:, 0, 0].tolist() == [2, 128, 4096]
    assert active[:, 0, 0] == pytest.approx([2, 16 * (1 - (7 / 8) ** 64), 16], rel=0.02)
    waits = rank_waits(found, np.array([64.0]), np.array([0.5]))
    assert waits.wait_s.tolist() == [0.0] and waits.imbalance.tolist() == [1.0]


def test_a_layer_on_a_rank_costs_what_the_kernel_says_of_its_loads(cost, shared, device):
    """The table is exact at its points and linear in between: within a percent of the kernel itself."""
    found = spread(cost, shared, law="zipf", detail="layers")
    tokens, draw = np.array([50.0, 700.0]), np.array([0.1, 0.9])
    rows, active = found.loads.of_steps(tokens, draw)
    terms = moe_terms(shared.moe, shared.device, cost.moe)
    for step in range(2):
        for layer in range(3):
            for rank in range(4):
                exact = loaded_s(terms, tokens[step], rows[step, layer, rank], active[step, layer, rank])[0] / 3
                assert found.layer_seconds(tokens, draw)[step, layer, rank] == pytest.approx(float(exact), rel=0.015)


def test_a_step_waits_for_the_slowest_rank_of_each_layer(cost, shared):
    found = spread(cost, shared, law="zipf", detail="layers")
    each = found.layer_seconds(np.array([64.0]), np.array([0.25]))[0]
    assert found(64, 0.25, False) == pytest.approx(sum(max(layer) for layer in each.tolist()))
    waits = rank_waits(found, np.array([64.0]), np.array([0.25]))
    assert waits.busy_s + waits.wait_s == pytest.approx(np.full(4, found(64, 0.25, False)))


def test_even_spread_is_what_many_tokens_of_one_law_come_to(cost, shared):
    """With 4,096 tokens a rank's rows differ from a quarter by about a percent; the analytic price is of just that."""
    found = spread(cost, shared, law="uniform", detail="layers")
    even = float(moe_s(moe_terms(shared.moe, shared.device, cost.moe), np.float64(4096.0))[0])
    assert found(4096, 0.5, False) == pytest.approx(even, rel=0.03)
    assert found(4096, 0.5, False) > even


@pytest.mark.parametrize("law", ["uniform", "zipf", "dirichlet"])
@pytest.mark.parametrize("tokens", [8, 96, 700, 3000])
def test_the_collapsed_step_has_the_mean_and_the_tail_of_all_layers(cost, shared, law, tokens):
    exact, short = (spread(cost, shared, law=law, detail=detail) for detail in ("layers", "collapsed"))
    draw = np.random.default_rng(0).random(3000)
    one, other = (
        found.step_seconds(np.full(3000, float(tokens)), draw, np.zeros(3000, bool)) for found in (exact, short)
    )
    assert other.mean() == pytest.approx(one.mean(), rel=0.01)
    assert other.std() == pytest.approx(one.std(), rel=0.25)
    for quantile in (0.05, 0.95, 0.99):
        assert np.quantile(other, quantile) == pytest.approx(np.quantile(one, quantile), rel=0.02)
    assert short(tokens, float(draw[0]), False) == other[0]


def test_a_window_is_like_tokens_that_choose_independently(cost, shared):
    """Rows of the fullest of four ranks, 48 tokens: drawn afresh, every token two of 16 experts at random."""
    rng = np.random.default_rng(1)
    fresh = np.argsort(rng.random((4000, 48, 16)), axis=-1)[..., :2]
    most = np.stack([(fresh // 4 == rank).sum(axis=(1, 2)) for rank in range(4)]).max(axis=0)
    found = spread(cost, shared, law="uniform")
    rows, _ = found.loads.of_steps(np.full(4000, 48.0), rng.random(4000))
    ours = rows.max(axis=-1)
    assert ours.mean() == pytest.approx(most.mean(), rel=0.02)
    assert np.quantile(ours, 0.95) == pytest.approx(np.quantile(most, 0.95), rel=0.05)


def test_balance_and_copies_shorten_a_step(cost, shared):
    linear = spread(cost, shared, law="zipf", detail="layers")
    balanced = spread(cost, shared, law="zipf", detail="layers", rule="balanced")
    assert balanced(2000, 0.5, False) < linear(2000, 0.5, False)
    steeper = spread(cost, shared, law="zipf", exponent=2.0, detail="layers")
    assert steeper(2000, 0.5, False) > linear(2000, 0.5, False)


def test_layers_that_differ_in_their_experts_are_refused(cost, shared):
    moe = shared.moe
    other = replace(moe, count=np.array([1.0, 1.0]), experts=np.array([16.0, 8.0]))
    with pytest.raises(ValueError, match=r"as many experts and choices, got \[8, 16\] experts"):
        spread(cost, replace(shared, moe=other), law="zipf")


def test_the_exchange_waits_for_the_fullest_rank_of_each_layer():
    """Microseconds are tokens / 10, with a prefill tokens / 5: where the fullest rank has 3/2 of the mean in one layer
    and 2 in the other, 100 tokens take as long as 150 and 200, 15 us more in all; with a prefill 30."""
    sizes = np.array([0.0, 1000.0])
    times = ExchangeTimes(sizes, (1e-7 * sizes, 2e-7 * sizes))
    fullest = np.array([[1.5, 2.0]])
    assert times.more_s(0, np.array([100.0]), fullest) == pytest.approx([15e-6])
    assert times.more_s(1, np.array([100.0]), fullest) == pytest.approx([30e-6])


@pytest.mark.parametrize("detail", ["collapsed", "layers"])
def test_traffic_to_the_fullest_rank_lengthens_a_step_by_what_it_takes_there(cost, shared, detail):
    """The plan's exchange, as if tokens went straight to their experts; in prefills it is twice as large."""
    twice = replace(shared.collective, count=2.0 * shared.collective.count)
    given = {"law": "zipf", "detail": detail}
    without = spread(cost, shared, **given)
    found = routed_experts(
        cost,
        shared,
        ExpertsConf(**given),
        0,
        ranks=4,
        redundant=0,
        rule="linear",
        tokens=4096,
        exchange=ExchangeRule(MOST, twice),
    )
    for tokens in (16, 3000):
        base, decode, prefill = without(tokens, 0.5, False), found(tokens, 0.5, False), found(tokens, 0.5, True)
        assert prefill - base == pytest.approx(2 * (decode - base), rel=0.02)
        assert decode > base
    assert spread(cost, shared, **given)(16, 0.5, True) == without(16, 0.5, False)

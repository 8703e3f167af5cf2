"""Popularity of experts: the laws, how often a token chooses which expert, and the drawn choices."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.workload.experts import check_experts, described, names, options, popularity
from sim.workload.experts.choices import BLOCK, choices, drawn_tokens
from sim.workload.experts.conf import ExpertsConf
from sim.workload.experts.inclusion import inclusion


LAWS = [law for law in names() if law != "trace"]


def test_zipf_gives_each_rank_its_weight_in_an_order_of_each_layer():
    """1 + 1/2 + 1/3 + 1/4 = 25/12: shares 12/25, 6/25, 4/25, 3/25."""
    shares = popularity(ExpertsConf(law="zipf"), 20, 4, 0)
    assert shares.shape == (1, 20, 4)
    assert -np.sort(-shares, axis=-1) == pytest.approx(np.broadcast_to(np.array([12, 6, 4, 3]) / 25, shares.shape))
    assert len({tuple(line) for line in shares[0]}) > 5


def test_power_law_stays_within_its_bound_and_has_its_mean():
    """Density x^-s on [1, b] has the mean (1-s)/(2-s) (b^(2-s) - 1)/(b^(1-s) - 1): 2.5585 for s = 2.5, b = 100."""
    for exponent, mean in ((2.5, 2.7027), (1.0, 99 / np.log(100))):
        conf = ExpertsConf(law="power", exponent=exponent)
        shares = popularity(conf, 400, 64, 1)
        assert shares.max() / shares.min() <= 100 * (1 + 1e-9) * 64
        weights = shares / shares.min(axis=-1, keepdims=True)  # the least popular of 64 is close to 1
        assert weights.mean() == pytest.approx(mean, rel=0.12)


def test_dirichlet_shares_vary_by_the_concentration():
    """Variance of a share: (1/E)(1 - 1/E)/(E c + 1), so a squared coefficient of variation of (E - 1)/(E c + 1)."""
    for concentration in (0.5, 4.0):
        shares = popularity(ExpertsConf(law="dirichlet", concentration=concentration), 200, 32, 2)
        found = (shares.std(axis=-1) / shares.mean(axis=-1)) ** 2
        assert found.mean() == pytest.approx(31 / (32 * concentration + 1), rel=0.1)


def test_a_trace_is_counted_by_layer_and_domain(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(
        "layer,expert,tokens,domain\n7,0,3,code\n7,1,1,code\n9,1,5,code\n7,2,4,chat\n9,0,1,chat\n9,2,1,chat\n"
    )
    shares = popularity(ExpertsConf(law="trace", path=str(path)), 2, 3, 0)
    assert shares.tolist() == [[[0, 0, 1], [0.5, 0, 0.5]], [[0.75, 0.25, 0], [0, 1, 0]]]
    path.write_text("layer,expert,tokens\n0,0,1\n0,2,3\n")
    assert popularity(ExpertsConf(law="trace", path=str(path)), 5, 3, 0)[0, 4].tolist() == [0.25, 0, 0.75]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer,expert\n0,0\n", "wanted the columns layer, expert, tokens, got layer, expert"),
        ("layer,expert,tokens\n0,3,1\n", "line 2: wanted an expert from 0 to 2, got 3"),
        ("layer,expert,tokens\n0,0,1\n0,x,1\n", "line 3: wanted a layer, an expert and a count, got 0,x,1"),
        ("layer,expert,tokens\n0,0,-1\n", "line 2: wanted a count of tokens from 0 to 1e18, got -1"),
        ("layer,expert,tokens\n0,0,0\n", "layer 0 has no tokens at any expert"),
        ("layer,expert,tokens\n", "at least one layer with experts, got no rows"),
        ("layer,expert,tokens\n0,0,1\n1,0,1\n", "the model has 3 layers with experts, the file 2"),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "counts.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        popularity(ExpertsConf(law="trace", path=str(path)), 3, 3, 0)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (ExpertsConf(law="zip"), "experts.law wants one of even, dirichlet"),
        (ExpertsConf(law="zipf", detail="layer"), "experts.detail wants one of collapsed, layers, got 'layer'"),
        (ExpertsConf(law="uniform", exponent=1.0), "no effect with experts.law=uniform: it is read by domains, power"),
        (ExpertsConf(exponent=1.0), "experts.exponent has no effect with experts.law=even"),
        (ExpertsConf(fluctuation=0.5), "experts.fluctuation has no effect with experts.law=even"),
        (ExpertsConf(detail="layers"), "experts.detail has no effect with experts.law=even"),
        (ExpertsConf(law="zipf", fluctuation_tokens=64), "no effect while experts.fluctuation is 0"),
        (ExpertsConf(law="zipf", exponent=-1.0), "experts.exponent wants a number from 0 to 10, got -1"),
        (ExpertsConf(law="zipf", exponent=float("nan")), "experts.exponent wants a number from 0 to 10, got nan"),
        (ExpertsConf(law="domains", domains=0), "experts.domains wants a number from 1 to 1024, got 0"),
        (ExpertsConf(law="domains", run_tokens=3), "experts.run_tokens wants a power of two, got 3"),
        (ExpertsConf(law="trace"), "experts.law=trace wants experts.path"),
    ],
)
def test_what_can_do_nothing_is_refused(conf, message):
    with pytest.raises(ValueError, match=message):
        check_experts(conf)


def test_a_law_says_what_it_reads():
    assert options(ExpertsConf(law="domains", domains=3)) == {"domains": 3, "exponent": 1.0, "run_tokens": 1}
    assert described(ExpertsConf(law="zipf", fluctuation=0.2)) == "zipf (exponent 1.0), popularity varies by 20%"


def test_chances_of_inclusion_by_hand():
    """Shares 6, 2, 1, 1 of 10, two choices: 2 x 0.6 is more than 1, so that one is always chosen, and the other choice
    is shared as 2 : 1 : 1. Of 0.5, 0.4, 0.1 and two choices: 1, 0.8, 0.2."""
    assert inclusion(np.array([0.6, 0.2, 0.1, 0.1]), 2) == pytest.approx([1.0, 0.5, 0.25, 0.25])
    assert inclusion(np.array([0.5, 0.4, 0.1]), 2) == pytest.approx([1.0, 0.8, 0.2])
    assert inclusion(np.array([1.0, 0.0, 0.0]), 2) == pytest.approx([1.0, 0.5, 0.5])


@given(st.lists(st.floats(0.001, 1000.0), min_size=2, max_size=40), st.data())
def test_chances_of_inclusion_sum_to_the_choices_and_keep_the_order(weights, data):
    top_k = data.draw(st.integers(1, len(weights)))
    found = inclusion(np.array(weights), top_k)
    assert found.sum() == pytest.approx(top_k) and found.max() <= 1.0
    order = np.argsort(weights)
    assert (np.diff(found[order]) >= -1e-12).all()


@pytest.mark.parametrize("law", LAWS)
def test_a_token_chooses_different_experts_as_often_as_it_should(law):
    conf = ExpertsConf(law=law)
    drawn = choices(conf, 4096, 3, 16, 4, 5)
    assert (np.diff(np.sort(drawn, axis=-1), axis=-1) > 0).all()
    expected = inclusion(popularity(conf, 3, 16, 5), 4).mean(axis=0)
    found = np.stack([np.bincount(drawn[:, layer].ravel(), minlength=16) for layer in range(3)]) / 4096
    assert found == pytest.approx(expected, abs=0.12 if law == "domains" else 0.04)
    assert (choices(conf, 4096, 3, 16, 4, 5) == drawn).all()


def test_rows_of_a_rank_vary_as_when_every_token_chooses_for_itself():
    """n tokens that choose k of E experts, E/R of them here: the variance is n k/R (1 - 1/R) (E - k)/(E - 1)."""
    drawn = choices(ExpertsConf(law="uniform"), 4096, 24, 64, 8, 0)
    here = (drawn < 16).sum(axis=-1)
    for size in (1, 8, 64, 512):
        rows = here.reshape(-1, size, 24).sum(axis=1)
        expected = size * 8 / 4 * (1 - 1 / 4) * (64 - 8) / (64 - 1)
        assert rows.mean() == pytest.approx(size * 2, rel=0.05)
        assert rows.var() == pytest.approx(expected, rel=0.3 if size == 512 else 0.15)


def test_runs_of_one_domain_and_times_of_one_popularity_make_steps_differ():
    """The variance between windows of 64 tokens over that between windows of independent tokens."""

    def spread(**given) -> float:
        drawn = choices(ExpertsConf(**given), 4096, 8, 32, 4, 0)
        return float((drawn < 8).sum(axis=-1).reshape(-1, BLOCK, 8).sum(axis=1).var())

    assert spread(law="domains", run_tokens=64) > 4 * spread(law="domains")
    assert spread(law="uniform", fluctuation=0.5, fluctuation_tokens=64) > 2 * spread(law="uniform")
    assert spread(law="uniform", fluctuation=0.5, fluctuation_tokens=64) > spread(
        law="uniform", fluctuation=0.1, fluctuation_tokens=64
    )


def test_many_ranks_get_fewer_drawn_tokens():
    assert drawn_tokens(58, 8) == 4096 and drawn_tokens(58, 256) == 1024 and drawn_tokens(94, 4096) == 512

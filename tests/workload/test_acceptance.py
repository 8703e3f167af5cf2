"""How many drafts are accepted: what laws give on average, and what they refuse."""

from itertools import accumulate
from operator import mul

import numpy as np
import pytest

from sim.workload.acceptance import KEY, AcceptanceConf, check_acceptance, described, law_of


MANY = [(request, number) for request in range(100) for number in range(200)]


def mean_tokens(conf: AcceptanceConf, most: int, seed: int = 0) -> float:
    law = law_of(conf, most, seed)
    return 1.0 + float(np.mean([law(*one) for one in MANY]))


@pytest.mark.parametrize(
    ("conf", "most", "expected"),
    [
        # 1 + a + a^2 + a^3 + a^4 = (1 - a^5) / (1 - a)
        (AcceptanceConf(rate=0.7), 4, (1 - 0.7**5) / 0.3),
        # vllm-project/vllm#24243: 63,669 accepted of 43,221 proposals of six drafts; 1 + the sum of the chances
        (AcceptanceConf(positions=[0.58, 0.34, 0.22, 0.15, 0.11, 0.073]), 6, 1 + 63_669 / 43_221),
        # each given those before it: 1 + 0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.5
        (AcceptanceConf(positions=[0.8, 0.5, 0.5], conditional=True), 3, 2.4),
        (AcceptanceConf(positions=[0.8, 0.5, 0.5]), 2, 2.3),
        # half of the requests in each kind: (1.9 + 0.81 + 1.5 + 0.25) / 2
        (AcceptanceConf(rates=[0.9, 0.5]), 2, 2.23),
        # three of four: 0.75 (1.9) + 0.25 (1.0)
        (AcceptanceConf(rates=[0.9, 0.0], shares=[3, 1]), 1, 1.675),
        (AcceptanceConf(pattern=[2, 0, 1]), 2, 2.0),
        (AcceptanceConf(rate=0.0), 3, 1.0),
        (AcceptanceConf(rate=1.0), 3, 4.0),
    ],
)
def test_mean_is_one_and_the_sum_of_products(conf, most, expected):
    spread = 0.12 if conf.rates else 0.02  # a hundred requests, each of one kind
    assert mean_tokens(conf, most) == pytest.approx(expected, abs=spread)


def test_draws_are_of_seed_request_and_number_alone():
    conf = AcceptanceConf(rate=0.6)
    one, other = law_of(conf, 4, 3), law_of(conf, 4, 3)
    drawn = [one(*event) for event in MANY]
    assert [other(*event) for event in reversed(MANY)] == drawn[::-1]
    assert [law_of(conf, 4, 4)(*event) for event in MANY] != drawn


def test_each_position_has_its_chance():
    positions = [0.6, 0.5, 0.2]
    law = law_of(AcceptanceConf(positions=positions), 3, 1)
    counts = np.bincount([law(*one) for one in MANY], minlength=4) / len(MANY)
    above = [float(counts[place:].sum()) for place in (1, 2, 3)]
    assert above == pytest.approx(positions, abs=0.015)
    conditional = [b / a for a, b in zip([1.0, *above], above, strict=False)]
    assert list(accumulate(conditional, mul)) == pytest.approx(above)


def test_requests_of_a_beta_law_differ_around_its_mean():
    law = law_of(AcceptanceConf(rate=0.5, concentration=2.0), 1, 0)
    rates = [float(np.mean([law(request, number) for number in range(300)])) for request in range(400)]
    # Beta(1, 1) is uniform: mean 1/2, deviation sqrt(1/12)
    assert np.mean(rates) == pytest.approx(0.5, abs=0.04)
    assert np.std(rates) == pytest.approx(12**-0.5, abs=0.03)


def test_traces_are_followed(tmp_path):
    file = tmp_path / "accepted.csv"
    file.write_text("request,accepted\na,2\na,0\nb,9\n")
    law = law_of(AcceptanceConf(path=str(file)), 4, 0)
    assert [law(0, n) for n in range(4)] == [2, 0, 2, 0]
    assert [law(1, n) for n in range(2)] == [4, 4]
    assert law(2, 0) == 2
    file.write_text("accepted\n1\n2\n3\n")
    law = law_of(AcceptanceConf(path=str(file)), 3, 0)
    assert [law(5, n + 1) - law(5, n) for n in range(3)].count(1) == 2
    file.write_text("accepted\nmany\n")
    with pytest.raises(ValueError, match="line 2: wanted a number of accepted drafts, got many"):
        check_acceptance(AcceptanceConf(path=str(file)), 3)


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        (AcceptanceConf(rate=1.2), "rate wants a chance from 0 to 1, got 1.2"),
        (AcceptanceConf(), f"set {KEY}.rate, or another"),
        (AcceptanceConf(law="gauss", rate=0.5), "got 'gauss'"),
        (AcceptanceConf(law="rate", rate=0.5, pattern=[1]), "pattern has no effect with"),
        (AcceptanceConf(positions=[0.5]), "wants a chance for each of 3 drafts, got 1"),
        (AcceptanceConf(positions=[0.5, 0.6, 0.1]), "cannot rise from 0.5 to 0.6"),
        (AcceptanceConf(pattern=[4]), "from 0 to 3, at least one, got 4"),
        (AcceptanceConf(rates=[0.5], shares=[1.0, 1.0]), "for each of 1"),
        (AcceptanceConf(rate=0.5, concentration=0.0), "concentration wants a number"),
    ],
)
def test_bad_input_is_one_sentence(conf, says):
    with pytest.raises(ValueError) as error:
        check_acceptance(conf, 3)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_law_follows_from_the_keys():
    confs = [AcceptanceConf(rate=0.5), AcceptanceConf(rate=0.5, concentration=3.0), AcceptanceConf(rates=[0.5])]
    assert [described(conf).partition(" ")[0] for conf in confs] == ["rate", "beta", "domains"]

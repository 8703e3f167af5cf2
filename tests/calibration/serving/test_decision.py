"""Regret of a choice among configurations, by hand."""

import numpy as np
import pytest

from calibration.serving.decision import Group, decisions, groups, ranks
from calibration.serving.score import Point, Prediction


def group(measured, predicted):
    """Configurations by (TPOT ms, throughput), measured and predicted."""
    columns = np.array([*zip(*measured, strict=True), *zip(*predicted, strict=True)], float)
    return Group(("g",), tuple(map(str, range(len(measured)))), columns[0], columns[1], columns[2], columns[3])


MEASURED = [(10, 100), (20, 160), (30, 200), (40, 220)]


def test_a_perfect_prediction_has_no_regret():
    one = group(MEASURED, MEASURED)
    assert one.limits_ms() == [10, 20, 30]
    assert [one.pick(limit) for limit in one.limits_ms()] == [0, 1, 2]
    assert one.mean_regret == 0 and one.rank_correlation() == pytest.approx(1)


def test_picking_too_little_and_too_slow():
    # predicted twice as slow: within 20 ms only the first, which is worth 100 of the 160 that were possible
    cautious = group(MEASURED, [(2 * tpot, rate) for tpot, rate in MEASURED])
    assert cautious.pick(20) == 0 and cautious.regret(20) == pytest.approx(1 - 100 / 160)
    # none keeps 10 ms: the fastest is taken, and it is the right one
    assert cautious.regret(10) == 0
    # predicted twice as fast: 30 ms are not kept by (40, 220), whose worth is 220 x 30 / 40
    bold = group(MEASURED, [(tpot / 2, rate) for tpot, rate in MEASURED])
    assert bold.pick(30) == 3 and bold.regret(30) == pytest.approx(1 - 220 * 0.75 / 200)


def test_what_has_no_price_is_not_picked():
    predicted = [(np.inf, 0.0), (20, 160), (30, 200), (40, 220)]
    assert group(MEASURED, predicted).regret(10) == pytest.approx(1 - 160 * 10 / 20 / 100)
    nothing = group(MEASURED, [(np.inf, 0.0)] * 4)
    assert nothing.mean_regret == 1 and nothing.rank_correlation() is None


def test_ranks():
    assert ranks(np.array([3.0, 1.0, 3.0, 7.0])).tolist() == [1.5, 0, 1.5, 3]


def test_groups_of_a_table(row):
    def point(clients, ttft=100.0, scale=1.0, **cells):
        given = row(concurrency_or_qps=str(clients), ttft_ms_mean=str(ttft), **cells)
        latency = {"ttft_ms_mean": ttft * scale, "tpot_ms_mean": 10.0}
        return Point(given, "", None, Prediction(latency_ms=latency))

    points = [point(clients) for clients in (1, 2, 4, 8, 16)]
    assert decisions(points)["groups"] == 0
    # a configuration measured twice is one, of the medians; another length is another group
    twice = [*points, point(32, ttft=100), point(32, ttft=300), point(64, osl="512")]
    found = groups(twice)
    assert [len(one.names) for one in found] == [6]
    life_s = (200 + 10 * 1023) / 1e3
    assert found[0].measured_throughput[-1] == pytest.approx(32 * 1024 / life_s / 8)
    assert decisions(twice)["median"] == 0 and decisions(twice)["best_picked"] == 1

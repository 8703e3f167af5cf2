"""Pipeline stages: what each rank runs, what lies between stages, and the prices of both."""

import numpy as np
import pytest

from sim.cost.stages import stage_prices, transfer_s
from sim.cost.table import price_table
from sim.deployment.exchange import hand_over, tokens_back
from sim.deployment.lower import lower
from sim.hardware.collective_table import SHARPNESS


@pytest.fixture
def halves(dense, device):
    return [lower(dense, device, pipeline_parallel=2, stage=stage) for stage in range(2)]


def test_the_stages_make_up_the_model(dense, device, halves):
    """Each product, kernel and layer of the whole is on one stage: counts add up, with head and sampler on the last."""
    whole = lower(dense, device)
    for group in ("gemm", "elementwise", "attention"):
        total = sum(getattr(half, group).count.sum() for half in halves)
        assert total == getattr(whole, group).count.sum()
    assert [int((half.gemm.count * half.gemm.emitting).sum()) for half in halves] == [0, 1]
    assert [float(half.device.sampler_kernels) > 0 for half in halves] == [False, True]
    # one layer each: the first is full, the second slides
    assert [float(half.attention.window[0]) for half in halves] == [1e12, 512.0]


def test_prices_add_up(dense, device, cost, halves):
    """Of the token-wise work, up to launch and gaps, which every stage has for itself."""
    prices = stage_prices(cost, halves, hand_over(dense, device), tokens_back(device, 2), 512, 16)
    whole = price_table(cost, lower(dense, device), 512, 16)
    assert prices.tables[0].row_s.max() == 0.0
    assert np.array_equal(prices.tables[1].row_s, whole.row_s)
    gaps_s = sum(float(half.device.gap_s[2]) for half in halves) - float(lower(dense, device).device.gap_s[2])
    total = prices.tables[0].token_s[2, 512] + prices.tables[1].token_s[2, 512]
    assert total == pytest.approx(whole.token_s[2, 512] + gaps_s, rel=1e-9)
    assert len(prices.tables[0].lengths.attention) == len(prices.tables[1].lengths.attention) == 1


def test_equal_stages_share_a_table(experts, device, cost):
    """Three equal layers on three stages: the middle one has neither embedding nor head."""
    stages = [lower(experts, device, pipeline_parallel=3, stage=stage) for stage in range(3)]
    tables = stage_prices(cost, stages, hand_over(experts, device), tokens_back(device, 3), 64, 8).tables
    assert len({id(table) for table in tables}) == 3
    middle = stage_prices(cost, [stages[1]] * 2, hand_over(experts, device), tokens_back(device, 3), 64, 8).tables
    assert middle[0] is middle[1]


def test_the_hand_over_by_hand(dense, device):
    """Two tensors of 1024 elements of 2 bytes per token, one after the other; each takes the send's time.

    With two tensor-parallel ranks each sends half of both, and both are gathered.
    """
    slots = hand_over(dense, device)
    assert slots.count.tolist() == [2, 0, 0, 0]
    assert slots.bytes_per_token[0] == 2048.0 and slots.factor[0] == 1.0
    latency_s, long_s = transfer_s(slots, np.array([0.0, 1e6]))
    # far above the latency, the rate of the protocols together shows: 2 x 2048 bytes a token
    rate = (slots.bytes_per_s[0] ** SHARPNESS).sum() ** (1 / SHARPNESS)
    assert long_s - latency_s == pytest.approx(2 * 2048e6 / rate, rel=0.01)
    shared = hand_over(dense, device, tensor_parallel=2)
    assert shared.bytes_per_token[:2].tolist() == [1024.0, 2048.0]
    assert shared.factor[:2].tolist() == [1.0, 0.5]


def test_tokens_come_back_at_the_latency_of_a_send(dense, device):
    back = tokens_back(device, 2)
    assert back.bytes_per_token[0] == 8.0
    assert 0.0 < transfer_s(back, np.ones(1))[0] < transfer_s(hand_over(dense, device), np.array([4096.0]))[0]

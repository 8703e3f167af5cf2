"""The metrics of three requests worked out by hand, and invariants over whole runs."""

import dataclasses

import numpy as np
import pytest

from sim.report.littles_law import littles_law
from sim.report.metrics import check_slo, latencies, measure, meets
from sim.report.result import ABORTED, FINISHED, REJECTED


def test_latencies_of_the_three_requests(three):
    latency = measure(three(), (50, 90, 99)).latency
    # TTFT 100, 250, 500: mean 850 / 3; P90 sits at index 1.8, 250 + 0.8 x 250 = 450.
    assert latency["ttft"].mean_s == pytest.approx(0.85 / 3)
    assert latency["ttft"].median_s == pytest.approx(0.25)
    assert latency["ttft"].percentile_s(90) == pytest.approx(0.45)
    # Population variance ((550/3)^2 + (100/3)^2 + (650/3)^2) / 3 = 735000 / 27 ms^2.
    assert latency["ttft"].std_s == pytest.approx((735000 / 27) ** 0.5 / 1e3)
    assert latency["ttft_queued"].mean_s == pytest.approx(0.7 / 3)
    # Requests 0 and 1 are scheduled when they are taken up; request 2 waits 200 ms.
    assert latency["ttft_not_queued"].count == 2
    assert latency["ttft_not_queued"].mean_s == pytest.approx(0.175)
    # TPOT only of requests with two tokens or more: 400 / 4 and 300 / 2.
    assert latency["tpot"].count == 2
    assert latency["tpot"].mean_s == pytest.approx(0.125)
    # ITL over tokens: 5 x 100 and 1 x 200; P99 at index 4.95, 100 + 0.95 x 100 = 195.
    assert latency["itl"].mean_s == pytest.approx(0.7 / 6)
    assert latency["itl"].median_s == pytest.approx(0.1)
    assert latency["itl"].percentile_s(99) == pytest.approx(0.195)
    assert latency["e2el"].mean_s == pytest.approx(1.55 / 3)
    # Queue 0, 50, 300; prefill 100, 200, 200; decode 400, 0, 300.
    parts = [latency[name].mean_s for name in ("queue", "prefill", "decode")]
    assert parts == pytest.approx([0.35 / 3, 0.5 / 3, 0.7 / 3])


def test_rates_and_resources_of_the_three_requests(three):
    found = measure(three())
    assert (found.completed, found.failed, found.total_input, found.total_output) == (3, 0, 60, 9)
    assert found.duration_s == 1.0
    assert found.request_throughput == 3
    assert (found.input_throughput, found.output_throughput, found.total_token_throughput) == (60, 9, 69)
    # Steps end at 100, 300 and 1000 ms: 1 + 2 tokens in second 0, 6 in second 1.
    assert found.peak_output_throughput == 6
    # In flight [0, 500), [50, 300), [200, 1000): all three at 200 ms.
    assert found.peak_concurrent_requests == 3
    # Two GPUs; mean TPOT 125 ms.
    assert found.output_throughput_per_gpu == 4.5
    assert found.output_throughput_per_user == pytest.approx(8)
    # 7.2 USD/h over 9 x 3600 output tokens an hour.
    assert found.usd_per_1m_output == pytest.approx(7.2 / 32400 * 1e6)
    assert found.usd_per_1m_input == pytest.approx(7.2 / 216000 * 1e6)
    assert found.usd_per_1m_total == pytest.approx(7.2 / 248400 * 1e6)
    # Blocks in use 10, 30, 50 of 100 for 100, 200, 500 ms.
    assert found.kv_usage_mean == pytest.approx((10 * 100 + 30 * 200 + 50 * 500) / 800 / 100)
    assert found.kv_usage_max == 0.5
    assert (found.preemptions, found.preempted_requests) == (2, 1)
    # Needed once: 10 + 4, 20 + 0, 30 + 2; computed: 70 prompt tokens and 6 decodes.
    assert found.recomputed_tokens == 76 - 66
    assert found.batch_requests_mean == pytest.approx((1 + 2 + 6) / 3)
    assert found.batch_tokens_mean == pytest.approx((10 + 21 + 45) / 3)
    assert found.busy_share == pytest.approx(0.8)


def test_goodput_is_of_requests_that_meet_every_bound(three):
    # TTFT <= 300: requests 0 and 1. TPOT <= 120: request 0, and request 1 whose one token counts as TPOT 0.
    found = measure(three(slo_ms={"ttft": 300, "tpot": 120}))
    assert (found.request_goodput, found.goodput_share) == (2, pytest.approx(2 / 3))
    for slo, good in (({"e2el": 260}, [1]), ({"itl": 99}, [1]), ({"ttft": 100}, [0]), ({"ttft": 99}, [])):
        assert np.flatnonzero(meets(latencies(three().requests), slo)).tolist() == good


def test_goodput_is_none_without_bounds(three):
    assert measure(three()).request_goodput is None


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ({"ttf": 1}, "got 'ttf'"),
        ({"ttft": 0}, "positive number of milliseconds, got 0"),
        ({"tpot": float("nan")}, "nan"),
    ],
)
def test_malformed_slo(slo, message):
    with pytest.raises(ValueError, match=message):
        check_slo(slo)


def test_only_finished_requests_count(three):
    base = three()
    requests = dataclasses.replace(base.requests, status=np.array([FINISHED, ABORTED, REJECTED]))
    found = measure(dataclasses.replace(base, requests=requests))
    assert (found.completed, found.aborted, found.failed) == (1, 1, 1)
    assert (found.total_input, found.duration_s) == (10, 0.5)
    assert found.recomputed_tokens is None
    assert found.peak_concurrent_requests == 1


def test_nothing_finished_gives_none_everywhere(three):
    base = three()
    requests = dataclasses.replace(base.requests, status=np.full(3, REJECTED))
    steps = type(base.steps)(*(np.array([], np.int64) for _ in dataclasses.fields(base.steps)))
    empty = np.array([], np.int64)
    found = measure(three(requests=requests, steps=steps, itl_ns=empty, itl_count=empty, slo_ms={"ttft": 1}))
    assert (found.completed, found.failed, found.steps, found.peak_concurrent_requests) == (0, 3, 0, 0)
    for name in (
        "duration_s",
        "request_throughput",
        "usd_per_1m_total",
        "kv_usage_mean",
        "busy_share",
        "request_goodput",
    ):
        assert getattr(found, name) is None
    assert all(latency.mean_s is None for latency in found.latency.values())


def test_one_token_answers_have_no_tpot(three):
    base = three()
    requests = dataclasses.replace(base.requests, output_tokens=np.ones(3, np.int64))
    found = measure(three(requests=requests))
    assert found.latency["tpot"].mean_s is None
    assert found.output_throughput_per_user is None


def test_no_price_no_cost(three):
    assert measure(three(usd_per_gpu_hour=0.0)).usd_per_1m_total is None


def test_parts_sum_to_end_to_end(result):
    found = latencies(result.requests)
    assert np.allclose(found.queue_s + found.prefill_s + found.decode_s, found.e2el_s, rtol=0, atol=1e-12)
    assert np.all(found.ttft_queued_s <= found.ttft_s)


def test_mean_itl_is_the_token_weighted_mean_of_tpot(result):
    # All gaps of a request sum to finish - first token, so the two means differ only in their weights.
    found = latencies(result.requests)
    metrics = measure(result)
    gaps = result.requests.output_tokens[found.request] - 1
    assert metrics.latency["itl"].count == gaps.sum()
    assert metrics.latency["itl"].mean_s == pytest.approx((found.tpot_s * gaps).sum() / gaps.sum())


@pytest.mark.parametrize("parameters", [{"blocks": 1200}, {"rate": 1.0}, {"seats": 8, "rate": 30.0}, {"replicas": 2}])
def test_littles_law_holds(toy, parameters):
    law = littles_law(toy(requests=80, **parameters))
    assert abs(law.relative_gap) < 1e-9


def test_littles_law_notices_a_lost_request(toy):
    run = toy(requests=80)
    run.steps.running = np.maximum(run.steps.running - 1, 0)
    assert littles_law(run).relative_gap < -0.01


def test_littles_law_is_silent_about_unfinished_runs(three):
    requests = dataclasses.replace(three().requests, status=np.array([FINISHED, FINISHED, ABORTED]))
    assert littles_law(three(requests=requests)) is None

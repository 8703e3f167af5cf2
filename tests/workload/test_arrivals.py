"""Arrival processes: their laws, on large draws of a fixed seed, with bounds of about four standard errors."""

import dataclasses
import math

import numpy as np
import pytest

from sim.workload import WorkloadConf, build_workload


def times_s(seed=0, **fields):
    return build_workload(WorkloadConf(input_tokens=8, output_tokens=8, **fields), seed).arrival_ns / 1e9


def test_poisson_gaps_are_exponential_with_the_given_mean():
    requests, rate = 200_000, 25.0
    gaps = np.diff(times_s(arrival="poisson", rate=rate, num_requests=requests + 1))
    # The mean of n exponentials has standard error mean / sqrt(n).
    assert abs(gaps.mean() * rate - 1) < 4 / math.sqrt(requests)
    # Kolmogorov-Smirnov distance to 1 - exp(-rate t); 1.95 / sqrt(n) is the 0.1 % point.
    ordered = np.sort(gaps)
    steps = np.arange(1, requests + 1) / requests
    assert np.max(np.abs(steps - (1 - np.exp(-rate * ordered)))) < 1.95 / math.sqrt(requests)


def test_poisson_counts_have_variance_equal_to_mean():
    times = times_s(arrival="poisson", rate=50.0, num_requests=200_000)
    counts = np.bincount(times.astype(int))[:-1]
    # The index of dispersion of k windows has standard error sqrt(2 / (k - 1)).
    assert abs(counts.var(ddof=1) / counts.mean() - 1) < 4 * math.sqrt(2 / (len(counts) - 1))


@pytest.mark.parametrize("burstiness", [0.1, 0.5, 1.0, 2.0, 16.0])
def test_gamma_gaps_have_squared_coefficient_of_variation_one_over_burstiness(burstiness):
    requests, rate = 200_000, 4.0
    gaps = np.diff(times_s(arrival="gamma", burstiness=burstiness, rate=rate, num_requests=requests))
    cv = 1 / math.sqrt(burstiness)
    assert abs(gaps.mean() * rate - 1) < 4 * cv / math.sqrt(requests)
    # Relative standard error of a standard deviation: sqrt((kurtosis - 1) / 4n), kurtosis of a gamma 3 + 6 / shape.
    error = math.sqrt((2 + 6 / burstiness) / (4 * requests))
    assert abs(gaps.std() / gaps.mean() / cv - 1) < 4 * error + 4 * cv / math.sqrt(requests)


def test_gamma_with_burstiness_one_is_the_poisson_process_itself():
    assert np.array_equal(times_s(arrival="gamma", rate=3.0), times_s(arrival="poisson", rate=3.0))


def test_gamma_with_infinite_burstiness_has_equal_gaps():
    times = build_workload(WorkloadConf(arrival="gamma", burstiness=math.inf, rate=8.0, num_requests=50), 0).arrival_ns
    assert np.array_equal(times, np.arange(1, 51) * 125_000_000)


def test_constant_spacing_is_exact_in_nanoseconds():
    times = build_workload(WorkloadConf(arrival="constant", rate=10.0, num_requests=100_000), 0).arrival_ns
    assert np.array_equal(times, np.arange(100_000) * 100_000_000)
    # At 3/s request i stands at i / 3 s, rounded to the nearest nanosecond: 333333333, 666666667, 1000000000.
    thirds = build_workload(WorkloadConf(arrival="constant", rate=3.0, num_requests=4), 0).arrival_ns
    assert thirds.tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]


def test_another_rate_scales_the_same_arrivals_and_leaves_the_lengths():
    slow, fast = (
        build_workload(WorkloadConf(rate=rate, lengths="profile", profile="sharegpt", num_requests=500), 3)
        for rate in (1.0, 8.0)
    )
    assert np.array_equal(slow.prompt_tokens, fast.prompt_tokens)
    assert np.array_equal(slow.output_tokens, fast.output_tokens)
    # Both are the same unit-rate times divided by the rate, rounded once: they agree to a nanosecond.
    assert np.max(np.abs(slow.arrival_ns / 8 - fast.arrival_ns)) <= 1


def test_another_process_leaves_the_lengths():
    poisson, burst = (
        build_workload(WorkloadConf(arrival=arrival, lengths="lognormal", num_requests=200), 3)
        for arrival in ("poisson", "all_at_once")
    )
    assert np.array_equal(poisson.prompt_tokens, burst.prompt_tokens)


@pytest.mark.parametrize("rate, rate_end", [(1.0, 20.0), (20.0, 1.0), (5.0, 5.0)])
def test_ramp_carries_the_unit_process_through_the_integrated_rate(rate, rate_end):
    length_s = 40.0
    times = times_s(arrival="ramp", rate=rate, rate_end=rate_end, duration_s=length_s)
    unit = times_s(arrival="poisson", rate=1.0, num_requests=len(times))
    # Lambda(t) = r0 t + (r1 - r0) t^2 / 2T, by hand; a rounding of half a nanosecond moves it by at most 20 x 0.5 ns.
    area = rate * times + (rate_end - rate) * times**2 / (2 * length_s)
    assert np.max(np.abs(area - unit)) < 1e-7
    # (r0 + r1) / 2 x T arrivals expected, with the standard deviation of a Poisson count.
    expected = (rate + rate_end) / 2 * length_s
    assert abs(len(times) - expected) < 4 * math.sqrt(expected)


def test_ramp_without_duration_spreads_all_requests_over_it():
    times = times_s(arrival="ramp", rate=1.0, rate_end=3.0, num_requests=20_000)
    # 20,000 requests at 2/s on average: the ramp lasts 10,000 s; the last arrival is within 4 sqrt(n) / r1 of it.
    assert abs(times[-1] - 10_000) < 4 * math.sqrt(20_000) / 2
    # By half of the ramp, Lambda(T/2) = T/2 x (1 + (3 - 1)/4) = 7,500 have come.
    assert abs(np.sum(times < 5_000) - 7_500) < 4 * math.sqrt(7_500)


def test_all_at_once_and_infinite_rate_send_everything_at_zero():
    assert times_s(arrival="all_at_once", num_requests=7).tolist() == [0] * 7
    assert times_s(arrival="gamma", rate=math.inf, normalize_rate=True, num_requests=7).tolist() == [0] * 7


def test_closed_loop_has_concurrency_and_requests_per_client():
    workload = build_workload(WorkloadConf(arrival="closed_loop", concurrency=16, rounds=10), 0)
    assert workload.concurrency == 16
    assert len(workload) == 160
    assert not workload.arrival_ns.any()
    assert len(build_workload(WorkloadConf(arrival="closed_loop", concurrency=16, rounds=10, num_requests=5), 0)) == 5


def test_open_process_under_a_cap_keeps_its_times():
    capped = build_workload(WorkloadConf(rate=5.0, concurrency=4), 0)
    free = build_workload(WorkloadConf(rate=5.0), 0)
    assert capped.concurrency == 4 and free.concurrency is None
    assert np.array_equal(capped.arrival_ns, free.arrival_ns)
    assert capped.digest != free.digest


def test_normalized_rate_puts_the_last_request_at_requests_over_rate():
    plain = build_workload(WorkloadConf(arrival="gamma", rate=8.0, num_requests=400), 0).arrival_ns
    exact = build_workload(WorkloadConf(arrival="gamma", rate=8.0, num_requests=400, normalize_rate=True), 0).arrival_ns
    assert exact[-1] == 50_000_000_000
    # One common factor: every arrival has moved by it.
    assert np.max(np.abs(plain * (50e9 / plain[-1]) - exact)) < 2


def test_duration_ends_the_arrivals_and_alone_sets_their_number():
    conf = WorkloadConf(rate=40.0, duration_s=60.0)
    timed = build_workload(conf, 0)
    # 2,400 expected, far more than the 1,000 that are drawn where nothing bounds the run.
    assert abs(len(timed) - 2_400) < 4 * math.sqrt(2_400)
    assert timed.arrival_ns[-1] <= 60_000_000_000
    longer = build_workload(dataclasses.replace(conf, duration_s=61.0), 0)
    assert longer.arrival_ns[len(timed)] > 60_000_000_000
    assert np.array_equal(longer.arrival_ns[: len(timed)], timed.arrival_ns)
    assert len(build_workload(dataclasses.replace(conf, num_requests=10), 0)) == 10


def test_default_number_of_requests_is_that_of_the_serving_benchmark():
    assert len(build_workload(WorkloadConf(), 0)) == 1000

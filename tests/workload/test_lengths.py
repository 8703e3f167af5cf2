"""Length laws: bounds, means and tails."""

import math

import numpy as np
import pytest

from sim.workload import WorkloadConf, build_workload


def lengths(seed=0, **fields):
    workload = build_workload(WorkloadConf(arrival="all_at_once", **fields), seed)
    return workload.prompt_tokens, workload.output_tokens


def test_fixed_lengths_are_the_nominal_ones():
    prompt, output = lengths(input_tokens=2048, output_tokens=256, num_requests=9)
    assert prompt.tolist() == [2048] * 9 and output.tolist() == [256] * 9


def test_uniform_spans_floor_and_ceil_of_the_range_ratio():
    prompt, output = lengths(
        lengths="uniform", input_tokens=101, output_tokens=11, range_ratio=0.25, num_requests=50_000
    )
    # floor(101 x 0.75) = 75, ceil(101 x 1.25) = 127; floor(11 x 0.75) = 8, ceil(11 x 1.25) = 14.
    assert (prompt.min(), prompt.max()) == (75, 127)
    assert (output.min(), output.max()) == (8, 14)
    # Each of the 7 outputs equally often: chi-square with 6 degrees of freedom, 0.1 % point 22.46.
    counts = np.bincount(output)[8:]
    assert np.sum((counts - 50_000 / 7) ** 2 / (50_000 / 7)) < 22.46


def test_uniform_with_range_ratio_zero_is_fixed_and_outputs_have_their_own_ratio():
    prompt, output = lengths(lengths="uniform", input_tokens=100, output_tokens=100, output_range_ratio=0.5)
    assert set(prompt) == {100}
    assert output.min() >= 50 and output.max() <= 150 and len(set(output)) > 50


def test_uniform_never_goes_below_one_token():
    prompt, output = lengths(lengths="uniform", input_tokens=1, output_tokens=1, range_ratio=0.9, num_requests=1000)
    assert prompt.min() == 1 and output.min() == 1 and output.max() == 2


def test_inferencex_draws_from_four_fifths_of_the_nominal_up_to_it():
    prompt, output = lengths(
        lengths="uniform_below", input_tokens=1024, output_tokens=1000, range_ratio=0.8, num_requests=100_000
    )
    # int(1024 x 0.8) = 819.
    assert (prompt.min(), prompt.max()) == (819, 1024)
    assert (output.min(), output.max()) == (800, 1000)
    # Mean 921.5, standard error (206 / sqrt(12)) / sqrt(100,000).
    assert abs(prompt.mean() - 921.5) < 4 * 206 / math.sqrt(12 * 100_000)


def test_lognormal_has_the_given_mean_spread_and_median():
    requests, mean, cv = 200_000, 2000, 0.7
    prompt, output = lengths(
        lengths="lognormal", input_tokens=mean, input_cv=cv, output_tokens=300, output_cv=1.5, num_requests=requests
    )
    assert abs(prompt.mean() / mean - 1) < 4 * cv / math.sqrt(requests)
    assert abs(output.mean() / 300 - 1) < 4 * 1.5 / math.sqrt(requests)
    sigma = math.sqrt(math.log(1 + cv * cv))
    # The logarithm is normal: mean ln(mean) - sigma^2 / 2, standard deviation sigma.
    assert abs(np.log(prompt).mean() - (math.log(mean) - sigma * sigma / 2)) < 4 * sigma / math.sqrt(requests)
    assert abs(np.log(prompt).std() - sigma) < 4 * sigma / math.sqrt(2 * requests) + 1e-4
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 4 / math.sqrt(requests)


def test_zipf_frequencies_fall_as_the_power():
    requests = 200_000
    prompt, output = lengths(lengths="zipf", input_tokens=50, output_tokens=4, zipf_exponent=1.2, num_requests=requests)
    weights = np.arange(1, 51.0) ** -1.2
    expected = weights / weights.sum()
    seen = np.bincount(prompt, minlength=51)[1:] / requests
    assert np.all(np.abs(seen - expected) < 4.5 * np.sqrt(expected / requests))
    assert set(output) == {1, 2, 3, 4}


def test_empirical_draws_whole_pairs_from_a_file(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("input_tokens,output_tokens\n10,1\n20,2\n40,4\n")
    prompt, output = lengths(lengths="empirical", lengths_path=str(file), num_requests=3000)
    assert np.array_equal(prompt, output * 10)
    counts = np.array([np.sum(output == value) for value in (1, 2, 4)])
    assert np.all(np.abs(counts - 1000) < 4 * math.sqrt(3000 * 2 / 9))


def test_limits_drop_draws_again_within_the_limits():
    free, _ = lengths(lengths="uniform", input_tokens=100, output_tokens=50, range_ratio=0.9, num_requests=4000)
    prompt, output = lengths(
        lengths="uniform",
        input_tokens=100,
        output_tokens=50,
        range_ratio=0.9,
        num_requests=4000,
        max_input_tokens=120,
        max_total_tokens=150,
    )
    assert free.max() > 120
    assert prompt.max() <= 120 and (prompt + output).max() == 150
    assert len(prompt) == 4000


def test_limits_truncate_cuts_prompt_then_output():
    prompt, output = lengths(
        input_tokens=100,
        output_tokens=80,
        max_input_tokens=90,
        max_total_tokens=120,
        over_limit="truncate",
        num_requests=2,
    )
    assert prompt.tolist() == [90, 90] and output.tolist() == [30, 30]


def test_limits_error_names_the_lengths():
    with pytest.raises(ValueError, match=r"max_total_tokens=120 want every request to fit, got 100 \+ 80 tokens"):
        lengths(input_tokens=100, output_tokens=80, max_total_tokens=120, over_limit="error")
    with pytest.raises(ValueError, match="want some length of workload.lengths=fixed to fit, got none"):
        lengths(input_tokens=100, output_tokens=80, max_total_tokens=120)


def test_shared_prefix_is_common_and_the_rest_is_not():
    workload = build_workload(
        WorkloadConf(
            lengths="uniform", input_tokens=64, output_tokens=8, range_ratio=0.5, prefix_tokens=32, num_requests=20
        ),
        0,
    )
    ids = workload.token_ids
    assert ids is not None
    assert [len(row) for row in ids] == workload.prompt_tokens.tolist()
    assert all(np.array_equal(row[:32], ids[0][:32]) for row in ids)
    assert len({tuple(row[32:48]) for row in ids}) == 20
    assert workload.prompt_tokens.min() >= 64
    plain = build_workload(
        WorkloadConf(lengths="uniform", input_tokens=64, output_tokens=8, range_ratio=0.5, num_requests=20), 0
    )
    assert plain.token_ids is None
    assert np.array_equal(plain.prompt_tokens + 32, workload.prompt_tokens)


def test_limits_count_the_shared_prefix():
    workload = build_workload(
        WorkloadConf(
            lengths="uniform",
            input_tokens=64,
            range_ratio=0.5,
            prefix_tokens=32,
            max_input_tokens=100,
            num_requests=500,
        ),
        0,
    )
    assert 95 <= workload.prompt_tokens.max() <= 100

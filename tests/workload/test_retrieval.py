"""Chunks by popularity, without replacement, from uniforms."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.retrieval.conf import RetrievalConf
from sim.workload.retrieval.drawn import distinct, weights
from sim.workload.sessions.conf import LawConf
from sim.workload.used import check_read


def test_distinct_by_hand():
    """Weights 4, 2, 1, 1: 0.5 of 8 is 4, the second; of the 6 left 0.5 is 3, the first; of 2, 0.5 is 1, the last."""
    assert distinct(np.array([4, 2, 1, 1]), np.array([[0.5, 0.5, 0.5]])).tolist() == [[1, 0, 3]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 2**32))
def test_distinct_against_a_list(weight, seed):
    """The same as taking from a list of what is left, one after the other."""
    uniforms = np.random.default_rng(seed).random((4, len(weight)))
    found = distinct(np.array(weight), uniforms)
    for row, us in zip(found.tolist(), uniforms.tolist(), strict=True):
        left = list(range(len(weight)))
        for chunk, u in zip(row, us, strict=True):
            place = int(u * sum(weight[c] for c in left))
            for c in left:
                if place < weight[c]:
                    break
                place -= weight[c]
            assert chunk == c
            left.remove(c)


def test_shares_follow_the_law():
    """One draw each: the share of chunk i is i^-s over the sum, here 1, 1/2, 1/3, 1/4 over 25/12 (4 deviations)."""
    count = 40_000
    conf = WorkloadConf(num_requests=count, retrieval=RetrievalConf(chunks=1, corpus_chunks=4))
    shares = np.bincount(build_workload(conf, 0).retrieval.chunks[:, 0], minlength=4) / count
    wanted = np.array([12, 6, 4, 3]) / 25
    assert (np.abs(shares - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / count)).all()
    assert weights(3, 0.0).tolist() == [weights(3, 0.0)[0]] * 3


def test_more_requests_append_and_lengths_stay():
    how = RetrievalConf(chunks=4, corpus_chunks=50, latency_s=LawConf("lognormal", 0.2))
    few, many = (build_workload(WorkloadConf(num_requests=n, lengths="zipf", retrieval=how), 7) for n in (20, 50))
    assert (few.retrieval.chunks == many.retrieval.chunks[:20]).all()
    assert (few.retrieval.latency_ns == many.retrieval.latency_ns[:20]).all()
    plain = build_workload(WorkloadConf(num_requests=20, lengths="zipf"), 7)
    assert (few.prompt_tokens == plain.prompt_tokens + 4 * 512).all()
    assert few.digest != plain.digest


def test_limits_count_the_chunks():
    conf = WorkloadConf(
        num_requests=200, lengths="zipf", input_tokens=4000, max_input_tokens=3000, retrieval=RetrievalConf(chunks=4)
    )
    prompts = build_workload(conf, 0).prompt_tokens
    assert prompts.max() <= 3000 and prompts.min() > 4 * 512


@pytest.mark.parametrize(
    ("how", "key", "said"),
    [
        ({}, "chunk_tokens", "workload.retrieval.chunks > 0, got 0"),
        ({"latency_s": LawConf("fixed", 0.1)}, "latency_s.cv", "a law that reads it"),
    ],
)
def test_a_key_without_effect_is_refused(how, key, said):
    with pytest.raises(ValueError, match=f"workload.retrieval.{key} does nothing here: it wants {said}"):
        check_read(WorkloadConf(retrieval=RetrievalConf(**how)), [f"retrieval.{key}"])

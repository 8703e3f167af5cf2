"""Retrieval in the exact engine: when prompts reach the engine, what of their chunks is found, and what is told."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.event.content import request_content
from sim.event.run import run_exact
from sim.report.metrics import latencies
from sim.report.retrieval import in_order
from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.retrieval.columns import Retrieval
from sim.workload.retrieval.conf import RetrievalConf
from sim.workload.sessions.conf import LawConf, SessionsConf
from sim.workload.trace import Workload
from tests.event.conftest import make_settings, make_table
from tests.event.test_exact_hits import cached, exact


MS = 1_000_000


def asked(latency_ms, arrivals_ms=None, concurrency=None, prompt=16, outputs=2) -> Workload:
    count = len(latency_ms)
    arrivals = np.zeros(count, np.int64) if arrivals_ms is None else np.array(arrivals_ms) * MS
    retrieval = Retrieval(np.array(latency_ms) * MS, np.zeros((count, 0), np.int64))
    return Workload(
        "asked", arrivals, np.full(count, prompt), np.full(count, outputs), concurrency, retrieval=retrieval
    )


def run(workload, step_s=10e-3, **changes):
    prices = make_table(base_s=step_s, token_s=0.0, row_s=0.0)
    return run_exact(workload, make_settings(**changes), prices, num_gpu_blocks=400)


def test_the_first_ready_goes_first():
    """Sent at 0, 1 and 2 ms, ready at 30, 6 and 22 ms; steps take 10 ms and are never shared by a first and a second.

    Request 1 has its first token at 16 ms, its second at 26; request 2, ready at 22 within that step, prefills from
    26 to 36 and decodes to 46; request 0, ready at 30, prefills from 36, beside the decode of request 2, to 46.
    """
    found = run(asked([30, 5, 20], [0, 1, 2])).requests
    assert found.arrival_ns.tolist() == [0, 1 * MS, 2 * MS]
    assert found.queued_ns.tolist() == [36 * MS, 6 * MS, 26 * MS]
    assert found.first_token_ns.tolist() == [46 * MS, 16 * MS, 36 * MS]
    assert latencies(found).ttft_s.tolist() == pytest.approx([46e-3, 15e-3, 34e-3])  # retrieval counts
    assert latencies(found).retrieval_s.tolist() == pytest.approx([30e-3, 5e-3, 20e-3])
    assert latencies(found).queue_s.tolist() == pytest.approx([6e-3, 0, 4e-3])


def test_one_that_retrieves_is_outstanding():
    """One at a time: 5 ms of retrieval and two steps of 10 ms, so that the second is sent at 25 ms and ends at 50."""
    found = run(asked([5, 5], concurrency=1)).requests
    assert found.arrival_ns.tolist() == [0, 25 * MS]
    assert found.finish_ns.tolist() == [25 * MS, 50 * MS]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=12),
    st.sampled_from([None, 1, 3]),
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_it_is_a_shift_of_arrivals(rows, limit):
    """In an open loop the engine sees what it would of requests sent when theirs are ready, in that order."""
    arrivals = np.sort([at for at, _, _ in rows])
    latency = np.array([after for _, after, _ in rows])
    outputs = np.array([out for _, _, out in rows])
    work = Workload(
        "drawn",
        arrivals * MS,
        np.full(len(rows), 40),
        outputs,
        limit,
        retrieval=Retrieval(latency * MS, np.zeros((len(rows), 0), np.int64)),
    )
    found = run(work)
    assert found.requests.retrieval_ns.tolist() == (latency * MS).tolist()
    assert (found.requests.queued_ns >= found.requests.asked_ns).all()
    if limit is not None:
        sent = found.requests.arrival_ns
        for i in range(len(rows)):  # never more than so many between sending and the end
            assert ((sent <= sent[i]) & (found.requests.finish_ns > sent[i])).sum() <= limit
        return
    order = np.argsort(arrivals + latency, kind="stable")
    plain = run(Workload("plain", (arrivals + latency)[order] * MS, np.full(len(rows), 40), outputs[order]))
    for name in ("queued_ns", "scheduled_ns", "first_token_ns", "finish_ns"):
        assert np.array_equal(getattr(found.requests, name)[order], getattr(plain.requests, name)), name


def test_no_latency_changes_nothing():
    work = asked([0] * 6, [0, 3, 5, 9, 30, 31])
    other = dataclasses.replace(work, retrieval=None, digest="")
    one, two = run(work), run(other)
    for field in dataclasses.fields(one.requests):
        if field.name != "retrieval_ns":
            assert np.array_equal(getattr(one.requests, field.name), getattr(two.requests, field.name)), field.name
    assert all(
        np.array_equal(getattr(one.steps, f.name), getattr(two.steps, f.name)) for f in dataclasses.fields(one.steps)
    )


def retrieving(**how) -> WorkloadConf:
    asked_for = RetrievalConf(**{"chunks": 3, "chunk_tokens": 32, "corpus_chunks": 6} | how)
    return WorkloadConf(
        num_requests=60, rate=1e-4, input_tokens=20, output_tokens=1, prefix_tokens=16, retrieval=asked_for
    )


@pytest.mark.parametrize("order", ["relevance", "popularity"])
def test_chunks_are_found_behind_the_same_chunks_only(order):
    """Requests one long after the other, nothing evicted: hits are those of an independent tree of token ids.

    Prefix and chunks are whole blocks, the question is not found again: 16 tokens that all but the first find, and the
    chunks that stand in order.
    """
    work = build_workload(retrieving(order=order), 0)
    found = cached(work)
    assert found == exact(work)
    assert sum(found) == 16 * 59 + 32 * in_order(work.retrieval.chunks) > 16 * 59


def test_in_order_by_hand():
    """(1 2 3) is new; (1 2 4) finds two; (2 1 3) none; (1 2 4) three; (2 3 1) one."""
    assert in_order(np.array([[1, 2, 3], [1, 2, 4], [2, 1, 3], [1, 2, 4], [2, 3, 1]])) == 0 + 2 + 0 + 3 + 1


def test_a_prompt_is_prefix_chunks_and_question():
    work = build_workload(retrieving(), 3)
    content = request_content(work)
    one, two = content[0], content[1]
    assert len(one) == 16 + 3 * 32 + 20 == work.prompt_tokens[0]
    assert (one[:16] == two[:16]).all() and not np.isin(one[112:], two).any()
    same = np.intersect1d(work.retrieval.chunks[0], work.retrieval.chunks[1])
    assert len(np.intersect1d(one[16:], two[16:])) == 32 * len(same)
    ids = np.concatenate([content[i] for i in range(60)])
    kinds = 16 + 32 * len(np.unique(work.retrieval.chunks)) + 60 * 20
    assert len(np.unique(ids)) == kinds


def test_what_cannot_be_is_refused():
    latency = RetrievalConf(latency_s=LawConf("fixed", 1.0))
    rounds = SessionsConf(rounds=LawConf("fixed", 2.0))
    for conf, said in (
        (WorkloadConf(retrieval=latency, abort_after_s=1.0), "leave out workload.abort_after_s"),
        (WorkloadConf(retrieval=RetrievalConf(chunks=1), sessions=rounds), "stand alone, got sessions"),
        (WorkloadConf(retrieval=RetrievalConf(chunks=9, corpus_chunks=8)), "corpus_chunks=8"),
        (WorkloadConf(retrieval=RetrievalConf(order="popular")), "order wants relevance or popularity.*popularity"),
        (WorkloadConf(retrieval=RetrievalConf(exponent=-1.0)), "exponent wants a number from 0"),
        (WorkloadConf(retrieval=RetrievalConf(chunks=2), max_input_tokens=1024), "wants to be at least 1025"),
    ):
        with pytest.raises(ValueError, match=f"workload.*{said}"):
            build_workload(conf, 0)


def test_rounds_may_retrieve():
    """A latency goes before each round; rounds still follow each other, which every run checks."""
    conf = WorkloadConf(
        num_requests=5,
        input_tokens=20,
        output_tokens=4,
        sessions=SessionsConf(rounds=LawConf("fixed", 3.0)),
        retrieval=RetrievalConf(latency_s=LawConf("exponential", 0.05)),
    )
    found = run(build_workload(conf, 1), prefix_caching=True)
    assert found.checks["rounds of a session follow each other"]
    assert (found.requests.queued_ns >= found.requests.asked_ns).all()

"""Requests that end when their prompt is computed: against requests of one token, and what is told of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.event.checks import ConservationError, check_conservation
from sim.event.run import run_exact
from sim.report.metrics import latencies
from sim.report.result import ABORTED, FINISHED, REJECTED
from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.sessions.conf import LawConf, SessionsConf
from sim.workload.trace import Workload
from sim.workload.used import check_read
from tests.event.conftest import make_settings, make_table


MS = 1_000_000


def work(prompts, arrivals_ms=None, outputs=0, **more) -> Workload:
    arrivals = np.zeros(len(prompts), np.int64) if arrivals_ms is None else np.array(arrivals_ms) * MS
    return Workload("pooled", arrivals, np.array(prompts), np.full(len(prompts), outputs), **more)


def run(workload, row_s=0.0, blocks=100, scheduler="vllm", changes=None, **how):
    prices = make_table(base_s=10e-3, token_s=0.0, row_s=row_s)
    settings = make_settings(**(changes or {}))
    return run_exact(workload, settings, prices, num_gpu_blocks=blocks, scheduler=scheduler, **how)


def test_by_hand():
    """Chunks of 64 tokens at 10 ms a step: 100 tokens end after two steps, the 28 that fill the second with them.

    No row is priced although a row would take a second, for nothing is sampled; TTFT is E2EL, and there is no TPOT.
    """
    found = run(work([100, 28]), row_s=1.0)
    assert found.requests.finish_ns.tolist() == [20 * MS, 20 * MS] == found.requests.first_token_ns.tolist()
    assert found.steps.prefill_tokens.tolist() == [64, 64] and not found.steps.emitting.any()
    assert found.requests.output_tokens.tolist() == [0, 0]
    times = latencies(found.requests)
    assert times.ttft_s.tolist() == times.e2el_s.tolist() and not times.has_tpot.any() and not len(found.itl_ns)


SCHEDULERS = ("vllm", "sglang", "trtllm", "orca", "sarathi", "static", "mlfq", "shortest_first")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_decides_as_for_one_token(scheduler):
    """Where rows cost nothing, times are those of requests of one token; under pressure for blocks, too."""
    rng = np.random.default_rng(5)
    prompts, at = rng.integers(1, 60, 40).tolist(), np.sort(rng.integers(0, 300, 40)).tolist()
    changes = {"chunked_prefill": scheduler not in ("orca", "static")}
    one, other = (
        run(work(prompts, at, outputs), blocks=14, scheduler=scheduler, changes=changes) for outputs in (0, 1)
    )
    for field in dataclasses.fields(one.requests):
        if field.name not in ("output_tokens", "retrieval_ns"):
            same = np.array_equal(getattr(one.requests, field.name), getattr(other.requests, field.name))
            assert same, (scheduler, field.name)
    assert other.requests.output_tokens.sum() == 40 and one.requests.output_tokens.sum() == 0
    assert one.steps.emitting.sum() == 0 < other.steps.emitting.sum()


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=15),
    st.booleans(),
    st.booleans(),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_prompts_are_computed_whoever_leaves(rows, ahead, caching):
    """Clients that go, prompts that are found or too long: every run checks that what is left is computed."""
    rows = sorted(rows, key=lambda row: row[1])
    prompts, at, patience = zip(*rows, strict=True)
    ids = tuple(np.arange(n) for n in prompts) if caching else None
    pooled = work(prompts, at, abort_after_ns=np.array(patience) * MS, token_ids=ids)
    changes = {"async_scheduling": ahead, "prefix_caching": caching, "max_model_len": 256}
    found = run(pooled, blocks=24, changes=changes)
    assert found.checks["tokens out = tokens asked for"]
    assert np.isin(found.requests.status, (FINISHED, ABORTED, REJECTED)).all()
    assert ((found.requests.status == REJECTED) == (np.array(prompts) >= 256)).all()


def test_a_lost_prompt_token_would_be_found():
    """The check of every run fails where one token less is computed, and where a row emits."""
    found = run(work([100, 28]))
    for name in ("prefill_tokens", "emitting"):
        column = getattr(found.steps, name).copy()
        column[0] += -1 if name == "prefill_tokens" else 1
        steps = dataclasses.replace(found.steps, **{name: column})
        with pytest.raises(ConservationError, match="tokens out"):
            check_conservation(found.requests, steps, [], pools=True)


def test_configured():
    conf = WorkloadConf(num_requests=50, lengths="lognormal", pooling=True)
    pooled = build_workload(conf, 3)
    assert (
        pooled.pools
        and (pooled.prompt_tokens == build_workload(dataclasses.replace(conf, pooling=False), 3).prompt_tokens).all()
    )
    with pytest.raises(ValueError, match=r"output_cv does nothing here: it wants workload.pooling=false"):
        check_read(conf, ["output_cv"])
    with pytest.raises(ValueError, match="workload.pooling=true wants workload.max_input_tokens"):
        build_workload(dataclasses.replace(conf, max_total_tokens=100), 0)
    with pytest.raises(ValueError, match="workload.pooling=true wants requests that stand alone"):
        build_workload(WorkloadConf(pooling=True, sessions=SessionsConf(rounds=LawConf("fixed", 2.0))), 0)
    with pytest.raises(ValueError, match="or no outputs at all"):
        Workload("mixed", np.zeros(2), np.ones(2), np.array([0, 1]))

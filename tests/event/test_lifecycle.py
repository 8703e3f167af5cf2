"""Replicas that start, drain and fail, by hand and drawn."""

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.settings import load_engine
from sim.event.lifecycle import DRAIN, FAIL, START, Change, Elastic
from sim.event.pool import EnginePool
from sim.event.run import Routing, run_fleet
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED, LOST
from sim.scheduler.find import scheduler_names
from sim.workload.trace import Workload

from .conftest import make_settings, make_table


MS = 1_000_000


def workload(arrivals_ms, prompts, outputs, **more):
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs), **more)


def run(work, *changes, replicas=2, retry=True, load_s=0.0, router="round_robin", scheduler="vllm", **more):
    """Steps of 10 ms; changes are (ms, replica, action)."""
    settings = make_settings(profile=load_engine("vllm", "0.33.0").profile, **more.pop("settings", {}))
    settings.profile.api_pickup_s = 0.0
    table = make_table(base_s=10e-3, token_s=0.0, row_s=0.0)
    pool = EnginePool(settings, table, 200, (GroupShape("full", 16),), replicas=replicas, scheduler=scheduler)
    made = tuple(Change(at * MS, replica, action) for at, replica, action in changes)
    return run_fleet(work, [pool], Routing(router), elastic=Elastic(made, retry, load_s, **more))


def test_a_drained_replica_ends_what_it_has():
    found = run(workload([0, 0, 25, 30], [16] * 4, [5] * 4), (20, 0, DRAIN))
    assert found.requests.replica.tolist() == [0, 1, 1, 1]
    assert (found.requests.finish_ns[:2] // MS).tolist() == [50, 50]


def test_requests_of_a_failed_replica_begin_again_elsewhere():
    """Request 0 has two of five tokens when its replica fails at 25 ms: it begins again at 1, in the step from 30."""
    found = run(workload([0, 0], [16] * 2, [5] * 2), (25, 0, FAIL))
    r = found.requests
    assert r.replica.tolist() == [1, 1]
    assert (r.scheduled_ns[0] // MS, r.first_token_ns[0] // MS, r.finish_ns[0] // MS) == (30, 40, 80)
    assert (r.arrival_ns[0], found.retries) == (0, {0: 1})
    assert all(found.checks.values())


def test_or_they_are_lost():
    found = run(workload([0, 0], [16] * 2, [5] * 2), (25, 0, FAIL), retry=False)
    assert found.requests.status.tolist() == [LOST, FINISHED]
    assert all(found.checks.values())


def test_a_replica_that_starts_takes_its_turn_when_it_is_loaded():
    """It begins out of service, is started at 10 ms and loads for 30: from 40 ms on it gets every other request."""
    work = workload([0, 20, 39, 41, 42], [16] * 5, [2] * 5)
    found = run(work, (10, 1, START), load_s=30e-3)
    assert found.requests.replica[:3].tolist() == [0, 0, 0]
    assert set(found.requests.replica[3:].tolist()) == {0, 1}


def test_who_comes_while_nobody_serves_waits():
    work = workload([0, 20], [16] * 2, [2] * 2)
    found = run(work, (10, 0, FAIL), (50, 0, START), replicas=1, load_s=10e-3)
    # both begin at 60 ms, in one step: tokens at 70 and 80
    assert (found.requests.finish_ns // MS).tolist() == [80, 80]
    assert found.retries == {0: 1}


def test_who_waits_in_vain_is_lost():
    found = run(workload([0, 20], [16] * 2, [2] * 2), (10, 0, FAIL), replicas=1)
    assert found.requests.status.tolist() == [LOST, LOST]
    assert all(found.checks.values())


def test_a_failure_while_loading_calls_the_start_off():
    found = run(workload([0, 50], [16] * 2, [2] * 2), (0, 1, START), (10, 1, FAIL), load_s=20e-3)
    assert found.requests.replica.tolist() == [0, 0]


def test_the_cache_of_a_failed_replica_is_gone():
    """Two equal prompts, one after the other: the second hits 3 of 4 blocks, but not after a failure between them."""
    content = (np.arange(64), np.arange(64))
    work = workload([0, 100], [64, 64], [1, 1], token_ids=content)
    caching = {"settings": {"prefix_caching": True}}
    assert run(work, replicas=1, **caching).requests.cached_tokens.tolist() == [0, 48]
    failed = run(work, (50, 0, FAIL), (60, 0, START), replicas=1, **caching)
    assert failed.requests.cached_tokens.tolist() == [0, 0]


def test_drawn_failures_come_at_their_rate():
    """40 replicas for 100 s, one failure every 50 s each in the mean, repaired at once: about 80, give or take 27."""
    work = workload([0, 100_000], [16, 16], [1, 1])
    found = run(work, replicas=40, mtbf_s=50.0)
    again = run(work, replicas=40, mtbf_s=50.0)
    assert (found.requests.finish_ns == again.requests.finish_ns).all()
    busy = workload(np.arange(0, 20_000, 100), [16] * 200, [20] * 200)
    failing = run(busy, replicas=4, mtbf_s=2.0, repair_s=0.5, load_s=0.5, router="least_outstanding")
    assert (failing.requests.status == FINISHED).all()
    assert len(failing.retries) > 0


@pytest.mark.parametrize("scheduler", scheduler_names())
@run_settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_nothing_is_lost_whatever_fails(scheduler, data):
    draw = data.draw
    count = draw(st.integers(1, 15))
    work = workload(
        sorted(draw(st.lists(st.integers(0, 200), min_size=count, max_size=count))),
        draw(st.lists(st.integers(1, 100), min_size=count, max_size=count)),
        draw(st.lists(st.integers(1, 20), min_size=count, max_size=count)),
    )
    changes = draw(
        st.lists(
            st.tuples(st.integers(0, 300), st.integers(0, 2), st.sampled_from([START, DRAIN, FAIL])),
            min_size=0,
            max_size=6,
        )
    )
    changes.append((301, 0, START))
    changes.sort()
    ahead = scheduler in ("vllm",) and draw(st.booleans())
    policy = {"async_scheduling": ahead}
    if scheduler in ("orca", "static", "trtllm"):
        policy = {"chunked_prefill": False, "max_num_batched_tokens": 512}
    found = run(
        work, *changes, replicas=3, retry=draw(st.booleans()), load_s=draw(st.sampled_from([0.0, 0.03])),
        scheduler=scheduler, settings=policy,
    )  # fmt: skip
    assert all(found.checks.values())
    assert set(found.requests.status) <= {FINISHED, LOST}


def test_waiting_for_somebody_in_service_is_told():
    """One replica, gone from 15 to 60 ms: the request at 20 ms waits 40 ms, and what failed at 15 ms waits 45."""
    found = run(workload([0, 20], [16, 16], [4, 2]), (15, 0, FAIL), (60, 0, START), replicas=1)
    assert (found.requests.status == FINISHED).all()
    assert found.unserved_ns == {0: 45 * MS, 1: 40 * MS}
    assert run(workload([0, 20], [16, 16], [4, 2]), replicas=1).unserved_ns == {}

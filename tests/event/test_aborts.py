"""Clients that give requests up: by hand and drawn."""

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.settings import load_engine
from sim.event.lifecycle import FAIL, START, Change, Elastic
from sim.event.pool import EnginePool
from sim.event.run import Routing, run_fleet
from sim.memory.shape import GroupShape
from sim.report.result import ABORTED, FINISHED, LOST
from sim.scheduler.find import scheduler_names
from sim.workload.trace import NEVER_ABORTS, Workload

from .conftest import make_settings, make_table


MS = 1_000_000


def workload(arrivals_ms, prompts, outputs, patience_ms, **more):
    patience = np.array([NEVER_ABORTS if each is None else each * MS for each in patience_ms])
    arrivals = np.array(arrivals_ms) * MS
    return Workload("test", arrivals, np.array(prompts), np.array(outputs), abort_after_ns=patience, **more)


def run(work, elastic=None, replicas=1, blocks=200, scheduler="vllm", pickup_s=0.0, **settings):
    """Steps of 10 ms."""
    settings = make_settings(profile=load_engine("vllm", "0.33.0").profile, **settings)
    settings.profile.api_pickup_s = pickup_s
    table = make_table(base_s=10e-3, token_s=0.0, row_s=0.0)
    pool = EnginePool(settings, table, blocks, (GroupShape("full", 16),), replicas=replicas, scheduler=scheduler)
    return run_fleet(work, [pool], Routing(), elastic=elastic)


def test_a_request_that_takes_too_long_ends_there():
    """Five tokens at 10 to 50 ms: the first client leaves at 25, the second with its last token already there."""
    found = run(workload([0, 0], [16] * 2, [5] * 2, [25, 51]))
    assert found.requests.status.tolist() == [ABORTED, FINISHED]
    assert found.requests.finish_ns.tolist() == [-1, 50 * MS]
    assert [(m.at_ns, m.request) for m in found.moments] == [(25 * MS, 0)]
    assert found.steps.decodes.tolist() == [0, 2, 2, 1, 1]  # the step under way at 25 ms still has its row


def test_its_seat_and_blocks_are_for_others():
    """8 blocks, of which request 0 has 7: request 1 starts with the step after 0 is given up at 35 ms."""
    found = run(workload([0, 5], [100, 100], [12, 2], [35, None]), blocks=9)
    assert found.requests.status.tolist() == [ABORTED, FINISHED]
    assert found.requests.scheduled_ns[1] == 40 * MS


def test_the_engine_hears_of_it_after_the_pickup():
    """Sent at 0, in the queue at 7 ms; given up at 20, which the engine hears at 27: the step from 27 has no row of it.

    Tokens come at 17, 27, ...; nothing runs after 27.
    """
    found = run(workload([0], [16], [9], [20]), pickup_s=7e-3)
    assert (found.steps.start_ns / MS).tolist() == [7, 17]


def test_a_closed_loop_goes_on():
    """One at a time: the first is given up at 25 ms, then the second is sent, and is in the step from 30 on."""
    found = run(workload([0, 0], [16] * 2, [5, 2], [25, None], concurrency=1))
    assert found.requests.arrival_ns.tolist() == [0, 25 * MS]
    assert found.requests.finish_ns[1] == 50 * MS


def test_who_waits_for_a_replica_gives_up_too():
    """Nobody serves until 60 ms; the first has left by then. A retry after a failure is given up as any other."""
    down = Elastic((Change(60 * MS, 0, START),), True, 0.0)
    found = run(workload([0, 0], [16] * 2, [2] * 2, [50, None]), down)
    assert found.requests.status.tolist() == [ABORTED, FINISHED]
    failing = Elastic((Change(25 * MS, 0, FAIL), Change(30 * MS, 0, START)), True, 0.0)
    found = run(workload([0, 0], [16] * 2, [5] * 2, [60, None]), failing)
    assert found.requests.status.tolist() == [ABORTED, FINISHED]
    assert found.retries == {0: 1, 1: 1}


def test_patience_must_be_positive():
    with pytest.raises(ValueError, match="abort_after_ns"):
        workload([0], [1], [1], [0])


@pytest.mark.parametrize("scheduler", scheduler_names())
@run_settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_nothing_is_lost_whoever_gives_up(scheduler, data):
    draw = data.draw
    count = draw(st.integers(1, 15))

    def several(elements):
        return draw(st.lists(elements, min_size=count, max_size=count))

    work = workload(
        sorted(several(st.integers(0, 150))),
        several(st.integers(1, 100)),
        several(st.integers(1, 20)),
        several(st.sampled_from([None, 1, 10, 35, 80, 200])),
        concurrency=draw(st.sampled_from([None, 1, 3])),
        token_ids=None,
    )
    policy = {"async_scheduling": scheduler == "vllm" and draw(st.booleans())}
    if scheduler == "vllm":
        policy["long_prefill_token_threshold"] = draw(st.sampled_from([0, 40]))
    if scheduler in ("orca", "static", "trtllm"):
        policy = {"chunked_prefill": False, "max_num_batched_tokens": 512}
    found = run(
        work,
        replicas=draw(st.integers(1, 2)),
        blocks=draw(st.sampled_from([20, 200])),
        scheduler=scheduler,
        pickup_s=draw(st.sampled_from([0.0, 5e-3])),
        **policy,
    )
    assert all(found.checks.values())
    assert set(found.requests.status) <= {FINISHED, ABORTED, LOST}
    patient = work.abort_after_ns == NEVER_ABORTS
    assert (found.requests.status[patient] == FINISHED).all()

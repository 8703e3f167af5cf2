"""Loads that fail, and leases: by hand and drawn."""

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.conf import TransferConf
from sim.event.handover import FREE, Failures, HandOverCosts
from sim.event.run import Routing, run_fleet
from sim.report.result import FAILED, FINISHED

from .test_fleet import H100, MS, drawn_workload, lay_out, pool, workload


def run(work, prefill, decode, failures, costs=FREE):
    topology = lay_out([(p.name, H100, p.replicas, 1) for p in (prefill, decode)], TransferConf(), 1.0)
    return run_fleet(work, [prefill, decode], Routing(), topology=topology, costs=costs, failures=failures)


def test_a_failed_load_is_computed_where_it_was_awaited():
    """Prompt 100 in two steps of 10 ms there and two here: prefilled at 20, first token at 40 ms, not at 30."""
    found = run(workload([0], [100], [3]), pool("prefill"), pool("decode"), Failures(1.0, True, 1e-3))
    assert (found.requests.first_token_ns[0] / MS, found.requests.finish_ns[0] / MS) == (40, 60)
    assert found.transfers.failed.tolist() == [1]
    assert all(found.checks.values())


def test_or_ends_the_request():
    """Each of three fails; the client's closed loop of one goes on, and the blocks of both sides are free again."""
    work = workload([0, 0, 0], [100] * 3, [3] * 3, concurrency=1)
    found = run(work, pool("prefill", blocks=20), pool("decode"), Failures(1.0, False, 5e-3))
    assert found.requests.status.tolist() == [FAILED] * 3
    assert (found.transfers.received_ns / MS).tolist() == [20, 40, 60]


def test_blocks_whose_reader_failed_stay_until_the_lease_is_over():
    """7 of 8 blocks are held; the second prompt waits from 20 ms, when the first's load fails, for the lease of 50."""
    limits = {"max_num_batched_tokens": 128}
    work = workload([0, 5], [100, 100], [1, 1])
    found = run(work, pool("prefill", blocks=8, **limits), pool("decode", **limits), Failures(1.0, False, 50e-3))
    assert found.transfers.prefilled_ns[0] / MS == 10
    assert found.requests.scheduled_ns[1] / MS == 60


@pytest.mark.parametrize(("lease_s", "status"), [(39e-3, FAILED), (41e-3, FINISHED)])
def test_a_pull_that_begins_after_the_lease_finds_nothing(lease_s, status):
    """8 blocks at the decode side: the second prompt, prefilled at 20 ms, gets its 7 when the first ends at 60.

    The first is prefilled at 10, loaded at once, and has its 5 tokens at 20, 30, 40, 50 and 60 ms.
    """
    limits = {"max_num_batched_tokens": 128}
    work = workload([0, 0], [100, 100], [5, 1])
    failures = Failures(0.0, False, lease_s, expires=True)
    found = run(work, pool("prefill", **limits), pool("decode", blocks=8, **limits), failures)
    assert found.transfers.allocated_ns[1] / MS == 60
    assert found.requests.status.tolist() == [FINISHED, status]
    assert found.transfers.bytes[1] == 0
    assert (found.transfers.failed[1] > 0) is np.bool_(status == FAILED)


def test_the_rate_is_drawn_by_seed_and_request():
    draws = [[Failures(0.3, True, 1.0, seed=seed).fails(i) for i in range(2000)] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert abs(np.mean(draws[0]) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 2000)


@run_settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_drawn_failures_conserve(data):
    draw = data.draw
    work = drawn_workload(draw)
    limits = {"max_num_batched_tokens": draw(st.integers(16, 200)), "async_scheduling": draw(st.booleans())}
    sides = [
        pool(
            role,
            draw(st.sampled_from([1e-3, 4e-3])),
            draw(st.integers(13, 60)),
            replicas=draw(st.integers(1, 3)),
            block_bytes=draw(st.sampled_from([0.0, 5e6, 1e8])),
            **limits,
        )
        for role in ("prefill", "decode")
    ]
    failures = Failures(
        draw(st.sampled_from([0.0, 0.3, 1.0])),
        draw(st.booleans()),
        draw(st.sampled_from([1e-3, 2e-2, 1.0])),
        draw(st.booleans()),
        draw(st.integers(0, 5)),
    )
    costs = HandOverCosts(*(draw(st.sampled_from([0.0, 1e-3])) for _ in range(4)))
    found = run(work, *sides, failures, costs)
    assert all(found.checks.values())
    statuses = np.isin(found.requests.status, (FINISHED, FAILED))
    assert statuses.all()
    failed = found.transfers.failed > 0
    assert (found.requests.status[~failed] == FINISHED).all()
    if not failures.recomputes:
        assert (found.requests.status[failed] == FAILED).all()
    done = found.requests.status == FINISHED
    assert found.itl_count.sum() == (found.requests.output_tokens[done] - 1).sum()

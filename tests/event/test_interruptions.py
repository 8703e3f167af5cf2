"""Prefill and decode instances that fail, start and drain, and clients that leave, while KV is under way."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.conf import TransferConf
from sim.deployment.settings import load_engine
from sim.deployment.topology import lay_out
from sim.event.handover import FREE, Failures, HandOverCosts
from sim.event.lifecycle import DRAIN, FAIL, START, Change, Elastic
from sim.event.run import Routing, run_fleet
from sim.report.result import ABORTED, FAILED, FINISHED, LOST
from sim.workload.trace import NEVER_ABORTS

from .test_fleet import H100, MS, drawn_workload, pool, workload
from .test_roles import pool as other_pool


P, D = 0, 1
SIZE = 25e6
"""Of a block: the four of a prompt of 64 tokens take 2 ms over 50 GB/s."""


def patient(work, *patience_ms):
    patience = np.array([NEVER_ABORTS if each is None else int(each * MS) for each in patience_ms])
    return dataclasses.replace(work, abort_after_ns=patience, digest="")


def run(work, *changes, sides=None, costs=FREE, routing=None, failures=None, **elastic):
    """Changes are (ms, replica over both pools, action); without any the fleet is not elastic."""
    sides = sides or (pool("prefill"), pool("decode", block_bytes=SIZE))
    topology = lay_out([(p.role, H100, p.ranks, 1) for p in sides], TransferConf(placement="separate"), 1.0)
    made = None
    if changes or elastic:
        made = Elastic(
            tuple(Change(int(at * MS), replica, action) for at, replica, action in changes), **{"load_s": 0.0} | elastic
        )
    return run_fleet(work, sides, routing or Routing(), topology=topology, costs=costs, failures=failures, elastic=made)


def cut(found):
    return [(moment.at_ns / MS, moment.request) for moment in found.moments if moment.what == "KV transfer cut"]


RECOMPUTE, FAIL_LOADS = Failures(0.0, True, 30.0), Failures(0.0, False, 30.0)


def test_undisturbed():
    """Prompt 64: one step of 10 ms, 100 MB from 10 to 12 ms, first token at 22, second at 32."""
    found = run(workload([0], [64], [2]))
    assert found.transfers.received_ns[0] / MS == 12
    assert (found.requests.first_token_ns[0] / MS, found.requests.finish_ns[0] / MS) == (22, 32)


def test_a_prefill_instance_fails_in_the_middle_of_a_transfer():
    """At 11 ms half of the bytes are there, of no use: the decode instance computes the prompt, 11 to 21 ms."""
    found = run(workload([0], [64], [2]), (11, P, FAIL), failures=RECOMPUTE)
    assert found.links.bytes.tolist() == [50e6, 50e6]
    assert (found.links.busy_ns / MS).tolist() == [1, 1]
    assert (found.requests.first_token_ns[0] / MS, found.requests.finish_ns[0] / MS) == (21, 31)
    assert (found.transfers.failed.tolist(), found.retries, cut(found)) == ([1], {}, [(11, 0)])
    assert found.steps.prefill_tokens.tolist() == [64, 64, 0]


def test_or_the_load_ends_the_request():
    found = run(workload([0], [64], [2]), (11, P, FAIL), failures=FAIL_LOADS)
    assert found.requests.status.tolist() == [FAILED]


def test_a_pull_that_comes_after_the_failure_fails():
    """Prefilled at 10 ms, in the decode instance's queue at 15; in between the prefill instance fails."""
    found = run(workload([0], [64], [2]), (12, P, FAIL), costs=HandOverCosts(5e-3, 0, 0, 0), failures=RECOMPUTE)
    assert (found.requests.first_token_ns[0] / MS, found.links.bytes.tolist()) == (25, [0, 0])
    assert cut(found) == []  # nothing was under way


def test_an_engine_that_knows_no_failed_loads_begins_again():
    """At 11 ms: prefilled again at the other instance from 11 to 21, transferred to 23, first token at 33."""
    sides = pool("prefill", replicas=2), pool("decode", block_bytes=SIZE)
    found = run(workload([0], [64], [2]), (11, P, FAIL), sides=sides)
    assert (found.retries, found.transfers.source.tolist()) == ({0: 1}, [1])
    assert (found.transfers.received_ns[0] / MS, found.requests.first_token_ns[0] / MS) == (23, 33)
    assert sorted(found.links.bytes.tolist()) == [50e6, 100e6, 150e6]  # out of either, and in


def test_what_has_been_received_outlives_its_prefill_instance():
    found = run(workload([0], [64], [2]), (13, P, FAIL), failures=FAIL_LOADS)
    assert found.requests.finish_ns[0] / MS == 32


def test_a_prefill_under_way_begins_again_or_is_lost():
    """Failed at 5 ms, in service again at 40: prefilled at 50, and so on as undisturbed."""
    again = run(workload([0], [64], [2]), (5, P, FAIL), (40, P, START), failures=RECOMPUTE)
    assert (again.retries, again.requests.first_token_ns[0] / MS) == ({0: 1}, 62)
    lost = run(workload([0], [64], [2]), (5, P, FAIL), (40, P, START), retry=False)
    assert lost.requests.status.tolist() == [LOST]


@pytest.mark.parametrize(("at_ms", "sent"), [(11, 150e6), (25, 200e6)])
def test_a_decode_instance_fails_and_the_request_begins_again(at_ms, sent):
    """During the transfer (half of it counts) or while it decodes; in service again at 50 ms: all from there on."""
    found = run(workload([0], [64], [2]), (at_ms, D, FAIL), (50, D, START))
    assert (found.transfers.received_ns[0] / MS, found.requests.finish_ns[0] / MS) == (62, 82)
    assert (found.retries, found.links.bytes.tolist()) == ({0: 1}, [sent, sent])
    assert cut(found) == ([(11, 0)] if at_ms == 11 else [])


def test_blocks_for_a_reader_that_failed_stay_for_the_lease():
    """The lease of 30 s counts from the failure at 11 ms; another prompt of 4 of the 6 blocks waits for it."""
    sides = pool("prefill", blocks=6), pool("decode", block_bytes=SIZE)
    found = run(workload([0, 5], [64, 64], [2, 2]), (11, D, FAIL), (12, D, START), sides=sides, retry=False)
    assert found.requests.status.tolist() == [LOST, FINISHED]
    assert found.requests.scheduled_ns[1] / MS == pytest.approx(30_011, abs=10)


def test_who_has_not_come_to_a_failed_decode_instance_goes_to_another():
    """Prefilled at 10, due at 15; the one chosen, the first, fails at 12: the other is as good."""
    sides = pool("prefill"), pool("decode", block_bytes=SIZE, replicas=2)
    found = run(workload([0], [64], [2]), (12, D, FAIL), sides=sides, costs=HandOverCosts(5e-3, 0, 0, 0))
    assert (found.transfers.target.tolist(), found.transfers.received_ns[0] / MS, found.retries) == ([2], 17, {})


def test_or_it_waits_for_the_next():
    """It fails at 12 ms; the hand-over begins again when one is in service at 40, and takes its 5 ms."""
    costs = HandOverCosts(5e-3, 0, 0, 0)
    found = run(workload([0], [64], [2]), (12, D, FAIL), (40, D, START), costs=costs)
    assert (found.transfers.queued_ns[0] / MS, found.retries) == (45, {})
    never = run(workload([0], [64], [2]), (12, D, FAIL), costs=costs)
    assert never.requests.status.tolist() == [LOST]


def test_nobody_prefills_what_nobody_could_decode():
    """No decode instance until 30 ms: the prompt is computed from then on."""
    found = run(workload([0], [64], [2]), (30, D, START))
    assert (found.requests.scheduled_ns[0] / MS, found.requests.first_token_ns[0] / MS) == (30, 52)
    assert run(workload([0], [64], [2]), (0, D, FAIL)).requests.status.tolist() == [LOST]


def test_drained_instances_end_what_they_have():
    """Both first instances are drained while request 0 is between them; request 1, sent then, goes to the others."""
    sides = pool("prefill", replicas=2), pool("decode", block_bytes=SIZE, replicas=2)
    found = run(workload([0, 12], [64, 64], [2, 2]), (11, 0, DRAIN), (11, 2, DRAIN), sides=sides)
    assert (found.transfers.source.tolist(), found.transfers.target.tolist()) == ([0, 1], [2, 3])
    assert (found.requests.finish_ns / MS).tolist() == [32, 44]


def test_a_drained_prefill_instance_may_still_fail_with_what_it_holds():
    found = run(workload([0], [64], [2]), (10.5, P, DRAIN), (11, P, FAIL), failures=RECOMPUTE)
    assert found.requests.first_token_ns[0] / MS == 21


@pytest.mark.parametrize(
    ("patience_ms", "bytes_sent", "steps"),
    [
        (5, 0, [64]),  # it is computed; its step goes on
        (11, 100e6, [64]),  # the transfer goes on to its end at 12
        (25, 100e6, [64, 0, 0]),  # its first token came at 22; the step from there on gives nothing
    ],
)
def test_a_client_leaves(patience_ms, bytes_sent, steps):
    found = run(patient(workload([0], [64], [3]), patience_ms))
    assert found.requests.status.tolist() == [ABORTED]
    assert found.links.bytes.tolist() == ([bytes_sent] * 2 if bytes_sent else [])
    assert found.steps.prefill_tokens.tolist() == steps


@pytest.mark.parametrize(
    ("patience_ms", "scheduled_ms"),
    # given up at 11 ms: its blocks at the decode side are free when the transfer ends at 12, then another may load;
    # of the one that is between the instances, 10 to 15 ms, nobody tells: its blocks are held for 30 s
    [(16, 17), (12, 30_010)],
)
def test_blocks_of_who_was_given_up(patience_ms, scheduled_ms):
    """6 blocks at the prefill side, of which request 0 has 4 until they are read."""
    sides = pool("prefill", blocks=6), pool("decode", block_bytes=SIZE)
    work = patient(workload([0, 5], [64, 64], [2, 2]), patience_ms, None)
    found = run(work, sides=sides, costs=HandOverCosts(5e-3, 0, 0, 0))
    assert found.requests.status.tolist() == [ABORTED, FINISHED]
    assert found.requests.scheduled_ns[1] / MS == pytest.approx(scheduled_ms, abs=10)


def test_who_waits_for_blocks_and_leaves_tells_the_prefill_instance():
    """The decode side's 6 blocks are full until 52 ms; request 1 gives up at 30 and its 4 blocks are free at once."""
    sides = pool("prefill", blocks=6), pool("decode", blocks=6, block_bytes=SIZE)
    work = patient(workload([0, 0, 0], [64, 64, 64], [4, 4, 4]), None, 30, None)
    found = run(work, sides=sides)
    assert found.requests.status.tolist() == [FINISHED, ABORTED, FINISHED]
    assert found.requests.scheduled_ns[2] / MS == pytest.approx(30, abs=10)


def test_what_is_sent_piece_by_piece_ends_with_the_piece_under_way():
    """SGLang, prompt 96 in two chunks of 64 and 32: the first leaves from 10 to 12 ms.

    Given up at 11: the piece arrives at 12, the second is not computed any more.
    """
    sides = other_pool("sglang", "prefill"), other_pool("sglang", "decode", block_bytes=SIZE)
    found = run(patient(workload([0], [96], [2]), 11), sides=sides)
    assert found.requests.status.tolist() == [ABORTED]
    assert found.links.bytes.tolist() == [100e6, 100e6]
    assert cut(found) == [(12, 0)]


def drawn_sides(draw, engine):
    limits = {"blocks": draw(st.integers(14, 60))}
    size = draw(st.sampled_from([0.0, 5e6, 1e8]))
    counts = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if engine in ("sglang", "trtllm"):
        if engine == "sglang":
            limits = {"blocks": draw(st.integers(60, 150))}
        return [
            other_pool(engine, role, 4e-3, replicas=count, block_bytes=size, **limits)
            for role, count in zip(("prefill", "decode"), counts, strict=True)
        ]
    version = engine.removesuffix(" layerwise")
    if version == "0.10.2":
        limits = {"blocks": 150}  # of a pool that is too small for all it preempts prompts for ever, as the engine does
    made = []
    for role, count in zip(("prefill", "decode"), counts, strict=True):
        one = pool(role, 4e-3, replicas=count, block_bytes=size, async_scheduling=False, **limits)
        settings = dataclasses.replace(one.settings, profile=load_engine("vllm", version).profile)
        settings.profile.api_pickup_s = draw(st.sampled_from([0.0, 1e-3]))
        made.append(dataclasses.replace(one, settings=settings))
    return made


@pytest.mark.parametrize("engine", ["0.10.2", "0.19.0", "0.33.0", "0.33.0 layerwise", "sglang", "trtllm"])
@run_settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_nothing_is_lost_whatever_fails_and_whoever_leaves(engine, data):
    draw = data.draw
    work = drawn_workload(draw, 12, 12)
    if draw(st.booleans()):
        waits = st.sampled_from([None, None, 1, 5, 20, 60])
        work = patient(work, *draw(st.lists(waits, min_size=len(work), max_size=len(work))))
    sides = drawn_sides(draw, engine)
    instances = sum(side.replicas for side in sides)
    change = st.tuples(st.integers(0, 150), st.integers(0, instances - 1), st.sampled_from([START, DRAIN, FAIL, FAIL]))
    changes = sorted(draw(st.lists(change, max_size=6)))
    if draw(st.booleans()):
        changes += [(200, replica, START) for replica in range(instances)]
    layerwise = engine.endswith("layerwise")
    failures = None
    if engine.startswith("0.33"):
        leases = st.sampled_from([2e-3, 1.0])
        rate = draw(st.sampled_from([0.0, 0.3]))
        expires = not layerwise and draw(st.booleans())
        failures = draw(st.sampled_from([None, Failures(rate, draw(st.booleans()), draw(leases), expires)]))
    found = run(
        work,
        *changes,
        sides=sides,
        costs=HandOverCosts(*(draw(st.sampled_from([0.0, 1e-3])) for _ in range(4)), layers=4 if layerwise else 0),
        routing=Routing(at_arrival=layerwise or draw(st.booleans())),
        failures=failures,
        retry=draw(st.booleans()),
        load_s=draw(st.sampled_from([0.0, 5e-3])),
    )
    assert all(found.checks.values())
    assert set(found.requests.status.tolist()) <= {FINISHED, ABORTED, LOST, FAILED}
    if not changes and work.abort_after_ns is None and failures is None:
        assert (found.requests.status == FINISHED).all()


def test_a_prefilled_request_without_a_decode_instance_waits_for_one():
    """The prefill ends at 10 ms; the only decode instance is gone from 5 to 50 ms: 40 ms, whatever else there is."""
    found = run(workload([0], [64], [2]), (5, D, FAIL), (50, D, START))
    assert found.requests.status[0] == FINISHED
    assert found.unserved_ns == {0: 40 * MS}

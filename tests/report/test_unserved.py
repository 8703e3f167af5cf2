"""Requests that nobody served are the verdict before any about steps."""

import dataclasses

import numpy as np

from sim.report.fleet import fleet_verdict
from sim.report.metrics import latencies, measure
from sim.report.result import ABORTED


def judge(run):
    return fleet_verdict(run, measure(run))


def late(run, i, wait_ns, **more):
    """Request i was sent so much earlier, and reached its replica when it did."""
    arrival_ns = run.requests.arrival_ns.copy()
    arrival_ns[i] -= wait_ns
    return dataclasses.replace(run, requests=dataclasses.replace(run.requests, arrival_ns=arrival_ns), **more)


def test_waiting_for_somebody_in_service_is_not_the_api_servers_fault(toy):
    """One of 60 requests waits 600 s: most of all time to the first token, by whatever name."""
    run, wait_ns = toy(requests=60, rate=12.0, blocks=60000, seats=256), 600 * 10**9
    assert judge(late(run, 5, wait_ns)).kind == "server-bound"
    found = judge(late(run, 5, wait_ns, unserved_ns={5: wait_ns}))
    assert found.kind == "out-of-service" and found.change.startswith("deployment.elastic")
    whole_s = latencies(run.requests).ttft_s.sum() + 600
    assert abs(found.evidence["out_of_service"] - 600 / whole_s) < 1e-9
    assert "1 request, 600.0 s each" in found.sentence
    assert judge(late(run, 5, wait_ns, retries={5: 1})).kind != "server-bound"


def test_a_short_outage_is_no_verdict(toy):
    run = toy(requests=60, rate=12.0, blocks=60000, seats=256)
    assert judge(dataclasses.replace(run, unserved_ns={5: 1000})).kind == judge(run).kind


def given_up(run, number):
    status = run.requests.status.copy()
    status[:number] = ABORTED
    return dataclasses.replace(run, requests=dataclasses.replace(run.requests, status=np.asarray(status)))


def test_clients_that_give_up_are_the_verdict_from_a_tenth_on(toy):
    run = toy(requests=60, rate=12.0, blocks=60000, seats=256)
    assert judge(given_up(run, 5)).kind == judge(run).kind
    found = judge(given_up(run, 6))
    assert found.kind == "abandoned" and found.evidence == {"aborted": 0.1}
    assert "6 of 60" in found.sentence and "the 54 that were served" in found.sentence
    assert "nobody was served" in judge(given_up(run, 60)).sentence

"""The timeline follows Chrome's trace format and tells what it leaves out."""

import numpy as np
import pytest

from sim.report.timeline import REQUESTS_PID, timeline


def spans(trace, pid):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]


def test_events_have_the_fields_of_their_phase(result):
    trace = timeline(result)
    need = {"X": {"ts", "dur", "tid", "args"}, "C": {"ts", "args"}, "M": {"args"}, "i": {"ts", "s", "tid"}}
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "name"} | need[event["ph"]] <= set(event)
        assert event.get("dur", 1) > 0
        assert event.get("ts", 0) >= 0
    assert trace["displayTimeUnit"] == "ms"


def test_three_requests(three):
    trace = timeline(three())
    steps = spans(trace, 1)
    assert [(event["name"], event["ts"], event["dur"]) for event in steps] == [
        ("prefill", 0.0, 1e5),
        ("mixed", 1e5, 2e5),
        ("mixed", 5e5, 5e5),
    ]
    assert steps[2]["args"] == {
        "prefill tokens": 40,
        "prefill chunks": 1,
        "decodes": 5,
        "context tokens": 60,
        "padded tokens": 48,
        "graph": "eager",
    }
    # Request 0 has no queue, request 1 no decode: empty spans are left out.
    lives = {
        r: [(e["name"], e["ts"], e["dur"]) for e in spans(trace, REQUESTS_PID) if e["tid"] == r + 1] for r in range(3)
    }
    assert lives[0] == [("prefill", 0.0, 1e5), ("decode", 1e5, 4e5)]
    assert lives[1] == [("queue", 5e4, 5e4), ("prefill", 1e5, 2e5)]
    assert lives[2] == [("queue", 2e5, 3e5), ("prefill", 5e5, 2e5), ("decode", 7e5, 3e5)]
    kv = [(e["ts"], e["args"]["value"]) for e in trace["traceEvents"] if e["name"] == "KV use (%)"]
    assert kv == [(0.0, 10.0), (1e5, 30.0), (5e5, 50.0)]
    assert [e["ts"] for e in trace["traceEvents"] if e["name"] == "preemption"] == [5e5]


def test_steps_of_a_replica_do_not_overlap(toy):
    trace = timeline(toy(requests=60, replicas=2))
    for pid in (1, 2):
        events = spans(trace, pid)
        ends = [event["ts"] + event["dur"] for event in events]
        assert len(events) > 10
        assert all(b["ts"] >= end - 1e-3 for end, b in zip(ends, events[1:], strict=False))


def test_what_is_left_out_is_counted(result):
    trace = timeline(result, max_steps=100, max_requests=7)
    other = trace["otherData"]
    assert (other["steps_shown"], other["steps_left_out"]) == (100, len(result.steps) - 100)
    assert (other["requests_shown"], other["requests_left_out"]) == (7, len(result.requests) - 7)
    assert len(spans(trace, 1)) == 100
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert f"requests (first 7 of {len(result.requests)})" in names


@pytest.mark.parametrize("name", ["running", "waiting"])
def test_counters_are_the_step_table(result, name):
    trace = timeline(result)
    changes = [event["args"]["value"] for event in trace["traceEvents"] if event["ph"] == "C" and event["name"] == name]
    column = getattr(result.steps, name)
    assert changes == column[np.concatenate([[True], np.diff(column) != 0])].tolist()

"""The timeline follows Chrome's trace format and tells what it leaves out."""

import numpy as np
import pytest

from sim.report.result import LayerKind
from sim.report.timeline.layers import steps_wanted
from sim.report.timeline.marks import REQUESTS_PID
from sim.report.timeline.trace import timeline


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
        "step": 2,
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


KINDS = (
    LayerKind("Attention, Dense", {0: 0}, 3.0, False),
    LayerKind("Attention, MoE", {1: 0, 2: 0}, 1.0, True),
)
COMPONENTS = {"gemm_s": 0.05, "moe_s": 0.04, "attention_s": 0.03, "launch_s": 0.01, "head_s": 0.02, "host_s": 0.0}


def test_a_step_opens_to_its_layers(three):
    """Step 1 takes 200 ms, its components 150: scaled by 4/3. Products 3 : 1 : 1, experts in two, attention in all."""
    components = {name: np.full(3, value) for name, value in COMPONENTS.items()}
    trace = timeline(three(layers=KINDS, components_s=components, config={"timeline_layers": "1"}))
    assert trace["otherData"]["steps_opened"] == 1
    inside = [event for event in spans(trace, 1) if "step" not in event["args"]]
    tops = [event for event in inside if event["name"].startswith(("layer", "launch", "head"))]
    shown = [(event["name"], pytest.approx(event["dur"] / 1000)) for event in tops]
    scale = 4 / 3
    assert shown == [
        ("launches", 10 * scale),
        ("layer 0", (30 + 10) * scale),
        ("layer 1", (10 + 10 + 20) * scale),
        ("layer 2", (10 + 10 + 20) * scale),
        ("head and sampler", 20 * scale),
    ]
    assert (tops[0]["ts"], tops[-1]["ts"] + tops[-1]["dur"]) == (1e5, pytest.approx(3e5))
    parts = [(event["name"], event["dur"] / 1000) for event in inside if event not in tops]
    assert parts[:2] == [("matrix products", pytest.approx(40.0)), ("attention", pytest.approx(10 * scale))]
    assert [name for name, _ in parts[2:5]] == ["matrix products", "attention", "experts"]
    assert "layers of one kind" in tops[2]["args"]["note"] and tops[2]["args"]["kind"] == "Attention, MoE"


def test_layers_of_two_stages_fill_their_slices():
    """Each stage shows its own layers; the head is on the last, launches on both."""
    from sim.report.timeline.layers import parts_of

    kinds = (LayerKind("Attention, Dense", {0: 0, 1: 1}, 1.0, False),)
    names = [[name for name, _, _ in parts_of(kinds, COMPONENTS, stage, 2)] for stage in range(2)]
    assert names == [["launches", "layer 0"], ["launches", "layer 1", "head and sampler"]]
    seconds = [
        second for stage in range(2) for _, _, part in parts_of(kinds, COMPONENTS, stage, 2) for _, second in part
    ]
    assert sum(seconds) == pytest.approx(sum(COMPONENTS.values()))


def test_which_steps_are_opened_is_said_in_numbers():
    assert steps_wanted("3, 5-7") == [(3, 3), (5, 7)]
    for text in ("a", "7-5", "-1", "1-", "1.5"):
        with pytest.raises(ValueError, match="timeline_layers wants numbers"):
            steps_wanted(text)
    with pytest.raises(ValueError, match="at most 1,000"):
        steps_wanted("0-1000")

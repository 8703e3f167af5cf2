"""The timeline of fleets: tracks without wrong overlaps, lives without holes, counters that carry the bytes moved."""

import gzip
import json
from collections import defaultdict

import pytest

from sim.report.timeline.marks import LINKS_PID, REQUESTS_PID


BUSY = (
    "model=llama-3.2-1b",
    "workload=fixed-512-512",
    "workload.output_tokens=10",
    "workload.num_requests=40",
    "workload.rate=400",
    "deployment=pd-1p1d",
    "deployment.pools.decode.replicas=2",
    "deployment.transfer.efficiency=0.01",
    "deployment.transfer.setup_s=0",
    "deployment.transfer.block_s=0",
)


@pytest.fixture(params=["vllm-0.33.0", "trtllm-1.0"])
def trace(request, headway, tmp_path):
    """A prefill and two decode instances whose transfers are slow enough to share links, by engine."""
    found = headway(
        "simulate",
        *BUSY,
        f"engine={request.param}",
        f"results={tmp_path / 'run'}",
        "timeline_layers=2-3",
        "--json",
    )
    assert found.code == 0, found.err
    return found.json(), json.loads(gzip.decompress((tmp_path / "run" / "trace.json.gz").read_bytes()))


def tracks(trace):
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    return found


def test_a_fleet_on_the_timeline(trace):
    summary, trace = trace
    by_track = tracks(trace)
    for slices in by_track.values():
        # two slices of a track are apart, or one holds the other; the rounding of microseconds is 1e-3 ns
        open_until = []
        for start, end, _ in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= start + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)
    lives = {
        tid: sorted(slices, key=lambda one: one[0]) for (pid, tid), slices in by_track.items() if pid == REQUESTS_PID
    }
    assert len(lives) == summary["completed"] == 40
    for slices in lives.values():
        assert all(
            later[0] == pytest.approx(earlier[1], abs=1e-3) for earlier, later in zip(slices, slices[1:], strict=False)
        )
        assert {"prefill", "KV transfer"} <= {event["name"] for _, _, event in slices}
    moved = {
        e["args"]["request"]: (s, t) for (pid, _), found in by_track.items() if pid == LINKS_PID for s, t, e in found
    }
    assert len(moved) == 40
    assert sum(len(found) for (pid, tid), found in by_track.items() if pid == LINKS_PID and tid > 2) > 0  # lanes
    arrows = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event["ph"] in ("s", "t", "f"):
            arrows[event["id"]][event["ph"]] = event
            assert any(start <= event["ts"] <= end for start, end, _ in by_track[event["pid"], event["tid"]])
    assert len(arrows) >= 36
    for number, points in arrows.items():
        assert points["t"]["ts"] == moved[number][0]
        assert points["s"]["ts"] <= points["t"]["ts"] <= points["f"]["ts"]
    assert trace["otherData"]["link_changes_left_out"] == 0
    assert trace["otherData"]["steps_opened"] == 2


def test_link_counters_integrate_to_the_bytes_moved(trace):
    summary, trace = trace
    counters = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "C" and event["pid"] == LINKS_PID:
            counters[event["name"].rpartition(" (")[0]].append((event["ts"], event["args"]["value"]))
    bytes_of = {link["link"]: link["bytes"] for link in summary["links"]}
    assert set(counters) == set(bytes_of)
    for name, points in counters.items():
        assert points[-1][1] == 0
        carried = sum((after - at) * value * 1e3 for (at, value), (after, _) in zip(points, points[1:], strict=False))
        assert carried == pytest.approx(bytes_of[name], rel=1e-4)


def test_mistakes_are_sentences(headway):
    found = headway("simulate", "model=llama-3.2-1b", "timeline_layers=all")
    assert found.code == 2 and "timeline_layers wants numbers of steps" in found.err


def test_steps_that_are_not_there_are_said(headway):
    words = ("model=llama-3.2-1b", "workload=fixed-1024-128", "workload.num_requests=1", "workload.output_tokens=2")
    found = headway("simulate", *words, "timeline_layers='0-1,9000'").out
    assert "note: timeline_layers=0-1,9000 names steps that are not there: the run has " in found
    assert "names steps" not in headway("simulate", *words, "timeline_layers=0-1").out

"""Collectives as events: against recorded runs of ASTRA-sim, against the closed forms, and worked by hand."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from calibration.astra_sim import read_runs
from sim.event.agenda import NEVER, Agenda
from sim.event.fabric.collective import finish_ns
from sim.event.fabric.wires import QueuedWires
from sim.hardware.collective_rules import Dimension, Rules, closed_form_ns


RECORDED = read_runs(Path(__file__).with_name("runs.csv"))


def what(run):
    return run.op, run.size_bytes, run.dimensions, run.rules


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: f"{run.backend}-{run.topology}-{run.op}-{run.algorithm}")
def test_recorded_runs_to_the_nanosecond(run):
    assert finish_ns(*what(run)) == run.finish_ns


def test_all_runs(shared):
    """Every 7th run exactly; closed forms within 0.5 %, but for small messages sent at once through a switch."""
    runs = read_runs(shared / "data" / "astra-sim" / "astra_sim_analytical_golden.csv")
    assert len(runs) == 2048
    for run in runs[::7]:
        assert finish_ns(*what(run)) == run.finish_ns, run
    off = [run for run in runs if abs(closed_form_ns(*what(run)) / run.finish_ns - 1) > 0.005]
    assert {(run.backend, run.topology, run.algorithm) for run in off} <= {("aware", "Switch", "direct")}
    assert len(off) <= 7
    assert all(abs(closed_form_ns(*what(run)) / run.finish_ns - 1) < 0.03 for run in off)


kinds = st.sampled_from([("Ring", "ring"), ("FullyConnected", "direct"), ("Switch", "ring"), ("Switch", "direct")])
operations = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])


@given(kinds, st.integers(3, 6), operations, st.integers(16, 26), st.integers(1, 6), st.booleans())
@settings(max_examples=60)
def test_the_closed_form_is_what_events_say(kind, ranks, op, log_bytes, splits, queued):
    """Alone on its links; cut to whole nanoseconds, a hop and a sum lose less than 1 and 3 ns."""
    way = Dimension(kind[0], ranks, 500, 40, kind[1])
    rules = Rules(splits, 1, 10, 1000.0, queued)
    form, events = closed_form_ns(op, 1 << log_bytes, [way], rules), finish_ns(op, 1 << log_bytes, [way], rules)
    # messages at once: the sum of the first may be done when the last comes in, and be sent on before it is summed
    early = 10 + 3 * (1 << log_bytes) / ranks / splits / 1000 if kind == ("Switch", "direct") and queued else 0
    messages = splits * ranks * ranks
    assert events - 1 <= form <= events + 5 * messages + splits * early


@given(st.integers(2, 5), st.integers(2, 4), operations, st.integers(18, 26), st.booleans())
@settings(max_examples=40)
def test_two_dimensions(inner, outer, op, log_bytes, queued):
    """For two dimensions the closed form is the time, with queues on the links of both or without."""
    ways = [Dimension("Ring", inner + 1, 100, 200), Dimension("Switch", outer, 900, 30)]
    rules = Rules(4, 1, 10, 1000.0, queued)
    form, events = closed_form_ns(op, 1 << log_bytes, ways, rules), finish_ns(op, 1 << log_bytes, ways, rules)
    assert events - 1 <= form <= events * 1.002 + 500


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_large_domain(op):
    """128 ranks, 16 nodes of 8: the closed form is off by what is cut from whole nanoseconds, below 0.5 %."""
    ways, rules = [Dimension("Switch", 8, 300, 450), Dimension("Switch", 16, 2500, 50)], Rules(1, 1, 10, 3350.0)
    assert closed_form_ns(op, 1 << 26, ways, rules) == pytest.approx(finish_ns(op, 1 << 26, ways, rules), rel=0.005)


def test_contended_chunks_take_turns():
    """Eight chunks at once on a ring: links are busy without a break, so the bytes set the time and not the latency."""
    way, size = Dimension("Ring", 4, 500, 50), 64_000_000
    found = finish_ns("all_gather", size, [way], Rules(8, 8, 0, 1e12, queued=True))
    bytes_ns = 3 * size / 50
    assert bytes_ns <= found <= bytes_ns + 3 * 500 + 1
    # without queues eight chunks share a link's whole rate eight times: too fast, as ASTRA-sim is there
    assert finish_ns("all_gather", size, [way], Rules(8, 8, 0, 1e12)) < bytes_ns / 7


def test_a_link_with_a_queue_by_hand():
    """Two messages of 1,000 bytes over one link of 10 bytes / ns and 5 ns: there at 105 and 205; round a ring twice."""
    agenda = Agenda()
    wires = QueuedWires(agenda, [Dimension("Ring", 4, 5, 10)])
    seen = []
    wires.send(0, 1, 1000, lambda now_ns: seen.append(("near", now_ns)))
    wires.send(0, 2, 1000, lambda now_ns: seen.append(("far", now_ns)))
    wires.send(1, 0, 1000, lambda now_ns: seen.append(("back", now_ns)))
    while agenda.next_ns != NEVER:
        _, action = agenda.pop()
        action(agenda.now_ns)
    assert seen == [("near", 105), ("back", 105), ("far", 310)]
    with pytest.raises(ValueError, match="differ in one dimension"):
        QueuedWires(agenda, [Dimension("Ring", 2, 5, 10)] * 2).send(0, 3, 1, seen.append)

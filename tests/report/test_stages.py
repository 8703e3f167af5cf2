"""A report of pipeline stages: steps overlap, shares stay below 1, and idle stages are told."""

import dataclasses

import numpy as np
import pytest

from sim.report.bottleneck import verdict
from sim.report.console import console
from sim.report.metrics import measure
from sim.report.result import StageTable
from sim.report.series import holds_until_ns, series
from sim.report.timeline.trace import timeline


MS = 1_000_000


def in_stages(result, start_ms, end_ms):
    """The result's first steps at other times, spread over stages."""
    start, end = np.array(start_ms) * MS, np.array(end_ms) * MS
    columns = {
        field.name: getattr(result.steps, field.name)[: len(start)] for field in dataclasses.fields(result.steps)
    }
    steps = dataclasses.replace(result.steps, **columns | {"start_ns": start[:, 0], "end_ns": end[:, -1]})
    components = {name: values[: len(start)] for name, values in result.components_s.items()}
    return dataclasses.replace(result, steps=steps, stages=StageTable(start, end), components_s=components)


@pytest.fixture
def overlapping(three):
    """Two stages: step 0 [0, 10] [10, 20], step 1 [10, 20] [20, 30], step 2 [20, 30] [30, 40]."""
    return in_stages(three(), [[0, 10], [10, 20], [20, 30]], [[10, 20], [20, 30], [30, 40]])


def test_queues_hold_until_the_next_step_starts(overlapping):
    steps = overlapping.steps
    assert (holds_until_ns(steps.replica, steps.start_ns, steps.end_ns) // MS).tolist() == [10, 20, 40]


def test_busy_is_the_mean_over_stages(overlapping):
    assert (overlapping.busy_ns // MS).tolist() == [10, 10, 10]
    metrics = measure(overlapping)
    assert metrics.busy_share == pytest.approx(30e-3 / metrics.duration_s)
    # bins of 10 ms from the first arrival: one stage, two, two, one of two
    found = series(overlapping, 10e-3)
    assert found.busy[:5].tolist() == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0])


def test_the_timeline_has_a_track_per_stage(overlapping):
    events = timeline(overlapping)["traceEvents"]
    spans = [(e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert spans[:2] == [(1, 0.0, 10_000.0), (2, 10_000.0, 10_000.0)]
    names = {e["args"].get("name") for e in events if e["ph"] == "M" and e["pid"] == 1}
    assert {"stage 0", "stage 1"} <= names


def test_the_console_names_each_stage(overlapping):
    metrics = measure(overlapping)
    share = 100 * 30e-3 / metrics.duration_s
    assert f"Pipeline stages busy (%):                {share:.1f} / {share:.1f}" in console(overlapping, metrics, None)


def test_idle_stages_are_the_bottleneck(three):
    """One batch at a time: some stage runs for 40 of 40 ms, each only half of it."""
    alone = in_stages(three(), [[0, 10], [20, 30]], [[10, 20], [30, 40]])
    found = verdict(alone, measure(alone))
    assert found is not None
    assert found.kind == "pipeline-bound"
    assert found.evidence["some_stage_busy"] == pytest.approx(2 * found.evidence["busy"])

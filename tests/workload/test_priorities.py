"""Priorities of requests: drawn by shares, or read from a trace."""

import dataclasses

import numpy as np
import pytest

from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.trace import Workload


def test_shares_are_drawn():
    """A fifth, none and four fifths of 5000: within four standard deviations, sqrt(5000 x 0.2 x 0.8) = 28."""
    made = build_workload(WorkloadConf(num_requests=5000, priorities=[1.0, 0.0, 4.0]), seed=3)
    assert made.priority is not None
    counts = np.bincount(made.priority)
    assert counts[1] == 0 and abs(counts[0] - 1000) < 4 * 28
    assert any("priorities from 0, drawn with shares 0.2, 0, 0.8" in text for text in made.provenance)


def test_the_rest_of_the_workload_is_as_without():
    """Priorities have a random stream of their own; without them the digest is that of earlier versions."""
    without = build_workload(WorkloadConf(num_requests=50, lengths="uniform", range_ratio=0.5), seed=1)
    with_them = build_workload(
        WorkloadConf(num_requests=50, lengths="uniform", range_ratio=0.5, priorities=[0.5, 0.5]), seed=1
    )
    assert np.array_equal(without.prompt_tokens, with_them.prompt_tokens)
    assert np.array_equal(without.arrival_ns, with_them.arrival_ns)
    assert without.priority is None and without.digest != with_them.digest


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "arrival_s,input_tokens,output_tokens,priority\n0,10,5,0\n1,20,6,-3\n"),
        (
            "timed.jsonl",
            '{"timestamp": 0.5, "input_length": 10, "output_length": 5, "priority": 0}\n'
            '{"timestamp": 1.25, "input_length": 20, "output_length": 6, "priority": -3}\n',
        ),
        (
            "serving.jsonl",
            '{"arrival_time_ns": 0, "input_toks": 10, "output_toks": 5, "priority": 0}\n'
            '{"arrival_time_ns": 9, "input_toks": 20, "output_toks": 6, "priority": -3}\n',
        ),
        ("serving.csv", "input_toks,output_toks,arrival_time_ns,priority\n10,5,0,0\n20,6,9,-3\n"),
    ],
)
def test_traces_may_have_them(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    conf = WorkloadConf(arrival="trace", lengths="trace", path=str(tmp_path / name))
    made = build_workload(conf, seed=0)
    assert made.priority is not None
    assert made.priority.tolist() == [0, -3]
    drawn = build_workload(dataclasses.replace(conf, priorities=[1.0]), seed=0)
    assert drawn.priority is not None
    assert drawn.priority.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("high", "line 2: wanted priority as an integer, got 'high'"),
        ("0.5", "wanted priority as an integer, got '0.5'"),
    ],
)
def test_bad_cells_name_the_line(tmp_path, cell, sentence):
    (tmp_path / "t.csv").write_text(f"arrival_s,input_tokens,output_tokens,priority\n0,10,5,{cell}\n")
    conf = WorkloadConf(arrival="trace", lengths="trace", path=str(tmp_path / "t.csv"))
    with pytest.raises(ValueError, match=sentence):
        build_workload(conf, seed=0)


@pytest.mark.parametrize("shares", [[0.0], [-1.0, 2.0], [float("nan")], [float("inf")]])
def test_bad_shares(shares):
    with pytest.raises(ValueError, match=r"workload\.priorities wants shares >= 0, some above 0, got"):
        build_workload(WorkloadConf(priorities=shares), seed=0)


def test_as_many_as_requests():
    one = np.ones(2, int)
    with pytest.raises(ValueError, match="one entry of priority per request: 2 requests, 1 entries"):
        Workload("test", one, one, one, priority=np.zeros(1, int))

"""How long clients wait for their requests: from the configuration and from a trace."""

import pytest

from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.trace import NEVER_ABORTS


TRACE = "arrival_s,input_tokens,output_tokens,abort_after_s\n0,10,5,2.5\n1,20,6,\n"


def conf(tmp_path, text, **more):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return WorkloadConf(path=str(path), arrival="trace", lengths="trace", **more)


def test_one_patience_for_all():
    made = build_workload(WorkloadConf(num_requests=3, abort_after_s=1.5), 0)
    without = build_workload(WorkloadConf(num_requests=3), 0)
    assert made.abort_after_ns.tolist() == [1_500_000_000] * 3
    assert without.abort_after_ns is None and without.digest != made.digest
    assert "clients give a request up 1.5 s after they sent it" in made.provenance


def test_a_trace_says_it_for_each_and_an_empty_cell_is_for_ever(tmp_path):
    assert build_workload(conf(tmp_path, TRACE), 0).abort_after_ns.tolist() == [2_500_000_000, NEVER_ABORTS]


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        (TRACE, {"abort_after_s": 1.0}, "leave out one of them"),
        (TRACE.replace("2.5", "0"), {}, "line 2: wanted abort_after_s as a number > 0"),
        (TRACE.replace("2.5", "soon"), {}, "line 2: wanted abort_after_s as a number > 0"),
        (TRACE.replace(",abort_after_s", ",x"), {"abort_after_s": 0.0}, "workload.abort_after_s wants a number > 0"),
    ],
)
def test_what_is_no_patience_is_refused(tmp_path, text, more, words):
    with pytest.raises(ValueError, match=words):
        build_workload(conf(tmp_path, text, **more), 0)

"""A server's log of its steps against a simulated run: hand-made lines and tables."""

import numpy as np
import pytest

from calibration.conformance.step_log import compare_logs, log_text, read_step_log


def line(step, *counts, rank=0):
    names = ("context requests", "context tokens", "generation requests", "generation tokens")
    said = ", ".join(f"{count} {name}" for count, name in zip(counts, names, strict=True))
    return (
        f"(EngineCore_DP{rank} pid=20) INFO 12-22 21:44:40 [core.py:349] Iteration({step}): {said}, iteration elapsed"
    )


def logged(tmp_path, *lines):
    path = tmp_path / "server.log"
    path.write_text("\n".join(["INFO 12-22 21:44:30 [core.py:1] started", *lines]) + " time: 1.00 ms\n")
    return read_step_log(path)


def simulated(rows, replica=0):
    """Rows of chunks, prefill tokens, decodes and victims."""
    columns = np.array(rows).reshape(-1, 4).T
    names = ("prefill_chunks", "prefill_tokens", "decode_requests", "preempted_requests")
    return {"replica": np.full(len(rows), replica)} | dict(zip(names, columns, strict=True))


RUN = [(2, 100, 0, 0), (1, 20, 1, 0), (0, 0, 3, 0)]
LOG = [line(7, 2, 100, 0, 0), line(8, 1, 20, 1, 1), line(9, 0, 0, 0, 0), line(10, 0, 0, 3, 3)]


def test_equal_steps_whatever_their_numbers_and_the_empty_ones(tmp_path):
    (found,) = compare_logs(logged(tmp_path, *LOG), simulated(RUN))
    assert (found.identical, found.logged, found.simulated, found.agree) == (True, 3, 3, 3)
    assert log_text([found]) == "engine core 0: identical in all 3 steps\n\nsteps 3/3 identical"


def test_the_first_step_that_differs(tmp_path):
    (found,) = compare_logs(logged(tmp_path, *LOG), simulated([RUN[0], (1, 21, 1, 0), RUN[2]]))
    assert (found.agree, found.equal, found.iteration, found.field) == (1, 2, 8, "context tokens")
    assert (found.recorded, found.predicted) == (20, 21)
    assert "identical in 1 steps, then Iteration(8): context tokens recorded 20, simulated 21" in log_text([found])


def test_one_run_is_shorter(tmp_path):
    (found,) = compare_logs(logged(tmp_path, *LOG), simulated(RUN[:2]))
    assert (found.identical, found.agree, found.iteration) == (False, 2, None)
    assert "the shorter ends; 3 steps logged, 2 simulated" in log_text([found])
    assert log_text([found]).endswith("steps 2/3 identical")
    (found,) = compare_logs(logged(tmp_path, *LOG[:2]), simulated(RUN))
    assert log_text([found]).endswith("steps 2/3 identical")


def test_after_a_preemption_only_sums_are_compared(tmp_path):
    """A resumed request of 50 tokens is generation in the log, prefill in the run; without a victim, a difference."""
    lines = [line(0, 1, 10, 0, 0), line(1, 0, 0, 2, 51)]
    (found,) = compare_logs(logged(tmp_path, *lines), simulated([(1, 10, 0, 1), (1, 50, 1, 0)]))
    assert found.identical
    (found,) = compare_logs(logged(tmp_path, *lines), simulated([(1, 10, 0, 0), (1, 50, 1, 0)]))
    assert (found.identical, found.field) == (False, "context requests")


def test_each_engine_core_has_its_replica(tmp_path):
    lines = [line(0, 1, 10, 0, 0), line(0, 1, 20, 0, 0, rank=1)]
    steps = {
        name: np.concatenate([column, simulated([(1, 20, 0, 0)], 1)[name]])
        for name, column in simulated([(1, 10, 0, 0)]).items()
    }
    assert [one.identical for one in compare_logs(logged(tmp_path, *lines), steps)] == [True, True]


def test_a_log_of_two_starts_or_of_none_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"server.log, line 3: iteration 7 comes after iteration 7; keep the log of one"
    ):
        logged(tmp_path, LOG[0], LOG[0])
    with pytest.raises(ValueError, match="no line of this log is an Iteration.* --enable-logging-iteration-details"):
        logged(tmp_path)


@pytest.mark.parametrize("digits", [16, 5000])
def test_a_number_no_step_has_is_refused(tmp_path, digits):
    with pytest.raises(ValueError, match=rf"server.log, line 3: no step has a number of {digits:,} digits"):
        logged(tmp_path, LOG[0], line(8, 1, "9" * digits, 0, 0))

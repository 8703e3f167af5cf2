"""Decisions and times of the compiled loop equal the oracle's, on drawn jobs that share one compilation."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.report.result import REJECTED
from sim.scan import LaneJob, Status, scan
from tests.scan.conftest import DRAWN, TABLES, draw_job, every_statistic_s, make_job, price_of
from tests.scan.oracle import simulate


SIDE_BY_SIDE = {"lanes": 8, "window": 64, "log_steps": True, "max_iterations": 100_000, "lengths_s": every_statistic_s}


@st.composite
def lane_jobs(draw) -> list[LaneJob]:
    """More jobs than lanes, so that lanes are refilled."""
    return [draw_job(draw, st.integers, st.sampled_from) for _ in range(12)]


def assert_equal_to_oracle(job: LaneJob, run) -> int:
    """Every statistic of every step, every time of every request; returns the preemptions."""
    requests, steps = simulate(job, price_of(job))
    if not steps:
        assert len(run.steps) == 0 and (run.requests.status == REJECTED).all()
        return 0
    for name in steps[0]:
        assert getattr(run.steps, name).tolist() == [step[name] for step in steps], name
    table = run.requests
    served = [request for request in requests if request.token_ns]
    assert np.flatnonzero(table.status != REJECTED).tolist() == [request.index for request in served]
    mine = table.status != REJECTED
    assert table.scheduled_ns[mine].tolist() == [request.scheduled_ns for request in served]
    assert table.first_token_ns[mine].tolist() == [request.token_ns[0] for request in served]
    assert table.finish_ns[mine].tolist() == [request.token_ns[-1] for request in served]
    assert table.output_tokens[mine].tolist() == [len(request.token_ns) for request in served]
    assert table.preemptions[mine].tolist() == [request.preemptions for request in served]
    gaps = np.concatenate([np.diff(request.token_ns) for request in served])
    assert np.array_equal(np.sort(np.repeat(run.itl_ns, run.itl_count)), np.sort(gaps))
    return run.preemptions


@given(lane_jobs())
@settings(max_examples=12, **DRAWN)
def test_drawn_jobs(jobs):
    found = scan(jobs, TABLES, **SIDE_BY_SIDE)
    assert (found.status == Status.OK).all()
    for job, run in zip(jobs, found.runs, strict=True):
        assert_equal_to_oracle(job, run)


def test_constant_preemption():
    """A cache for two or three of the requests, which all want to run: most are preempted, some several times."""
    rng = np.random.default_rng(1)
    jobs = [
        make_job(
            arrival_ns=np.zeros(40, np.int64),
            prompt_tokens=rng.integers(1, 30, 40),
            output_tokens=rng.integers(1, 60, 40),
            usable_blocks=-(-90 // block_size) * (1 + i % 3),
            block_size=block_size,
            max_num_seqs=16,
            reserve_full_input=bool(i % 2),
        )
        for i, block_size in enumerate([1, 2, 3, 4, 5, 7, 8, 11, 16])
    ]
    found = scan(jobs, TABLES, **SIDE_BY_SIDE)
    preemptions = [assert_equal_to_oracle(job, run) for job, run in zip(jobs, found.runs, strict=True)]
    assert preemptions == found.preemptions.tolist()
    assert sum(preemptions) > 300


def test_many_admissions_and_ends_in_one_step():
    """31 equal requests fit in one step and end with one step: the lane stays in them for many iterations."""
    count = 31
    same = make_job(
        arrival_ns=np.zeros(count, np.int64),
        prompt_tokens=np.full(count, 10),
        output_tokens=np.full(count, 5),
        max_num_seqs=32,
        max_num_batched_tokens=310,
    )
    run = scan([same], TABLES, **SIDE_BY_SIDE).runs[0]
    assert run.steps.prefill_chunks.tolist() == [31, 0, 0, 0, 0]
    assert run.steps.decodes.tolist() == [0, 31, 31, 31, 31]
    assert run.steps.decode_sum.tolist() == [0, *(31 * context for context in (11, 12, 13, 14))]
    assert_equal_to_oracle(same, run)


def test_more_results_without_the_step_log():
    """Without the table of steps, times, gaps and totals are the same."""
    jobs = [make_job(concurrency=2, table=i % 2) for i in range(9)]
    with_log = scan(jobs, TABLES, **SIDE_BY_SIDE)
    without = scan(jobs, TABLES, **(SIDE_BY_SIDE | {"log_steps": False}))
    for one, other in zip(with_log.runs, without.runs, strict=True):
        assert other.steps is None
        assert vars(one.requests).keys() == vars(other.requests).keys()
        for name, column in vars(one.requests).items():
            assert np.array_equal(column, getattr(other.requests, name)), name
        assert np.array_equal(one.itl_ns, other.itl_ns) and np.array_equal(one.itl_count, other.itl_count)
        assert (one.step_count, one.makespan_ns) == (other.step_count, other.makespan_ns)


@pytest.mark.parametrize("longest", [32_000, 40_000])
def test_long_contexts(longest):
    """Contexts about 2**15 need wider keys; the step after the re-basing of a window sees them, too."""
    long = make_job(
        prompt_tokens=np.array([longest, 5, longest - 40]),
        output_tokens=np.array([60, 50, 60]),
        max_model_len=longest + 100,
        usable_blocks=3 * longest // 16,
        max_num_batched_tokens=1000,
    )
    run = scan([long], TABLES, **SIDE_BY_SIDE).runs[0]
    assert_equal_to_oracle(long, run)
    assert run.steps.decode_max.max() == longest + 59

"""Steps numbered by equal times: by hand, in runs of our own engine, and in published runs of a real one."""

from collections.abc import Iterator

import numpy as np
import pytest

from calibration.step_evidence import depth_counts
from calibration.step_links import link_steps, replicas_of
from calibration.step_times import by_running, intervals
from sim.event.run import ExactRun, run_exact
from sim.report.measured import read_recorded
from sim.report.result import FINISHED, REJECTED, RequestTable
from sim.workload.trace import Workload
from tests.event.conftest import make_settings, make_table


MS = 1_000_000
BUDGET = 256


def table(rows, status=None) -> RequestTable:
    """Rows of (scheduled ms, first ms, last ms, prompt, outputs)."""
    scheduled, first, last, prompt, outputs = np.array(rows, dtype=np.int64).T
    zero = np.zeros(len(rows), np.int64)
    return RequestTable(
        scheduled * MS,
        scheduled * MS,
        scheduled * MS,
        first * MS,
        last * MS,
        prompt,
        outputs,
        zero,
        zero,
        zero,
        zero + FINISHED if status is None else np.array(status),
    )


def test_steps_by_hand():
    """Steps of 10 ms that end at 10, 20, ... The second request is scheduled at the output of step 2 (20 ms).

    Its first token comes at 40 ms: two steps later. Both end at 70 ms, after 7 - 1 and 4 - 1 steps.
    """
    requests = table([(0, 10, 70, 20, 7), (20, 40, 70, 20, 4)])
    links = link_steps(requests, 2, BUDGET)
    assert links.at_ns.tolist() == [10 * MS, 20 * MS, 40 * MS, 70 * MS]
    assert links.step.tolist() == [0, 1, 3, 6]
    assert (links.first.tolist(), links.last.tolist()) == ([0, 2], [3, 3])
    assert (links.differences, links.contradictions, links.order_violations, links.linked) == (3, 0, 0, 4)
    # one in flight: 20 ms is one step before 40 ms; nothing else knows of 20 ms
    assert link_steps(requests, 1, BUDGET).step.tolist() == [0, 2, 3, 6]


def test_a_contradiction_and_a_wrong_order():
    """A third request that begins where the first does fixes the number of the instant at 20 ms a second time."""
    known = [(0, 10, 70, 20, 7), (20, 40, 70, 20, 4), (0, 20, 70, 20, 6)]
    assert link_steps(table(known), 2, BUDGET).contradictions == 0
    wrong = link_steps(table(known), 1, BUDGET)
    assert wrong.contradictions == 1
    early = link_steps(table([(0, 10, 70, 20, 7), (0, 20, 70, 20, 9)]), 2, BUDGET)
    assert (early.contradictions, early.order_violations) == (0, 1)


def test_what_says_nothing_is_left_out():
    """Cut prompts, requests scheduled from idle, preempted and rejected ones."""
    cut = link_steps(table([(0, 10, 90, 20, 9), (20, 50, 90, 270, 5)]), 2, BUDGET)
    assert cut.single.tolist() == [True, False]
    assert cut.differences == 2
    together = link_steps(table([(0, 10, 90, 20, 9), (20, 40, 90, 40, 6), (20, 50, 90, 240, 5)]), 2, BUDGET)
    assert together.single.tolist() == [True, True, False]
    rejected = link_steps(table([(0, 10, 30, 20, 3), (5, 10, 40, 20, 9)], [FINISHED, REJECTED]), 2, BUDGET)
    assert (rejected.first.tolist(), rejected.differences) == ([0, -1], 1)
    preempted = table([(0, 10, 30, 20, 3)])
    preempted.preemptions[0] = 1
    assert link_steps(preempted, 2, BUDGET).differences == 0
    nobody = link_steps(table([(0, 10, 30, 20, 3)], [REJECTED]), 2, BUDGET)
    assert (nobody.differences, nobody.linked, nobody.steps) == (0, 0, 0)


def test_ranks_in_lockstep_share_their_steps():
    """The ranks of one engine stamp their tokens 50 us apart."""
    requests = table([(0, 10, 70, 20, 7), (0, 10, 70, 20, 7)])
    requests.first_token_ns[1] += 50_000
    requests.finish_ns[1] += 50_000
    assert link_steps(requests, 2, BUDGET).order_violations == 0
    assert len(link_steps(requests, 2, BUDGET).at_ns) == 4
    assert len(link_steps(requests, 2, BUDGET, same_ns=100_000).at_ns) == 2


def simulated(asynchronous: bool, seed: int, blocks: int = 200, replicas: int = 1) -> ExactRun:
    rng = np.random.default_rng(seed)
    count = 120
    workload = Workload(
        "test",
        np.cumsum(rng.exponential(10 * MS, count)).astype(np.int64),
        rng.integers(5, 100, count),
        rng.integers(10, 40, count),
    )
    settings = make_settings(async_scheduling=asynchronous, max_num_batched_tokens=BUDGET)
    price = make_table(base_s=2e-3, token_s=2e-5)
    return run_exact(workload, settings, price, num_gpu_blocks=blocks, replicas=replicas)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("blocks", [200, 24], ids=["roomy", "preempting"])
def test_our_own_engine_shows_its_depth(asynchronous, blocks):
    depth = 2 if asynchronous else 1
    runs = [simulated(asynchronous, seed, blocks).requests for seed in range(4)]
    assert (blocks == 24) == any(run.preemptions.any() for run in runs)
    for run in runs:
        found = link_steps(run, depth, BUDGET)
        assert (found.contradictions, found.order_violations) == (0, 0)
        assert found.linked > 20
    for other in {1, 2, 3} - {depth}:
        wrong = [link_steps(run, other, BUDGET) for run in runs]
        assert sum(links.contradictions for links in wrong) > 3
        assert sum(links.order_violations for links in wrong) > 10


def test_replicas_are_read_one_by_one():
    run = simulated(True, 0, replicas=2)
    both = list(replicas_of(run.requests))
    assert [len(one) for one in both] == [60, 60]
    (found,) = depth_counts(run.requests, [2], BUDGET)
    assert found.holds
    assert found.differences == sum(link_steps(one, 2, BUDGET).differences for one in both)
    assert not depth_counts(run.requests, [2], BUDGET, lockstep=True)[0].holds


def test_step_numbers_are_those_of_the_engine():
    """Linked steps against the step log: between two linked instants lie as many executed batches."""
    run = simulated(True, 1)
    links = link_steps(run.requests, 2, BUDGET)
    row = np.searchsorted(run.steps.end_ns, links.at_ns)
    assert (run.steps.end_ns[row] == links.at_ns).all()
    for component in range(links.component.max() + 1):
        mine = links.component == component
        assert (np.diff(row[mine]) == np.diff(links.step[mine])).all()


def test_intervals_hold_the_batches_that_ran():
    """Prices taken from the batches that we read out of the times give the times back."""
    run = simulated(True, 1)
    base_s, token_s, row_s = 2e-3, 2e-5, 1e-6  # those of `simulated`
    columns = {}

    def price(batches):
        columns.update(batches)
        tokens = batches["prefill_tokens"] + batches["decodes"]
        return base_s + token_s * tokens + row_s * batches["emitting"]

    links = link_steps(run.requests, 2, BUDGET)
    found = intervals(run.requests, links, run.requests.cached_tokens, price, lambda tokens, only_decodes: (tokens, 0))
    assert len(found) > 20
    assert (found.prefill_tokens > 0).any() and (found.prefill_tokens == 0).any()
    assert (abs(found.priced_s * 1e9 - found.measured_ns) < 2 * found.steps).all()
    assert columns["padded_tokens"].tolist() == (columns["prefill_tokens"] + columns["decodes"]).tolist()
    ends = dict(zip(run.steps.end_ns.tolist(), range(len(run.steps)), strict=True))
    last = np.cumsum(found.steps) - 1
    exact = 0
    for i, at in enumerate(last):
        step = ends[int(found.start_ns[i] + found.measured_ns[i])]
        assert run.steps.decodes[step] == columns["decodes"][at]
        assert run.steps.prefill_area[step] == columns["prefill_area"][at]
        off = abs(run.steps.decode_sum[step] - columns["decode_sum"][at])
        # exact but for requests of another component, whose progress is interpolated
        assert off <= 0.05 * run.steps.decode_sum[step]
        exact += off == 0 and run.steps.decode_sumsq[step] == columns["decode_sumsq"][at]
    assert exact > len(last) / 2
    rows = by_running(found)
    assert sum(row["steps"] for row in rows) == found.steps.sum()
    assert all(abs(row["error"]) < 1e-5 for row in rows)


@pytest.fixture
def bench(shared) -> Iterator:
    folder = shared / "data" / "llmservingsim" / "bench" / "RTXPRO6000"
    if not folder.is_dir():
        pytest.skip("no recorded runs")
    return folder


def test_a_real_engine_has_two_batches_in_flight(bench):
    requests = read_recorded(bench / "Llama-3.1-8B").requests
    one, two, three = depth_counts(requests, [1, 2, 3], 2048)
    assert two.holds
    assert (two.linked_instants, two.steps) == (364, 2378)
    for wrong in (one, three):
        assert wrong.contradictions >= 10
        assert wrong.order_violations > 50


def test_so_have_two_ranks_in_lockstep(bench):
    requests = read_recorded(bench / "Qwen3-30B-A3B-Instruct-2507").requests
    one, two, three = depth_counts(requests, [1, 2, 3], 2048, lockstep=True)
    assert two.holds
    assert one.order_violations >= 2
    assert three.order_violations >= 6

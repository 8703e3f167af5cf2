"""The exact engine: hand-worked runs, invariants on drawn workloads, determinism."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

import sim.event.pool as pool_module
import sim.scheduler.vllm as vllm
from sim.event.agenda import Agenda
from sim.event.batch_queue import BatchQueue
from sim.event.checks import check_conservation
from sim.event.client import Client
from sim.event.cluster import Cluster, Stuck
from sim.event.log import StepLog
from sim.event.pricer import Pricer
from sim.event.replica import Replica
from sim.event.run import run_exact
from sim.memory.shape import CacheShape, GroupShape
from sim.report.result import FINISHED, REJECTED
from sim.scheduler.base import Batch
from sim.scheduler.hooks import Drafting
from sim.scheduler.vllm import ContinuousBatching
from sim.workload.trace import Workload

from .conftest import make_settings, make_table, one_pool


MS = 1_000_000


def workload(arrivals_ms, prompts, outputs, **more) -> Workload:
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs), **more)


def constant(base_s):
    return make_table(base_s=base_s, token_s=0.0, row_s=0.0)


def test_one_request_by_hand():
    """Steps of 10 ms. Prompt 100 with budget 64: chunks 64 and 36; outputs 3: tokens at 20, 30 and 40 ms."""
    run = run_exact(workload([0], [100], [3]), make_settings(), constant(10e-3), num_gpu_blocks=100)
    r, s = run.requests, run.steps
    assert r.first_token_ns.tolist() == [20 * MS]
    assert r.finish_ns.tolist() == [40 * MS]
    assert s.prefill_tokens.tolist() == [64, 36, 0, 0]
    # attended pairs: 64 * 65 / 2; 36 * 64 + 36 * 37 / 2
    assert s.prefill_area.tolist() == [2080, 2970, 0, 0]
    assert s.decodes.tolist() == [0, 0, 1, 1]
    assert s.decode_sum.tolist() == [0, 0, 101, 102]
    assert run.itl_ns.tolist() == [10 * MS, 10 * MS]


def test_price_counts_tokens_and_rows():
    """10 ms + 1 ms per token + 5 ms per emitting row: prefill of 4 with its row 19 ms, one decode 16 ms."""
    table = make_table(base_s=10e-3, token_s=1e-3, row_s=5e-3)
    run = run_exact(workload([0], [4], [2]), make_settings(), table, num_gpu_blocks=100)
    assert (run.steps.end_ns - run.steps.start_ns).tolist() == [19 * MS, 16 * MS]


def test_arrival_waits_for_the_step_that_is_running():
    """Second request arrives at 5 ms, during the step [0, 10]: it is scheduled at 10 and has its token at 20 ms."""
    run = run_exact(workload([0, 5], [10, 10], [3, 1]), make_settings(), constant(10e-3), num_gpu_blocks=100)
    assert run.requests.scheduled_ns.tolist() == [0, 10 * MS]
    assert run.requests.first_token_ns.tolist() == [10 * MS, 20 * MS]


def test_async_arrival_waits_for_two_steps():
    """Two batches in flight: at 5 ms, batch 0 runs and batch 1 is issued; the arrival rides in batch 2 [20, 30].

    Its TTFT is the rest of batch 0 (5 ms), all of batch 1 (10 ms) and its own (10 ms).
    """
    settings = make_settings(async_scheduling=True)
    run = run_exact(workload([0, 5], [10, 10], [4, 1]), settings, constant(10e-3), num_gpu_blocks=100)
    assert run.requests.scheduled_ns.tolist() == [0, 10 * MS]
    assert run.requests.first_token_ns.tolist() == [10 * MS, 30 * MS]
    assert run.requests.finish_ns.tolist() == [40 * MS, 30 * MS]


def test_async_seat_is_refilled_two_batches_later():
    """One seat. The first request's last token is in batch 1 [10, 20]; batch 2 is empty, so the seat is taken at 20 ms.

    The call that scheduled the empty batch sleeps 1 ms first.
    """
    profile = dataclasses.replace(make_settings().profile, idle_sleep_s=1e-3)
    settings = make_settings(async_scheduling=True, max_num_seqs=1, profile=profile)
    run = run_exact(workload([0, 0], [10, 10], [2, 1]), settings, constant(10e-3), num_gpu_blocks=100)
    assert run.requests.finish_ns.tolist() == [20 * MS, 31 * MS]


def test_preemption_by_hand():
    """Block of 16, 3 usable. Two prompts of 16 take 1 block each; both decode and want a second one at once.

    One is free: the later request is preempted and starts again with its 16 + 1 tokens when the first has ended.
    """
    settings = make_settings()
    run = run_exact(workload([0, 0], [16, 16], [8, 8]), settings, constant(10e-3), num_gpu_blocks=4)
    assert run.requests.preemptions.tolist() == [0, 1]
    assert run.steps.preempted.tolist()[:3] == [0, 1, 0]
    assert run.requests.finish_ns[0] == 80 * MS
    # the victim recomputes 17 tokens in the step [80, 90] and emits tokens 2..8 from there
    assert run.requests.finish_ns[1] == 150 * MS
    assert run.steps.prefill_tokens.tolist()[8] == 17


def test_closed_loop_keeps_the_limit():
    """Concurrency 2: request 2 is sent when the first of the others ends."""
    w = workload([0, 0, 0], [10, 10, 10], [2, 4, 1], concurrency=2)
    run = run_exact(w, make_settings(), constant(10e-3), num_gpu_blocks=100)
    assert run.requests.arrival_ns.tolist() == [0, 0, 20 * MS]
    assert run.requests.first_token_ns.tolist()[2] == 30 * MS


def test_what_can_never_fit_is_rejected():
    """3 usable blocks hold 48 tokens: 40 + 10 - 1 = 49 does not fit, 40 + 9 - 1 does; 512 leave no room to emit."""
    w = workload([0, 0, 0], [40, 40, 512], [10, 9, 1])
    run = run_exact(w, make_settings(), constant(10e-3), num_gpu_blocks=4)
    assert run.requests.status.tolist() == [REJECTED, FINISHED, REJECTED]


def test_outputs_are_cut_at_the_models_length():
    run = run_exact(workload([0], [500], [100]), make_settings(), constant(1e-3), num_gpu_blocks=100)
    assert run.requests.output_tokens.tolist() == [12]


@pytest.mark.parametrize("router", ["round_robin", "least_outstanding", "random"])
def test_routers_serve_everybody(router):
    rng = np.random.default_rng(0)
    w = workload(np.sort(rng.integers(0, 200, 60)), rng.integers(1, 100, 60), rng.integers(1, 30, 60))
    run = run_exact(w, make_settings(), constant(3e-3), num_gpu_blocks=50, replicas=3, router=router, seed=1)
    assert (run.requests.status == FINISHED).all()
    assert set(run.requests.replica.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_scheduler_that_decides_nothing_is_stopped(asynchronous):
    settings = make_settings(async_scheduling=asynchronous)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContinuousBatching, "_admit", lambda self, batch, budget: None)
        with pytest.raises(Stuck, match="empty batches in a row, .* with 1 requests unfinished"):
            run_exact(workload([0], [1], [1]), settings, constant(1e-3), num_gpu_blocks=9)


def test_host_time_is_hidden_behind_a_longer_step():
    """Host 4 ms, scheduled ahead: steps of 10 ms follow each other; steps of 1 ms come every 4 ms.

    From idle the first batch starts after 4 ms, the second is ready at 8 ms.
    """
    profile = dataclasses.replace(make_settings().profile, host_step_s=4e-3)
    settings = make_settings(async_scheduling=True, profile=profile)
    long = run_exact(workload([0], [10], [4]), settings, constant(10e-3), num_gpu_blocks=100)
    assert long.steps.end_ns.tolist() == [14 * MS, 24 * MS, 34 * MS, 44 * MS]
    short = run_exact(workload([0], [10], [4]), settings, constant(1e-3), num_gpu_blocks=100)
    assert short.steps.start_ns.tolist() == [4 * MS, 8 * MS, 12 * MS, 16 * MS]


def test_arrivals_late_on_the_clock():
    """Arrivals nine years apart: times are exact integers all the way."""
    late = 9 * 365 * 86_400 * 1000
    run = run_exact(workload([0, late], [10, 10], [1, 1]), make_settings(), constant(10e-3), num_gpu_blocks=100)
    assert run.requests.finish_ns.tolist() == [10 * MS, (late + 10) * MS]


def test_unknown_router_is_named():
    with pytest.raises(
        ValueError, match="deployment.router: wanted one of kv_aware, .*round_robin.*, or ./my_router.py, got 'fastest'"
    ):
        run_exact(workload([0], [1], [1]), make_settings(), constant(1e-3), num_gpu_blocks=9, router="fastest")


def test_prefix_is_found_again():
    """Second prompt repeats the first one's 40 tokens: 2 full blocks of 16 are found, 8 tokens are computed."""
    ids = (np.arange(40), np.arange(40))
    w = workload([0, 50], [40, 40], [2, 2], token_ids=ids)
    on = run_exact(w, make_settings(prefix_caching=True), constant(10e-3), num_gpu_blocks=100)
    off = run_exact(w, make_settings(prefix_caching=False), constant(10e-3), num_gpu_blocks=100)
    assert on.requests.cached_tokens.tolist() == [0, 32]
    assert off.requests.cached_tokens.tolist() == [0, 0]
    assert on.steps.prefill_tokens.sum() == 40 + 8


@pytest.mark.parametrize("rows", [False, True])
def test_a_pool_too_small_for_one_request_is_stuck(rows):
    """The engine admits it in chunks, runs out of blocks, preempts it and starts again: for ever, with a sentence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "Entrance", lambda *_: lambda prompt, outputs: outputs)
        if rows:
            patch.setattr(vllm, "takes_fast_path", lambda *_: False)
        settings = make_settings(max_num_batched_tokens=16)
        with pytest.raises(
            Stuck, match="preempted 10,001 times without a token .* its 3 KV blocks are too few for one"
        ):
            run_exact(workload([0], [60], [4]), settings, constant(1e-3), num_gpu_blocks=4)
        with pytest.raises(Stuck, match="empty batches in a row, .* with 3 of 3 KV blocks free it may wait for blocks"):
            run_exact(workload([0], [40], [20]), make_settings(), constant(1e-3), num_gpu_blocks=4)


drawn = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150), st.integers(1, 60)), min_size=1, max_size=30)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    rows=drawn,
    blocks=st.integers(6, 40),
    seats=st.integers(1, 8),
    asynchronous=st.booleans(),
    reserve=st.booleans(),
    concurrency=st.one_of(st.none(), st.integers(1, 5)),
    replicas=st.integers(1, 3),
)
def test_drawn_workloads_conserve(rows, blocks, seats, asynchronous, reserve, concurrency, replicas):
    """Under pressure of every kind: all end, tokens and blocks are conserved (checked inside), runs repeat exactly."""
    rows = sorted(rows)
    w = workload(*map(list, zip(*rows, strict=True)), concurrency=concurrency)
    settings = make_settings(async_scheduling=asynchronous, reserve_full_input=reserve, max_num_seqs=seats)
    table = make_table()
    run = run_exact(w, settings, table, num_gpu_blocks=blocks, replicas=replicas)
    again = run_exact(w, settings, table, num_gpu_blocks=blocks, replicas=replicas)
    for field in dataclasses.fields(run.requests):
        assert np.array_equal(getattr(run.requests, field.name), getattr(again.requests, field.name))
    done = run.requests.status == FINISHED
    assert run.itl_count.sum() == (run.requests.output_tokens[done] - 1).sum()
    # all gaps of a request telescope to the time between its first and last token
    spans = (run.requests.finish_ns - run.requests.first_token_ns)[done].sum()
    assert (run.itl_ns * run.itl_count).sum() == spans
    assert run.steps.running.max(initial=0) <= seats


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    rows=drawn,
    blocks=st.integers(8, 40),
    asynchronous=st.booleans(),
    content=st.booleans(),
    concurrency=st.one_of(st.none(), st.integers(1, 5)),
    replicas=st.integers(1, 2),
)
def test_repeated_steps_change_nothing(rows, blocks, asynchronous, content, concurrency, replicas):
    """Steps that only repeat the last batch are made without `schedule`; made with it, the run is the same."""
    columns = list(map(list, zip(*sorted(rows), strict=True)))
    ids = tuple(np.arange(p) for p in columns[1]) if content else None
    w = workload(*columns, token_ids=ids, concurrency=concurrency)
    settings = make_settings(async_scheduling=asynchronous, prefix_caching=content, max_num_seqs=5)
    fast = run_exact(w, settings, make_table(), num_gpu_blocks=blocks, replicas=replicas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContinuousBatching, "repeat", lambda self, batch: False)
        slow = run_exact(w, settings, make_table(), num_gpu_blocks=blocks, replicas=replicas)
    for name in ("requests", "steps"):
        for field in dataclasses.fields(getattr(fast, name)):
            assert np.array_equal(getattr(getattr(fast, name), field.name), getattr(getattr(slow, name), field.name))


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    rows=drawn,
    blocks=st.integers(11, 40),
    asynchronous=st.booleans(),
    reserve=st.booleans(),
    concurrency=st.one_of(st.none(), st.integers(1, 5)),
    host_s=st.sampled_from([0.0, 1.5e-3]),
)
def test_row_by_row_takes_the_same_time(rows, blocks, asynchronous, reserve, concurrency, host_s):
    """The scheduler that decides row by row gives the same run as the fast path: times, steps and inter-token gaps."""
    w = workload(*map(list, zip(*sorted(rows), strict=True)), concurrency=concurrency)
    profile = dataclasses.replace(make_settings().profile, host_step_s=host_s)
    settings = make_settings(async_scheduling=asynchronous, reserve_full_input=reserve, max_num_seqs=5, profile=profile)
    fast = run_exact(w, settings, make_table(), num_gpu_blocks=blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm, "takes_fast_path", lambda *_: False)
        slow = run_exact(w, settings, make_table(), num_gpu_blocks=blocks)
    for name in ("requests", "steps"):
        for field in dataclasses.fields(getattr(fast, name)):
            mine, other = (getattr(getattr(run, name), field.name) for run in (fast, slow))
            assert np.array_equal(mine, other), field.name
    assert gaps(fast) == gaps(slow)


def gaps(run) -> dict[int, int]:
    """How often each inter-token latency occurred."""
    values, inverse = np.unique(run.itl_ns, return_inverse=True)
    return dict(zip(values.tolist(), np.bincount(inverse, run.itl_count).tolist(), strict=True))


@hypothesis_settings(max_examples=40, deadline=None)
@given(rows=drawn, blocks=st.integers(8, 40), asynchronous=st.booleans(), reserve=st.booleans())
def test_counted_and_named_blocks_decide_alike(rows, blocks, asynchronous, reserve):
    """With content that never repeats, blocks with identity and counted blocks give the same run."""
    rows = sorted(rows)
    columns = list(map(list, zip(*rows, strict=True)))
    ids = tuple(np.arange(p) + 10_000 * i for i, p in enumerate(columns[1]))
    settings = make_settings(async_scheduling=asynchronous, reserve_full_input=reserve, max_num_seqs=5)
    counted = run_exact(workload(*columns), settings, make_table(), num_gpu_blocks=blocks)
    named = run_exact(
        workload(*columns, token_ids=ids),
        dataclasses.replace(settings, prefix_caching=True),
        make_table(),
        num_gpu_blocks=blocks,
    )
    if counted.requests.preemptions.sum() == 0:  # a preempted request finds its own blocks again
        assert np.array_equal(counted.requests.finish_ns, named.requests.finish_ns)
        assert np.array_equal(counted.steps.free_blocks, named.steps.free_blocks)
    assert (named.requests.status == counted.requests.status).all()


def test_littles_law():
    """L = lambda W for the running set: the step log's running x duration sums to the requests' stays in running.

    Without preemption a request runs from the step that admits it to the end of the step that finishes it.
    """
    rng = np.random.default_rng(3)
    n = 300
    w = workload(np.cumsum(rng.integers(1, 20, n)), rng.integers(1, 120, n), rng.integers(1, 40, n))
    run = run_exact(w, make_settings(), make_table(), num_gpu_blocks=200)
    r, s = run.requests, run.steps
    assert s.preempted.sum() == 0
    assert (s.running * (s.end_ns - s.start_ns)).sum() == (r.finish_ns - r.scheduled_ns).sum()


def test_windows_give_blocks_back():
    """Prompt 200 in chunks of 64, window 32, block 16: one table of all tokens, one of what the window reaches."""
    full, sliding = GroupShape("full", 16), GroupShape("swa", 16, 32)
    w = workload([0], [200], [60])
    alone = run_exact(w, make_settings(), constant(1e-3), num_gpu_blocks=100, groups=(full,))
    both = run_exact(w, make_settings(), constant(1e-3), num_gpu_blocks=100, groups=(full, sliding))
    assert np.array_equal(alone.requests.finish_ns, both.requests.finish_ns)
    extra = alone.steps.free_blocks - both.steps.free_blocks
    assert extra[0] == 4  # the first chunk: 64 tokens
    # a row that computes token t (from 0) reads t - 31 ... t: 2 or 3 blocks, and blocks behind are given back
    assert set(extra[5:].tolist()) <= {2, 3}


def test_the_urgent_are_served_first():
    """One seat: of two that wait, the later but more urgent one goes first under the policy `priority`."""
    w = workload([0, 1, 2], [10, 10, 10], [2, 2, 2], priority=np.array([0, 5, -1]))
    by_arrival = run_exact(w, make_settings(max_num_seqs=1), constant(10e-3), num_gpu_blocks=99)
    urgent = run_exact(
        w, make_settings(max_num_seqs=1, scheduling_policy="priority"), constant(10e-3), num_gpu_blocks=99
    )
    assert (by_arrival.requests.finish_ns // MS).tolist() == [20, 40, 60]
    assert (urgent.requests.finish_ns // MS).tolist() == [20, 60, 40]


def test_the_shape_of_a_batch_may_be_told():
    """A hook that pads every batch to 32 tokens, eager: 1 ms per token."""
    table = make_table(base_s=0.0, token_s=1e-3, row_s=0.0)
    batch = Batch()
    batch.add_decode(100)
    batch.emitting = 1
    assert Pricer(table, make_settings())(batch) == (1 * MS, 1, 0)
    assert Pricer(table, make_settings(), lambda _: (32, 0))(batch) == (32 * MS, 32, 0)


def test_rows_that_sample_nothing_cost_no_row():
    """Two decodes of which one emits: 10 ms + 1 ms per token + 5 ms per emitting row."""
    table = make_table(base_s=10e-3, token_s=1e-3, row_s=5e-3)
    batch = Batch()
    batch.add_decode(100)
    batch.add_decode(50)
    batch.emitting = 1
    assert Pricer(table, make_settings())(batch)[0] == 17 * MS


class EveryOtherDraft:
    """Two drafts after every row, of which one and two are accepted in turn; no ends that lengths do not foresee."""

    foreseen = True

    def __init__(self):
        self.asked = 0

    def drafts(self, request, known_tokens, emitted):
        return 2

    def accepted(self, request, drafts):
        self.asked += 1
        return min(drafts, 1 + self.asked % 2)

    def stops(self, request, emitted):
        return False


@pytest.mark.parametrize("asynchronous", [False, True])
def test_rows_of_several_tokens_are_accounted(asynchronous):
    """Tokens beyond one per row arrive with it: gaps of 0 ms, and the sum over a request is its last less its first."""
    w = workload([0, 3, 50], [10, 20, 30], [9, 12, 1])
    settings = make_settings(async_scheduling=asynchronous)
    cache = CacheShape(99, False, (GroupShape("full", 16),))
    scheduler = vllm.make_rows(settings, cache, progress=EveryOtherDraft(), drafting=Drafting(2, lookahead=False))
    client, log = Client(w), StepLog()
    queue = BatchQueue(scheduler, settings.batches_in_flight)
    replica = Replica(0, queue, Pricer(constant(10e-3), settings), client, log)
    Cluster(Agenda(), client, [replica], one_pool(client, [replica])).run()
    requests, steps = client.table(), log.table()
    checks = check_conservation(
        requests, steps, [scheduler], unseen_tokens=replica.dropped_rows, accepted_tokens=replica.accepted_tokens
    )
    assert all(checks.values())
    assert replica.accepted_tokens > 0
    assert client.itl[0] == replica.accepted_tokens
    assert sum(client.itl.values()) == 8 + 11
    spans = (requests.finish_ns - requests.first_token_ns).sum()
    assert sum(gap * count for gap, count in client.itl.items()) == spans

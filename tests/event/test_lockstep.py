"""Data-parallel ranks in lockstep: timings by hand, padding, who gets a request, invariants on drawn workloads."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.cost.lengths import LengthTerms
from sim.cost.lockstep import LockstepPrices
from sim.deployment.engine import EngineProfile
from sim.deployment.plan import MOST
from sim.deployment.rules import ParallelRules
from sim.event.agenda import Agenda
from sim.event.balance import Queues
from sim.event.batch_queue import BatchQueue
from sim.event.client import Client
from sim.event.cluster import Cluster, Stuck, check_progress
from sim.event.lockstep import LockstepGroup, LockstepPricer, LockstepRank
from sim.event.log import StepLog
from sim.event.run import ExactRun, run_exact
from sim.memory.shape import CacheShape, GroupShape
from sim.report.result import FINISHED
from sim.scheduler.base import Batch
from sim.scheduler.find import make_scheduler
from sim.workload.trace import Workload

from .conftest import make_settings, make_table, one_pool
from .pressure import draw, mode_names


MS = 1_000_000
TOKENS = 1024


def prices(
    own_s=1e-3, own_token_s=1e-5, shared_token_s=2e-5, moved_token_s=0.0, row_s=0.0, launch_s=0.0, gap_s=0.0, host_s=0.0
):
    """A rank's own part is `own + t own_token`, the shared one `t (shared_token + moved_token)`, whatever lengths."""
    return LockstepPrices(
        own_s=own_s + own_token_s * np.arange(TOKENS + 1),
        experts_s=shared_token_s * np.arange(8 * TOKENS + 1),
        exchange_s=moved_token_s * np.arange(8 * TOKENS + 1),
        row_s=row_s * np.arange(129),
        lengths=LengthTerms(),
        launch_s=np.full(3, launch_s),
        gap_s=np.full(3, gap_s),
        host_s=host_s,
    )


def workload(arrivals_ms, prompts, outputs) -> Workload:
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs))


def ranks(work, settings=None, table=None, data_parallel=2, blocks=100, **more) -> ExactRun:
    return run_exact(
        work,
        settings or make_settings(),
        table or prices(),
        num_gpu_blocks=blocks,
        data_parallel=data_parallel,
        **more,
    )


def steps_of(run: ExactRun, rank: int) -> list[tuple[float, float, int, int]]:
    """Start and end in ms, tokens and padded tokens of each step of a rank."""
    s = run.steps
    mine = s.replica == rank
    tokens = s.prefill_tokens + s.decodes
    columns = (s.start_ns[mine] / MS, s.end_ns[mine] / MS, tokens[mine], s.padded_tokens[mine])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_two_ranks_by_hand():
    """Prompts of 10 and 30 tokens on a rank each: 1 ms + 30 x 10 us of the longer, 40 x 20 us together: 2.1 ms.

    Then a decode each: 1.01 ms and 2 x 20 us.
    """
    run = ranks(workload([0, 0], [10, 30], [2, 2]))
    assert run.requests.replica.tolist() == [0, 1]
    assert steps_of(run, 0) == [(0.0, 2.1, 10, 10), (2.1, 3.15, 1, 1)]
    assert steps_of(run, 1) == [(0.0, 2.1, 30, 30), (2.1, 3.15, 1, 1)]
    assert run.requests.first_token_ns.tolist() == [2_100_000] * 2
    assert run.requests.finish_ns.tolist() == [3_150_000] * 2
    assert (run.itl_ns.tolist(), run.itl_count.tolist()) == ([1_050_000] * 2, [1, 1])


def test_where_each_sends_its_own_the_rank_with_most_tokens_is_waited_for():
    """Own parts of 1 ms + 20 x 10 us, experts of 20 us a token, an exchange of 5 us, at last 1 us in prefills."""
    work = workload([0, 0], [10, 20], [1, 1])
    gathered = prices(moved_token_s=5e-6)
    own_ms, experts_ms = 1.2, 30 * 0.02
    assert steps_of(ranks(work, table=gathered), 0)[0][1] == pytest.approx(own_ms + experts_ms + 2 * 20 * 0.005)
    work = workload([0, 0, 0], [10, 20, 6], [1, 1, 1])
    apart = ranks(work, table=gathered, data_parallel=3)
    # 36 - 6 tokens gathered of 3 ranks, as of 45 evenly spread; 3 x 20 where each sends its own
    assert steps_of(apart, 0)[0][1] == pytest.approx(own_ms + 36 * 0.02 + 45 * 0.005)
    sent = gathered._replace(decides=MOST)
    assert steps_of(ranks(work, table=sent, data_parallel=3), 0)[0][1] == pytest.approx(
        own_ms + 36 * 0.02 + 3 * 20 * 0.005
    )
    other = sent._replace(prefill_exchange_s=1e-6 * np.arange(8 * TOKENS + 1))
    run = ranks(workload([0, 0, 0], [10, 20, 6], [2, 2, 2]), table=other, data_parallel=3)
    first, second = steps_of(run, 0)
    assert first[1] == pytest.approx(own_ms + 36 * 0.02 + 3 * 20 * 0.001)
    assert second[1] - second[0] == pytest.approx(1.01 + 3 * 0.02 + 3 * 0.005)


def test_the_slowest_own_part_and_the_most_rows_count_once():
    """Rank 0 prefills 40 of 100 tokens and emits nothing, rank 1 decodes: 1.4 ms own, 41 x 20 us, one row of 3 ms."""
    settings = make_settings(max_num_batched_tokens=40)
    run = ranks(workload([0, 1], [100, 8], [1, 3]), settings, prices(row_s=3e-3))
    both = [end for _, end, *_ in steps_of(run, 0)], [end for _, end, *_ in steps_of(run, 1)]
    # chunk 40 and a dummy: 1.4 + 0.82; chunk 40 and a dummy, as rank 1 was ready for it; chunk 20 and prompt 8:
    # 1.2 + 0.56 + 3; two decodes of rank 1 and dummies: 1.01 + 0.04 + 3 each
    wanted = np.cumsum([2.22, 2.22, 4.76, 4.05, 4.05])
    assert both[0] == both[1] == pytest.approx(wanted)


def test_an_idle_rank_runs_dummy_batches_and_is_ready_a_step_early():
    """Rank 1 has nothing: one token, none of it real. What comes to it at 1 ms, in the step to 1.32 ms, finds it ready
    for the next step, to 2.37 ms, and starts with the one after; a busy rank starts its arrival a step sooner.
    """
    run = ranks(workload([0, 1], [10, 10], [4, 1]))
    assert run.requests.replica.tolist() == [0, 1]
    first, second = 1.1 + 11 * 0.02, 1.01 + 2 * 0.02
    assert [row[2:] for row in steps_of(run, 1)] == [(0, 1), (0, 1), (10, 10), (0, 1)]
    assert run.requests.scheduled_ns[1] == pytest.approx(first * MS)
    third = 1.1 + 11 * 0.02
    assert run.requests.first_token_ns[1] == pytest.approx((first + second + third) * MS)
    busy = ranks(workload([0, 0, 1], [10, 10, 10], [4, 4, 1]))
    assert busy.requests.replica.tolist() == [0, 1, 0]
    assert steps_of(busy, 0)[1][2] == 11


def test_two_batches_in_flight():
    """As one replica alone: at 1 ms batches 0 and 1 are out, so the arrival at a busy rank rides in batch 2."""
    settings = make_settings(async_scheduling=True)
    run = ranks(workload([0, 0, 1], [10, 10, 5], [4, 4, 1]), settings)
    ends = np.cumsum([1.1 + 0.4, 1.01 + 0.04, 1.06 + 7 * 0.02, 1.01 + 0.04])
    assert [end for _, end, *_ in steps_of(run, 0)] == pytest.approx(ends)
    assert run.requests.scheduled_ns[2] == pytest.approx(ends[0] * MS)
    assert run.requests.first_token_ns[2] == pytest.approx(ends[2] * MS)


@pytest.mark.parametrize(("sizes", "moved"), [((10, 10), 20), ((30, 10), 60), ((10, 30, 20), 75), ((7, 7, 7), 21)])
def test_the_rank_with_the_fewest_tokens_gets_the_most(sizes, moved):
    """It gets 30 of 40 tokens, as each of two ranks does of 60; 50 of 60, as each of three ranks does of 75."""
    count = len(sizes)
    run = ranks(workload([0] * count, sizes, [1] * count), data_parallel=count, table=prices(moved_token_s=1e-4))
    wanted = 1.0 + 0.01 * max(sizes) + 0.02 * sum(sizes) + 0.1 * moved
    assert steps_of(run, 0)[0][1] == pytest.approx(wanted)


def test_launches_hide_behind_own_and_shared_part():
    """10 tokens each: own 1.1 ms, shared 0.4 ms; submitting takes 2 ms, so 0.5 ms show; gap 0.1, host 0.2 ms."""
    run = ranks(workload([0, 0], [10, 10], [1, 1]), table=prices(launch_s=2e-3, gap_s=1e-4, host_s=2e-4))
    assert steps_of(run, 0) == [(0.0, pytest.approx(2.3), 10, 10)]


def test_the_group_rests_and_wakes():
    """Nothing runs between 1.34 ms and the arrival at 50 ms, on neither rank."""
    run = ranks(workload([0, 50], [10, 10], [1, 1]))
    assert [row[0] for row in steps_of(run, 0)] == [row[0] for row in steps_of(run, 1)] == [0.0, 50.0]
    assert run.requests.first_token_ns.tolist() == [1_320_000, 51_320_000]


def batch(prefill: int = 0, decodes: int = 0) -> Batch:
    made: Batch = Batch()
    if prefill:
        made.add_chunk(0, prefill)
    for _ in range(decodes):
        made.add_decode(5)
    made.emitting = decodes
    return made


@pytest.mark.parametrize(
    ("batches", "late", "always"),
    [
        ([batch(decodes=3), batch(decodes=7)], ([8, 8], 2), ([8, 8], 2)),
        ([batch(decodes=3), None], ([4, 4], 2), ([4, 4], 2)),
        # a prefill runs in a piecewise graph, and so do the others
        ([batch(prefill=12), batch(decodes=2)], ([16, 16], 1), ([16, 16], 1)),
        # above the captured sizes: eager, each with its own tokens, or all with the most
        ([batch(prefill=40), batch(decodes=7)], ([40, 7], 0), ([40, 40], 0)),
        ([batch(prefill=40), None], ([40, 1], 0), ([40, 40], 0)),
    ],
)
def test_ranks_are_padded_alike(batches, late, always):
    settings = make_settings(graph_mode="FULL_AND_PIECEWISE", graph_sizes=(1, 2, 4, 8, 16))
    assert LockstepPricer(prices(), settings).padded(batches) == late
    old = replace(settings, profile=EngineProfile(parallel=ParallelRules(pads_eager=True)))
    assert LockstepPricer(prices(), old).padded(batches) == always
    eager = replace(old, graph_mode="NONE", graph_sizes=())
    tokens = [1 if one is None else one.tokens for one in batches]
    assert LockstepPricer(prices(), eager).padded(batches) == (tokens, 0)


def test_one_rank_alone_is_a_replica():
    """Steps and requests of a group of one are those of a replica of the same prices (sums of powers of two: exact)."""
    rng = np.random.default_rng(3)
    work = Workload("one", np.cumsum(rng.integers(0, 9, 40)) * MS, rng.integers(1, 200, 40), rng.integers(1, 20, 40))
    for depth in (False, True):
        settings = make_settings(async_scheduling=depth)
        whole = make_table(base_s=2.0**-9, token_s=2.0**-16 + 2.0**-15, row_s=2.0**-18)
        plain = run_exact(work, settings, whole, num_gpu_blocks=60)
        split = prices(2.0**-9, 2.0**-16, 2.0**-15, row_s=2.0**-18)
        group = ranks(work, settings, split, data_parallel=1, blocks=60)
        for name in plain.requests.__dataclass_fields__:
            assert np.array_equal(getattr(plain.requests, name), getattr(group.requests, name)), name
        for name in plain.steps.__dataclass_fields__:
            assert getattr(plain.steps, name).tolist() == getattr(group.steps, name).tolist(), name
        assert dict(zip(plain.itl_ns, plain.itl_count, strict=True)) == dict(
            zip(group.itl_ns, group.itl_count, strict=True)
        )


@given(seed=st.integers(0, 10_000), data_parallel=st.integers(1, 4), depth=st.booleans(), replicas=st.integers(1, 2))
@hypothesis_settings(max_examples=25, deadline=None)
def test_nothing_is_lost_under_pressure(seed, data_parallel, depth, replicas):
    """Few blocks and seats: conservation is checked in the run; every step is run by all ranks of its group."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    arrivals = np.cumsum(rng.integers(0, int(rng.integers(1, 40)), count)) * MS // 4
    work = Workload("drawn", arrivals, rng.integers(1, 90, count), rng.integers(1, 60, count))
    settings = make_settings(async_scheduling=depth, max_num_seqs=4, max_num_batched_tokens=32)
    table = prices(row_s=1e-5)
    first, second = (
        ranks(work, settings, table, data_parallel, blocks=12, replicas=replicas, router="least_outstanding")
        for _ in range(2)
    )
    assert all(first.checks.values())
    assert (first.requests.status == FINISHED).all()
    s = first.steps
    assert set(s.replica.tolist()) <= set(range(replicas * data_parallel))
    for group in range(replicas):
        mine = s.replica // data_parallel == group
        _, ran = np.unique(s.start_ns[mine], return_counts=True)
        assert set(ran.tolist()) <= {data_parallel}
    tokens = s.prefill_tokens + s.decodes
    assert (s.padded_tokens >= np.maximum(tokens, 1)).all()
    assert first.steps.end_ns.tolist() == second.steps.end_ns.tolist()
    assert first.requests.finish_ns.tolist() == second.requests.finish_ns.tolist()


def test_ranks_without_experts_run_for_themselves():
    """Two ranks of a dense model are two replicas; the front end, which hears nothing of them, sends in turn."""
    work = workload([0, 0, 3, 4], [30, 5, 10, 20], [9, 3, 5, 4])
    table = make_table(base_s=1e-3, token_s=1e-5)
    free = run_exact(work, make_settings(), table, num_gpu_blocks=50, data_parallel=2)
    apart = run_exact(work, make_settings(), table, num_gpu_blocks=50, replicas=2, router="round_robin")
    assert free.requests.replica.tolist() == [0, 1, 0, 1]
    assert free.requests.finish_ns.tolist() == apart.requests.finish_ns.tolist()
    assert free.steps.end_ns.tolist() == apart.steps.end_ns.tolist()


def test_queues_are_known_late():
    """4 x waiting + running. Reports at 5 and 30 ms: the first is published at once, the next not before 105 ms."""
    known = Queues(2, 100 * MS)
    # scores 0, 0: rank 0, which then has 4; rank 1; 4, 4: rank 0 again
    assert [known.pick(0) for _ in range(3)] == [0, 1, 0]
    known.report(5 * MS, 0, 0, 2)
    known.report(5 * MS, 1, 0, 1)
    # published: 2 and 1, so rank 1 (then 5), rank 0 (then 6), rank 1
    assert [known.pick(6 * MS) for _ in range(3)] == [1, 0, 1]
    known.report(30 * MS, 0, 0, 0)
    known.report(40 * MS, 1, 3, 1)
    # still 6 and 9 as counted: rank 0 (then 10), rank 1
    assert [known.pick(50 * MS), known.pick(104 * MS)] == [0, 1]
    # published: 0 and 13
    assert [known.pick(105 * MS) for _ in range(4)] == [0, 0, 0, 0]
    assert known.pick(105 * MS) == 1


def test_balancing_rules():
    work = workload([0, 0, 0, 40], [60, 5, 5, 5], [40, 1, 1, 1])
    for rule, wanted in (("round_robin", [0, 1, 0, 1]), ("least_outstanding", [0, 1, 0, 1])):
        settings = make_settings(profile=EngineProfile(parallel=ParallelRules(balance=rule)))
        assert ranks(work, settings).requests.replica.tolist() == wanted
    # at 40 ms only the long request of rank 0 is left, so rank 1 is the first with none
    three = make_settings(profile=EngineProfile(parallel=ParallelRules(balance="least_outstanding")))
    assert ranks(work, three, data_parallel=3).requests.replica.tolist() == [0, 1, 2, 1]
    turn = make_settings(profile=EngineProfile(parallel=ParallelRules(balance="round_robin")))
    assert ranks(work, turn, data_parallel=3).requests.replica.tolist() == [0, 1, 2, 0]


def test_a_rank_that_gets_nowhere_is_told():
    """Its scheduler takes a request and decides nothing for it: the other rank's dummy batches do not hide that."""

    log, client = StepLog(), Client(workload([0], [5], [2]))
    group = LockstepGroup(LockstepPricer(prices(), make_settings()), check_progress)
    cache = CacheShape(50, False, (GroupShape("full", 16),))
    schedulers = [make_scheduler("vllm", make_settings(), cache) for _ in range(2)]
    schedulers[0].schedule = Batch
    made = [LockstepRank(i, BatchQueue(one), client, log, group=group) for i, one in enumerate(schedulers)]
    with pytest.raises(Stuck, match="scheduler of replica 0 decided 10001 empty batches in a row"):
        Cluster(Agenda(), client, made, one_pool(client, made)).run()


@pytest.mark.parametrize("mode", [mode for mode in mode_names() if "/pp" not in mode])
def test_every_scheduler_in_lockstep(mode):
    """Conservation is checked in the run; each token but the first of a request follows another."""
    case = draw(mode, 1)
    run = ranks(
        case.workload,
        case.settings,
        prices(row_s=1e-5),
        blocks=case.blocks + 1,
        groups=case.groups,
        replicas=case.replicas,
        scheduler=case.scheduler,
    )
    done = run.requests.status == FINISHED
    assert done.tolist() == [tokens is not None for tokens in case.servable()]
    assert run.itl_count.sum() == (run.requests.output_tokens[done] - 1).sum()

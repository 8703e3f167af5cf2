"""Policies beside vLLM's and SGLang's: each by hand, conservation under memory pressure, and against each other."""

import dataclasses
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.event.run import run_exact
from sim.memory.shape import CacheShape, GroupShape
from sim.report.result import FINISHED
from sim.scheduler.find import find_scheduler, make_scheduler
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.trtllm.gate import PromptGate
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import Workload
from tests.event.conftest import make_settings, make_table


POLICIES = {
    "orca": ("orca", {}),
    "orca, pow2": ("orca", {"scheduler_options": {"reserve": "pow2"}}),
    "orca, max": ("orca", {"scheduler_options": {"reserve": "max"}}),
    "sarathi": ("sarathi", {}),
    "static": ("static", {}),
    "static, padded": ("static", {"scheduler_options": {"padded": True}}),
    "sjf": ("shortest_first", {"scheduler_options": {"preemptive": False}}),
    "srpt": ("shortest_first", {}),
    "srpt, predicted total": ("shortest_first", {"scheduler_options": {"predicts": "total", "error": 0.5}}),
    "srpt, whole prompts": ("shortest_first", {"chunked_prefill": False}),
    "mlfq": ("mlfq", {"scheduler_options": {"queues": 4, "promote_after": 20, "prefill_tokens_per_iteration": 16}}),
    "mlfq, whole prompts": ("mlfq", {"chunked_prefill": False}),
    "no evict": ("trtllm", {"scheduling_policy": "GUARANTEED_NO_EVICT"}),
    "no evict, whole prompts": ("trtllm", {"scheduling_policy": "GUARANTEED_NO_EVICT", "chunked_prefill": False}),
    "max utilization": ("trtllm", {"scheduling_policy": "MAX_UTILIZATION"}),
    "max utilization, whole": ("trtllm", {"scheduling_policy": "MAX_UTILIZATION", "chunked_prefill": False}),
    "trtllm static": ("trtllm", {"scheduling_policy": "STATIC_BATCH"}),
}

NEVER_PREEMPT = {
    "orca", "orca, pow2", "orca, max", "static", "static, padded",
    "no evict", "no evict, whole prompts", "trtllm static",
}  # fmt: skip

LENGTH = 200

STATISTICS = (
    "prefill_tokens", "prefill_chunks", "prefill_area", "prefill_kv_tokens", "prefill_max_tokens",
    "decodes", "decode_sum", "decode_max", "decode_sumsq",
)  # fmt: skip


def policy(name, blocks, walks=True, **changes):
    """A scheduler of 16-token blocks by its name above; without chunks the budget covers the longest request.

    `walks`: it lists the rows of every call.
    """
    scheduler, own = POLICIES[name]
    values = {"max_model_len": LENGTH, **own, **changes}
    whole = not values.get("chunked_prefill", True) or getattr(find_scheduler(scheduler), "CHUNKS", None) is False
    if whole:
        values["max_num_batched_tokens"] = max(LENGTH, values.get("max_num_batched_tokens", 0))
    settings = make_settings(**values)
    made = make_scheduler(scheduler, settings, CacheShape(blocks, False, (GroupShape("full", 16),)))
    if walks:
        made.steady = lambda: False
    return made, settings


def drive(scheduler, requests, depth=1, calls=20_000, aborts=()):
    """Run `requests` = [(call of arrival, prompt, outputs)] to their end; returns the requests and batches.

    `aborts` = [(call, request)]. At most `depth` batches are in flight; an empty one is completed with those before.
    """
    made = [scheduler.request_type(i, prompt, outputs) for i, (_, prompt, outputs) in enumerate(requests)]
    waiting = deque(sorted(range(len(requests)), key=lambda i: (requests[i][0], i)))
    flying, batches, gone = deque(), [], set()
    ended = Counter()
    for call in range(calls):
        while waiting and requests[waiting[0]][0] <= call:
            scheduler.add(made[waiting.popleft()])
        for at, index in aborts:
            if at == call and index not in waiting and not ended[index] and index not in gone:
                scheduler.abort(made[index])
                gone.add(index)
        issued = scheduler.unfinished > 0
        if issued:
            batch = scheduler.schedule()
            batches.append(batch)
            flying.append(batch)
        while flying and (len(flying) >= depth or not issued or not flying[-1].tokens):
            ended.update(request.index for request in scheduler.complete(flying.popleft()))
        if not waiting and not scheduler.unfinished and not flying:
            break
    else:
        raise AssertionError(f"after {calls} calls {scheduler.unfinished} requests are unfinished")
    assert set(ended.values()) <= {1}
    assert set(ended) | gone == set(range(len(requests)))
    return made, batches


drawn = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 150), st.integers(1, 50)), min_size=1, max_size=25)
runs = {
    "rows": drawn,
    "blocks": st.integers(13, 40),
    "seats": st.integers(1, 8),
    "budget": st.integers(32, 96),
    "depth": st.integers(1, 3),
    "ahead": st.booleans(),
    "aborts": st.lists(st.tuples(st.integers(0, 80), st.integers(0, 24)), max_size=4),
}


@pytest.mark.parametrize("name", POLICIES)
@hypothesis_settings(max_examples=40)
@given(**runs)
def test_nothing_is_lost_under_memory_pressure(name, rows, blocks, seats, budget, depth, ahead, aborts):
    """Every request ends once, blocks come back, limits are kept, tokens come out as asked for, no call is in vain."""
    scheduler, settings = policy(
        name, blocks, max_num_seqs=seats, max_num_batched_tokens=budget, async_scheduling=ahead, batches_in_flight=depth
    )
    rows = [row for row in rows if row[1] + row[2] <= LENGTH]
    aborts = [(call, index) for call, index in aborts if index < len(rows)]
    requests, batches = drive(scheduler, rows, depth, aborts=aborts)
    assert scheduler.free_blocks == scheduler.usable_blocks
    emitted = Counter()
    for batch in batches:
        own = [row.request.index for row in batch.rows]
        assert len(set(own)) == len(own) == batch.running <= seats
        assert sum(row.tokens for row in batch.rows) <= settings.max_num_batched_tokens
        assert all(row.tokens >= 1 for row in batch.rows)
        assert 0 <= batch.free_blocks <= blocks
        assert not {request.index for request in batch.preempted} & set(own)
        emitted.update(row.request.index for row in batch.rows if row.emits)
        assert batch.emitting == sum(row.emits for row in batch.rows)
        first = sum(row.emits and emitted[row.request.index] == 1 for row in batch.rows)
        assert sum(batch.follows.values()) == batch.emitting - first
        if "padded" not in name:
            assert batch.tokens == sum(row.tokens for row in batch.rows)
    for request in requests:
        if not request.aborted:
            assert emitted[request.index] == request.outputs
        assert name not in NEVER_PREEMPT or not request.preemptions
    if depth == 1:
        assert all(batch.tokens for batch in batches)


@pytest.mark.parametrize("name", [name for name, (scheduler, _) in POLICIES.items() if scheduler == "trtllm"])
@hypothesis_settings(max_examples=60)
@given(**runs)
def test_rows_that_go_together_are_as_those_that_are_walked(name, rows, blocks, seats, budget, depth, ahead, aborts):
    """The same statistics, order of ends, tokens thrown away and tokens that follow others, call by call."""
    rows = [row for row in rows if row[1] + row[2] <= LENGTH]
    aborts = [(call, index) for call, index in aborts if index < len(rows)]
    changes = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "async_scheduling": ahead,
        "batches_in_flight": depth,
    }
    told = []
    for walks in (True, False):
        scheduler, _ = policy(name, blocks, walks, **changes)
        requests, batches = drive(scheduler, rows, depth, aborts=aborts)
        assert scheduler.free_blocks == scheduler.usable_blocks
        ended = [(r.emitted, r.computed, r.preemptions, r.last_batch) for r in requests if not r.aborted]
        told.append(([_told(batch) for batch in batches], ended))
    assert told[0] == told[1]


def _told(batch):
    numbers = (*STATISTICS, "emitting", "running", "waiting", "free_blocks", "number", "follows")
    people = ("admitted", "emitted", "finishing", "preempted", "interrupted", "dropped")
    return (
        [getattr(batch, name) for name in numbers],
        [sorted(r.index for r in batch.dropped) if name == "dropped" else [r.index for r in getattr(batch, name)]
         for name in people],
    )  # fmt: skip


def test_most_calls_of_a_full_server_look_at_no_rows():
    """8 seats, 3 waiting: prompts in call 0, then walks only where somebody has left or comes."""
    scheduler, _ = policy("no evict", 200, walks=False, max_num_seqs=8, async_scheduling=False)
    _, batches = drive(scheduler, [(0, 16, 40 + 2 * i) for i in range(11)])
    assert sum(not batch.rows for batch in batches) > 0.6 * len(batches)


def simulate(name, arrivals_ms, prompts, outputs, blocks=1000, **changes):
    scheduler, own = POLICIES[name]
    values = {"max_model_len": LENGTH, "max_num_batched_tokens": LENGTH, **own, **changes}
    workload = Workload("test", np.array(arrivals_ms) * 1_000_000, np.array(prompts), np.array(outputs))
    return run_exact(workload, make_settings(**values), make_table(), num_gpu_blocks=blocks + 1, scheduler=scheduler)


def mean_e2e_ms(run):
    requests = run.requests
    return float((requests.finish_ns - requests.arrival_ns).mean()) * 1e-6


def mean_ttft_ms(run):
    requests = run.requests
    return float((requests.first_token_ns - requests.arrival_ns).mean()) * 1e-6


def rows_of(batches):
    """Per call the rows as (request, tokens)."""
    return [[(row.request.index, row.tokens) for row in batch.rows] for batch in batches]


def test_orca_reserves_all_outputs_when_it_starts():
    """5 blocks of 16; requests of 16 + 16 tokens reserve 2 each, so the third waits until one has ended.

    A prompt is never cut: of a budget of 200, two prompts of 16 in the first call.
    """
    scheduler, _ = policy("orca", 5, max_num_seqs=8)
    requests, batches = drive(scheduler, [(0, 16, 16)] * 3)
    assert rows_of(batches)[:2] == [[(0, 16), (1, 16)], [(0, 1), (1, 1)]]
    assert batches[0].free_blocks == 1
    assert rows_of(batches)[16] == [(2, 16)]
    assert len(batches) == 32


@pytest.mark.parametrize(("reserve", "blocks"), [("oracle", 3), ("pow2", 4), ("max", 13)])
def test_orcas_reservation_of_unknown_lengths(reserve, blocks):
    """20 + 17 tokens: 3 blocks of 16; 20 + 32 (the next power of two): 4; 200, the longest length: 13."""
    scheduler, _ = policy("orca", 20, scheduler_options={"reserve": reserve})
    scheduler.add(scheduler.request_type(0, 20, 17))
    assert scheduler.schedule().free_blocks == 20 - blocks


def test_sarathi_takes_decodes_first_and_fills_up_with_chunks():
    """Budget 32. Call 0: prompt 8 and 24 of 100; then one decode and chunks of 31, 31 and the last 14.

    Beside those 14 the 8 of a new prompt have room.
    """
    scheduler, _ = policy("sarathi", 40, max_num_batched_tokens=32)
    _, batches = drive(scheduler, [(0, 8, 5), (0, 100, 1), (3, 8, 1)])
    assert rows_of(batches)[:4] == [
        [(0, 8), (1, 24)],
        [(0, 1), (1, 31)],
        [(0, 1), (1, 31)],
        [(0, 1), (1, 14), (2, 8)],
    ]


def test_sarathi_leaves_a_watermark():
    """10 blocks, a quarter (2) stays free: two prompts of 4 blocks start, though a third of 1 block would fit."""
    scheduler, _ = policy("sarathi", 10, max_num_batched_tokens=200, scheduler_options={"watermark": 0.25})
    _, batches = drive(scheduler, [(0, 64, 1), (0, 64, 1), (0, 16, 1)])
    assert rows_of(batches) == [[(0, 64), (1, 64)], [(2, 16)]]


def test_static_runs_a_batch_to_its_last_member():
    """Outputs 1 and 4: the batch takes 4 calls, the third request starts in the fifth. Ended rows are gone."""
    scheduler, _ = policy("static", 40, max_num_seqs=2)
    _, batches = drive(scheduler, [(0, 10, 1), (0, 30, 4), (0, 10, 2)])
    assert rows_of(batches) == [
        [(0, 10), (1, 30)],
        [(1, 1)],
        [(1, 1)],
        [(1, 1)],
        [(2, 10)],
        [(2, 1)],
    ]
    # 10 + 1 and 30 + 4 tokens: 1 + 3 blocks are taken until the fourth call is over
    assert [batch.free_blocks for batch in batches] == [36, 36, 36, 36, 39, 39]


def test_static_padding():
    """Two prompts count as 30 tokens each, and the one that has ended is computed on: contexts 31, 32, 33 twice."""
    scheduler, _ = policy("static, padded", 40, max_num_seqs=2)
    _, batches = drive(scheduler, [(0, 10, 1), (0, 30, 4)])
    assert [batch.prefill_tokens for batch in batches] == [60, 0, 0, 0]
    assert [batch.decodes for batch in batches] == [0, 2, 2, 2]
    assert [batch.decode_sum for batch in batches] == [0, 62, 64, 66]
    assert [batch.emitting for batch in batches] == [2, 1, 1, 1]


def test_shortest_first_without_preemption_orders_the_queue():
    scheduler, _ = policy("sjf", 40, max_num_seqs=1)
    _, batches = drive(scheduler, [(0, 10, 3), (1, 10, 9), (1, 10, 2)])
    served = [batch.rows[0].request.index for batch in batches]
    assert served == [0] * 3 + [2] * 2 + [1] * 9


def test_shortest_remaining_pauses_the_longer_one_which_keeps_its_blocks():
    """One row a call. Request 0 has 7 of 9 to go when request 1 (2 outputs) arrives; it goes on where it was."""
    scheduler, _ = policy("srpt", 40, max_num_seqs=1)
    requests, batches = drive(scheduler, [(0, 10, 9), (2, 10, 2)])
    served = [batch.rows[0].request.index for batch in batches]
    assert served == [0, 0, 1, 1] + [0] * 7
    assert requests[0].preemptions == 0
    # its third token follows the one of call 1
    assert batches[4].follows == {1: 1}


def test_shortest_remaining_takes_blocks_from_the_longest():
    """5 blocks. Requests 0 and 1 hold 2 each (32 tokens); a short one needs 3: the longer of the two loses its own."""
    scheduler, _ = policy("srpt", 5, max_num_seqs=3, max_num_batched_tokens=200)
    requests, batches = drive(scheduler, [(0, 32, 20), (0, 32, 10), (1, 40, 1)])
    assert rows_of(batches)[1][0] == (2, 40)
    assert [request.preemptions for request in requests] == [1, 0, 0]


def test_prediction_error_depends_on_seed_and_request_only():
    def predictions(seed):
        scheduler, _ = policy("srpt", 40, scheduler_options={"error": 1.0, "seed": seed})
        made = [scheduler.request_type(i, 10, 100) for i in range(200)]
        for request in made:
            scheduler.add(request)
        return [request.predicted for request in made]

    assert predictions(1) == predictions(1) != predictions(2)
    assert np.log(np.array(predictions(1)) / 100).std() == pytest.approx(1.0, abs=0.15)


def test_mlfq_by_hand():
    """One row a call, quanta 1, 2, 4; a unit is 16 tokens of prompt. Request 0 (prompt 16: 1 unit) joins queue 0.

    It has used its quantum after call 0, and that of queue 1 after calls 1 and 2. Request 1 (40 tokens: 3 units) skips
    to queue 2 at call 2, where request 0 joins behind it after call 2. Request 2, of call 4, goes first.
    """
    scheduler, _ = policy(
        "mlfq", 40, max_num_seqs=1, scheduler_options={"queues": 3, "prefill_tokens_per_iteration": 16}
    )
    requests, batches = drive(scheduler, [(0, 16, 6), (2, 40, 3), (4, 10, 1)])
    served = [batch.rows[0].request.index for batch in batches]
    assert served == [0, 0, 0, 1, 2, 1, 1, 0, 0, 0]
    assert not any(request.preemptions for request in requests)


def test_mlfq_promotes_the_starved():
    """One row a call, the third queue is the last. Request 0 sinks to it; requests of one token keep coming.

    Without promotion it waits for their end. Looked at before calls 8 and 16, it was not served for 8 calls at the
    second; it goes behind the request of call 16.
    """
    arrivals = [(0, 16, 9)] + [(call, 10, 1) for call in range(1, 60)]

    def first_gap(promote_after):
        options = {"queues": 3, "promote_after": promote_after}
        scheduler, _ = policy("mlfq", 200, max_num_seqs=1, scheduler_options=options)
        _, batches = drive(scheduler, arrivals)
        return [i for i, batch in enumerate(batches) if batch.rows[0].request.index == 0][1]

    assert first_gap(0) == 60
    assert first_gap(8) == 17


def test_no_evict_counts_everything_that_may_come():
    """6 blocks. 16 + 32 tokens are 3 blocks each: two run, though the prompts of all three would fit at once."""
    scheduler, _ = policy("no evict", 6)
    _, batches = drive(scheduler, [(0, 16, 32)] * 3)
    assert rows_of(batches)[0] == [(0, 16), (1, 16)]
    assert rows_of(batches)[32] == [(2, 16)]
    more = {"max_output_tokens": 80}
    scheduler, _ = policy("no evict", 6, scheduler_options=more)  # 16 + 80 tokens: all 6 blocks
    assert rows_of(drive(scheduler, [(0, 16, 32)] * 3)[1])[0] == [(0, 16)]


def test_max_utilization_pauses_the_last_to_arrive():
    """3 blocks. Two prompts of 16 start; their next tokens want a block each and one is free: request 1 is paused.

    Request 0 ends with call 19; request 1 resumes with its 16 + 1 tokens.
    """
    scheduler, _ = policy("max utilization", 3)
    requests, batches = drive(scheduler, [(0, 16, 20), (0, 16, 20)])
    assert rows_of(batches)[:2] == [[(0, 16), (1, 16)], [(0, 1)]]
    assert [request.index for request in batches[1].preempted] == [1]
    assert [request.preemptions for request in requests] == [0, 1]
    restart = next(i for i, batch in enumerate(batches) if i and batch.admitted)
    # 17 tokens need 2 blocks: request 0, which holds 2 from call 1 on, has to end
    assert (restart, rows_of(batches)[restart]) == (20, [(1, 17)])


def test_trtllm_cuts_prompts_at_whole_blocks():
    """Budget 70: prompts of 50 and 60; the second one's chunk is 20 cut to 16, then 44 beside the decode."""
    scheduler, _ = policy("no evict", 40, max_num_batched_tokens=70)
    _, batches = drive(scheduler, [(0, 50, 3), (0, 60, 1)])
    assert rows_of(batches)[:2] == [[(0, 50), (1, 16)], [(0, 1), (1, 44)]]
    scheduler, _ = policy("no evict, whole prompts", 40, max_num_batched_tokens=200)
    _, batches = drive(scheduler, [(0, 150, 3), (0, 60, 1)])
    assert rows_of(batches)[:2] == [[(0, 150)], [(0, 1), (1, 60)]]


@hypothesis_settings(max_examples=150)
@given(rows=drawn, blocks=st.integers(13, 40), seats=st.integers(1, 8), budget=st.integers(8, 96))
def test_without_a_policy_it_decides_as_vllm_does(rows, blocks, seats, budget):
    """The walk's defaults are first come first served with recompute preemption: vLLM's, before it reserved inputs."""
    settings = make_settings(
        max_model_len=LENGTH, max_num_seqs=seats, max_num_batched_tokens=max(seats, budget), async_scheduling=False
    )
    cache = CacheShape(blocks, False, (GroupShape("full", 16),))
    vllm, plain = make_scheduler("vllm", settings, cache), IterationScheduler(settings, cache)
    rows = [row for row in rows if row[1] + row[2] <= LENGTH]
    for ours, theirs in zip(drive(plain, rows)[1], drive(vllm, rows)[1], strict=True):
        for name in (*STATISTICS, "emitting", "free_blocks"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in ("admitted", "emitted", "finishing", "preempted", "interrupted"):
            assert {r.index for r in getattr(ours, name)} == {r.index for r in getattr(theirs, name)}, name


HEAVY = {
    # One request in ten is long; 60 arrive faster than eight seats can serve.
    "arrivals_ms": [3 * i for i in range(60)],
    "prompts": [20 + (7 * i) % 40 for i in range(60)],
    "outputs": [140 if i % 10 == 0 else 3 + i % 5 for i in range(60)],
}


def test_policies_compare_as_they_should():
    """One seeded overload, tight on seats: who waits behind whom decides the means."""
    runs = {
        name: simulate(name, **HEAVY, max_num_seqs=4)
        for name in ("orca", "sarathi", "static", "static, padded", "sjf", "srpt", "mlfq", "no evict")
    }
    assert all((run.requests.status == FINISHED).all() for run in runs.values())
    latency = {name: mean_e2e_ms(run) for name, run in runs.items()}
    first = {name: mean_ttft_ms(run) for name, run in runs.items()}
    assert max(first, key=first.get) == "static, padded"
    assert first["static"] > 1.5 * first["orca"]
    assert min(latency, key=latency.get) == "srpt"
    assert latency["sjf"] < 0.8 * latency["orca"]
    assert latency["mlfq"] < 0.8 * latency["orca"]
    assert first["mlfq"] < first["sjf"]
    assert latency["no evict"] == pytest.approx(latency["orca"], rel=0.1)


def test_chunks_bound_the_time_between_tokens():
    """Long prompts beside decodes: whole prompts stall the decodes, a budget of 32 does not."""
    load = {
        "arrivals_ms": [0] + [5 * i for i in range(1, 12)],
        "prompts": [10] + [180] * 11,
        "outputs": [100] + [2] * 11,
    }
    table = {"max_num_seqs": 8}
    whole, chunked = simulate("orca", **load, **table), simulate("sarathi", **load, max_num_batched_tokens=32, **table)
    assert whole.itl_ns.max() > 2 * chunked.itl_ns.max()


def test_reserving_never_preempts_and_packing_does():
    """The same load on 24 blocks: no evict runs fewer at once and preempts nobody; max utilization packs and pauses."""
    load = {"arrivals_ms": [0] * 30, "prompts": [30] * 30, "outputs": [60] * 30}
    reserving = simulate("no evict", **load, blocks=24)
    packing = simulate("max utilization", **load, blocks=24)
    assert reserving.requests.preemptions.sum() == 0 < packing.requests.preemptions.sum()
    assert packing.steps.running.max() > reserving.steps.running.max()


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_inter_token_latencies_add_up(name, asynchronous):
    """Of each request the gaps between tokens add up to the time from its first to its last, rows skipped or not."""
    run = simulate(name, **HEAVY, max_num_seqs=4, blocks=20, async_scheduling=asynchronous)
    requests = run.requests
    assert (requests.status == FINISHED).all()
    assert run.itl_count.sum() == (requests.output_tokens - 1).sum()
    assert (run.itl_ns * run.itl_count).sum() == (requests.finish_ns - requests.first_token_ns).sum()
    again = simulate(name, **HEAVY, max_num_seqs=4, blocks=20, async_scheduling=asynchronous)
    for field in dataclasses.fields(requests):
        assert np.array_equal(getattr(requests, field.name), getattr(again.requests, field.name))


def test_trtllm_prompts_wait_for_company():
    """At most 3 calls, unless the batch would reach half of its 64 tokens; never while nobody decodes."""
    options = {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5}
    scheduler, _ = policy("no evict", 100, max_num_batched_tokens=64, scheduler_options=options)

    def admitted():
        batch = scheduler.schedule()
        scheduler.complete(batch)
        return [request.index for request in batch.admitted]

    scheduler.add(IterationRequest(0, 10, 50))
    assert admitted() == [0]
    scheduler.add(IterationRequest(1, 10, 50))
    assert [admitted() for _ in range(4)] == [[], [], [], [1]]
    scheduler.add(IterationRequest(2, 10, 50))
    assert admitted() == []
    scheduler.add(IterationRequest(3, 20, 50))  # 2 decodes, 10 and 20 tokens: 32 of 64
    assert admitted() == [2, 3]


class Rank:
    def __init__(self, has_prompt, decodes_any):
        self.has_prompt, self.decodes_any = has_prompt, decodes_any


def test_prompts_wait_for_all_data_parallel_ranks():
    one, other = Rank(True, True), Rank(False, True)
    gate = PromptGate([one, other], 4)
    # both ask in every step and get one answer; the fourth step does not wait any longer
    assert [(gate.opens(one), gate.opens(other)) for _ in range(5)] == [(False,) * 2] * 3 + [(True,) * 2, (False,) * 2]
    other.has_prompt = True
    assert gate.opens(one) and gate.opens(other)
    other.has_prompt, other.decodes_any = False, False  # nothing to hold up there
    assert gate.opens(one)


@pytest.mark.parametrize(("carried", "level"), [(False, 0), (True, 3)])
def test_a_further_round_starts_where_the_one_before_ended(carried, level):
    """Quanta of 1, 2, 4 and 8 iterations: 16 outputs use up three of them, and 9 of the last."""
    options = {"queues": 4, "prefill_tokens_per_iteration": 100, "carry_level": carried}
    scheduler, _ = policy("mlfq", 50, scheduler_options=options, async_scheduling=False)
    none = np.zeros(2, np.int64)
    sessions = Sessions(np.array([0, 2]), none, none, none, np.zeros(1, np.int64))
    scheduler.know(Workload("w", none, np.array([16, 40]), np.array([16, 1]), sessions=sessions))
    drive(scheduler, [(0, 16, 16)])
    second = scheduler.request_type(1, 40, 1)
    scheduler.add(second)
    assert second.level == level

"""SGLang's loops in time: prefills pause the decodes, and the overlap loop launches before it knows."""

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from conf.compose import compose
from sim import api
from sim.deployment.graphs import EAGER, PIECEWISE
from sim.event.pricer import Pricer
from sim.event.run import run_exact
from sim.report.result import FINISHED, REJECTED
from sim.scheduler.sglang.request import SglangBatch
from sim.workload.trace import Workload

from .conftest import make_settings, make_table


MS = 1_000_000


def run(arrivals_ms, prompts, outputs, *, blocks=200, base_s=10e-3, ids=None, **changes):
    values = {"name": "sglang", "block_size": 1, "prefix_caching": True, **changes}
    workload = Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs))
    table = make_table(base_s=base_s, token_s=0.0, row_s=0.0)
    return run_exact(workload, make_settings(**values), table, num_gpu_blocks=blocks + 1, scheduler="sglang")


def latencies(found):
    return dict(zip((found.itl_ns // MS).tolist(), found.itl_count.tolist(), strict=True))


def test_the_report_shows_the_requests_that_the_pool_allows():
    """512 of the longest (2,048 of 4,096 at least) for each that the pool holds, and at most half its tokens."""
    words = ["engine=sglang-0.5.23", "model=qwen2.5-0.5b", "workload.num_requests=2", "engine.max_model_len=8192"]
    for blocks, running in ((2_000, 999), (20_000, 2048), (48_001, 3000), (400_000, 4096)):
        job = api.build(compose([*words, f"engine.num_gpu_blocks_override={blocks}"]))
        assert job.plan.engine.max_num_seqs == running
        (shown,) = [row for row in job.plan.assumptions if row[0] == "max_num_seqs"]
        assert shown[1] == f"{running}" and ("KV cache allows" in shown[2]) is (running < 4096)
    given = api.build(compose([*words, "engine.num_gpu_blocks_override=20000", "engine.max_num_seqs=5000"]))
    assert given.plan.engine.max_num_seqs == 5000


def test_a_prefill_pauses_the_decodes():
    """Steps of 10 ms. Request 0: prefill to 10, decodes to 20 and 30; request 1 comes at 25 and prefills to 40."""
    found = run([0, 25], [20, 30], [5, 2])
    assert found.steps.prefill_tokens.tolist() == [20, 0, 0, 30, 0, 0]
    assert found.steps.decodes.tolist() == [0, 1, 1, 0, 2, 1]
    assert found.requests.first_token_ns.tolist() == [10 * MS, 40 * MS]
    assert found.requests.finish_ns.tolist() == [60 * MS, 50 * MS]
    # request 0 waits 20 ms for its fourth token
    assert latencies(found) == {10: 4, 20: 1}


def test_the_overlap_loop_admits_a_step_later():
    """The arrival at 25 is seen when batch 3 (to 40), launched at 20, is followed: its prefill runs from 40 to 50."""
    found = run([0, 25], [20, 30], [5, 2], async_scheduling=True)
    assert found.steps.prefill_tokens.tolist() == [20, 0, 0, 0, 30, 0]
    assert found.requests.first_token_ns.tolist() == [10 * MS, 50 * MS]
    assert found.requests.finish_ns.tolist() == [60 * MS, 60 * MS]
    assert latencies(found) == {10: 4, 20: 1}


def test_long_decodes_are_counted_one_by_one_however_they_are_run():
    found = run([0], [10], [150], async_scheduling=True)
    assert len(found.steps.decodes) == 150 and latencies(found) == {10: 149}
    assert found.steps.decode_sum.tolist() == [0, *range(11, 160)]
    assert found.requests.finish_ns.tolist() == [1500 * MS]


def test_requests_are_cut_and_refused_as_the_engine_does():
    """Context 512: 506 - 5 and more are refused; 100 + 500 is cut to 511 - 100 - 1, and the pool of 450 to 348."""
    found = run([0, 0, 0], [506, 100, 300], [2, 500, 3], blocks=450)
    assert found.requests.status.tolist() == [REJECTED, FINISHED, FINISHED]
    assert found.requests.output_tokens.tolist() == [2, 450 - 100 - 1 - 1, 3]


def test_a_retracted_request_waits_and_is_counted():
    found = run(
        [0, 0],
        [20, 20],
        [150, 150],
        scheduler_options={"schedule_conservativeness": 0.05, "ignore_eos": False},
        max_num_seqs=8,
    )
    assert found.requests.preemptions.tolist() == [0, 1]
    # 1 + 80 tokens, then alone; it comes back with its prompt from the cache and makes its 82nd token
    assert sum(found.itl_count) == 2 * 149
    assert found.checks["tokens out = tokens asked for"]


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.booleans(),
    st.sampled_from([1, 16]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=15),
    st.booleans(),
)
def test_every_token_is_counted_once(overlap, page, requests, mixed):
    arrivals, prompts, outputs = zip(*sorted(requests), strict=True)
    options = {
        "schedule_conservativeness": 0.05,
        "ignore_eos": False,
        "max_new_tokens": 60,
        "enable_mixed_chunk": mixed,
    }
    found = run(
        arrivals,
        prompts,
        outputs,
        blocks=192 // page,
        block_size=page,
        async_scheduling=overlap,
        scheduler_options=options,
    )
    assert all(found.checks.values())
    assert (found.requests.status == FINISHED).all()
    assert sum(found.itl_count) == sum(outputs) - len(outputs)
    total = (found.requests.finish_ns - found.requests.first_token_ns).sum()
    assert int(found.itl_ns @ found.itl_count) == total
    assert found.itl_ns.min(initial=MS) > 0


def test_prefills_have_graphs_of_their_own():
    settings = make_settings(graph_mode="FULL_AND_PIECEWISE", graph_sizes=(1, 2, 8), prefill_graph_sizes=(4, 8, 12))
    pricer = Pricer(make_table(), settings)

    def padding(tokens):
        batch = SglangBatch()
        batch.add_chunk(0, tokens)
        batch.emitting = 1
        return pricer(batch)[1:]

    # 4 is more than twice one token; 13 is above the largest
    assert [padding(tokens) for tokens in (1, 2, 5, 9, 13)] == [
        (1, EAGER),
        (4, PIECEWISE),
        (8, PIECEWISE),
        (12, PIECEWISE),
        (13, EAGER),
    ]


@pytest.mark.parametrize("overlap", [False, True])
def test_same_run_bit_for_bit(overlap):
    one, two = (run([0, 3, 9], [50, 40, 30], [30, 20, 25], async_scheduling=overlap) for _ in range(2))
    assert one.steps.end_ns.tolist() == two.steps.end_ns.tolist()
    assert one.itl_ns.tolist() == two.itl_ns.tolist()

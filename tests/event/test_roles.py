"""Prefill and decode instances of SGLang and TensorRT-LLM: by hand, in closed form, and drawn."""

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.conf import TransferConf
from sim.deployment.settings import load_engine
from sim.deployment.topology import lay_out
from sim.event.handover import FREE, HandOverCosts
from sim.event.pool import EnginePool
from sim.event.run import Routing, run_fleet
from sim.hardware.read import load_device
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED
from sim.scheduler.trtllm import TensorRTLLM

from .conftest import make_settings, make_table
from .test_fleet import drawn_workload, workload
from .test_lockstep import prices


MS = 1_000_000
H100 = load_device("h100-sxm")
ENGINES = {"sglang": "0.5.23", "trtllm": "1.0"}
POLICY = {"sglang": "fcfs", "trtllm": "GUARANTEED_NO_EVICT"}
COSTS = HandOverCosts(1e-3, 2e-3, 1e-4, 3e-4)


def pool(engine, role, base_s=10e-3, blocks=100, *, ranks=1, replicas=1, block_bytes=0.0, **changes):
    """Steps of `base_s`; of `ranks` in lockstep 1 ms and what their tokens take."""
    values = {"name": engine, "profile": load_engine(engine, ENGINES[engine]).profile, "max_num_batched_tokens": 64}
    values["scheduling_policy"] = POLICY[engine]
    settings = make_settings(**values | changes)
    settings.profile.api_pickup_s = settings.profile.api_door_s = 0.0
    table = make_table(base_s=base_s, token_s=0.0, row_s=0.0) if ranks == 1 else prices()
    full = (GroupShape("full", settings.block_size),)
    return EnginePool(
        settings,
        table,
        blocks + 1,
        full,
        replicas=replicas,
        data_parallel=ranks,
        scheduler=engine,
        role=role,
        block_bytes=(block_bytes,),
    )


def run(work, prefill, decode, costs=FREE, routing=None):
    """Over NICs of 50 GB/s each, one device per rank, every pool in nodes of its own."""
    conf = TransferConf(placement="separate")
    topology = lay_out([(p.role, H100, p.ranks, 1) for p in (prefill, decode)], conf, 1.0)
    return run_fleet(work, [prefill, decode], routing or Routing(), topology=topology, costs=costs)


def way(found, i=0):
    t = found.transfers
    columns = (t.queued_ns, t.allocated_ns, t.prefilled_ns, t.begun_ns, t.received_ns)
    return [round(int(column[i]) / MS, 3) for column in columns]


def test_a_request_of_tensorrt_llm_by_hand():
    """Prompt 100 with budget 64: two steps, prefilled at 20 ms; 1 ms of hand-over: queued, with blocks, at 21.

    2 ms of set-up, 7 blocks at 0.1 ms, 0.3 ms of latency: the first byte leaves at 24. 7 blocks of 50 MB at 50 GB/s:
    received at 31. The first token came along and is given out there; the second, of one step, at 41, the third at 51.
    """
    found = run(workload([0], [100], [3]), pool("trtllm", "prefill"), pool("trtllm", "decode", block_bytes=50e6), COSTS)
    assert way(found) == [21, 21, 20, 24, 31]
    assert (found.requests.first_token_ns[0] / MS, found.requests.finish_ns[0] / MS) == (31, 51)
    assert found.steps.decodes.tolist() == [0, 0, 1, 1]
    assert (set(found.itl_ns.tolist()), found.itl_count.sum()) == ({10 * MS}, 2)


def test_a_request_of_sglang_by_hand():
    """1 ms of hand-over, then the decode instance has blocks; 0.3 ms on, at 1.3, the prefill begins.

    Its first chunk of 64 tokens, 4 of 7 blocks, is computed at 11.3 and leaves 2.7 ms later (set-up, 4 x 0.1 ms,
    latency), at 14; it takes 4 ms. The rest is computed at 21.3 and leaves 3 x 0.1 + 0.3 ms later, at 21.9; 3 ms:
    received at 24.9. The first token is given out there; in the next turn the request decodes: 34.9 and 44.9.
    """
    found = run(workload([0], [100], [3]), pool("sglang", "prefill"), pool("sglang", "decode", block_bytes=50e6), COSTS)
    assert way(found) == [1, 1, 21.3, 14, 24.9]
    assert [found.requests.first_token_ns[0] / MS, found.requests.finish_ns[0] / MS] == pytest.approx([24.9, 44.9])
    assert found.requests.queued_ns[0] / MS == pytest.approx(1.3)
    assert found.steps.decodes.tolist() == [0, 0, 1, 1]
    assert (set(found.itl_ns.tolist()), found.itl_count.sum()) == ({10 * MS}, 2)
    assert found.links.bytes.tolist() == [350e6, 350e6]


def test_a_slow_link_queues_the_pieces_of_a_prompt():
    """5 ms a block: the four blocks of the first chunk take from 10 to 30 ms, the other three follow, to 45."""
    found = run(workload([0], [100], [1]), pool("sglang", "prefill"), pool("sglang", "decode", block_bytes=250e6))
    assert way(found) == [0, 0, 20, 10, 45]


@pytest.mark.parametrize("engine", ENGINES)
def test_free_transfers_and_room_for_all_is_prefill_then_decode(engine):
    """Prompts of one budget end at 10, 20, 30 ms, which is when their first tokens come; decodes of 2 ms follow."""
    work = workload([0, 0, 0], [64, 64, 64], [3, 3, 3])
    found = run(work, pool(engine, "prefill"), pool(engine, "decode", 2e-3))
    assert (found.requests.first_token_ns / MS).tolist() == [10, 20, 30]
    assert (found.requests.finish_ns / MS).tolist() == [14, 24, 34]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_token_is_that_of_the_prefill(engine):
    found = run(workload([0, 1], [64, 64], [1, 1]), pool(engine, "prefill"), pool(engine, "decode"))
    assert (found.requests.first_token_ns / MS).tolist() == [10, 20]
    assert found.steps.decodes.sum() == 0
    assert (found.requests.status == FINISHED).all()


def test_a_full_decode_side_of_sglang_holds_prefills_back_before_they_begin():
    """8 blocks there: one request of 100 + 12 tokens at a time. The next prefill begins when the first has ended."""
    work = workload([0] * 3, [100] * 3, [12] * 3)
    wide = {"max_num_batched_tokens": 128}
    found = run(work, pool("sglang", "prefill", **wide), pool("sglang", "decode", blocks=9, **wide))
    requests, t = found.requests, found.transfers
    assert (requests.status == FINISHED).all()
    assert t.allocated_ns[1:].tolist() == requests.finish_ns[:2].tolist()
    assert (requests.scheduled_ns[1:] >= requests.finish_ns[:2]).all()


def test_a_full_decode_side_of_tensorrt_llm_holds_the_prefill_side_up():
    """As of vLLM: the prefill side has blocks for two prompts, and its third waits until the first has been read."""
    work = workload([0] * 4, [100] * 4, [12] * 4)
    wide = {"max_num_batched_tokens": 128}
    found = run(work, pool("trtllm", "prefill", blocks=15, **wide), pool("trtllm", "decode", blocks=8, **wide))
    t, requests = found.transfers, found.requests
    assert (requests.status == FINISHED).all()
    assert t.allocated_ns[1] == requests.finish_ns[0]
    assert requests.scheduled_ns[2] >= t.received_ns[0]
    assert requests.scheduled_ns[3] >= t.received_ns[1]


def test_sglang_keeps_room_for_what_decodes():
    """40 pages of 16 hold three prompts of 160 and then 160 tokens; with 64 reserved for each of three, no third."""
    work = workload([0] * 3, [160] * 3, [40] * 3)
    wide = {"max_num_batched_tokens": 512}

    def allocated(reserved):
        options = {"num_reserved_decode_tokens": reserved}
        decode = pool("sglang", "decode", blocks=40, scheduler_options=options, **wide)
        return run(work, pool("sglang", "prefill", **wide), decode)

    assert allocated(40).transfers.allocated_ns.tolist() == [0, 0, 0]
    late = allocated(64)
    assert late.transfers.allocated_ns[2] >= late.requests.finish_ns[:2].min()


def test_seats_of_a_decode_instance():
    """One seat: the second request has its KV and its first token only when the first has ended."""
    work = workload([0, 0], [64, 64], [5, 5])
    for engine in ENGINES:
        found = run(work, pool(engine, "prefill"), pool(engine, "decode", max_num_seqs=1))
        assert found.requests.first_token_ns[1] >= found.requests.finish_ns[0]
        assert found.steps.decodes.max() == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_in_lockstep_run_no_step_for_transfers_alone(engine):
    """Two ranks decode; while both only wait for KV no step runs, and one that has nothing yet rides along."""
    work = workload([0, 0, 30], [64, 64, 64], [20, 20, 20])
    found = run(work, pool(engine, "prefill"), pool(engine, "decode", ranks=2, block_bytes=50e6))
    decode = found.steps.replica > 0
    first = found.transfers.received_ns.min()
    assert found.steps.start_ns[decode].min() >= first
    starts = [found.steps.start_ns[found.steps.replica == rank].tolist() for rank in (1, 2)]
    assert starts[0] == starts[1]
    assert sorted(found.transfers.target.tolist()) == [1, 1, 2]


@pytest.mark.parametrize("engine", ENGINES)
@run_settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_drawn_fleets_conserve(engine, data):
    """Conservation is checked in the run; one latency for each token after the first; the same to the bit again, for
    TensorRT-LLM with every row walked in every call.
    """
    draw = data.draw
    work = drawn_workload(draw, outputs=60)
    common = {"async_scheduling": draw(st.booleans()), "max_num_batched_tokens": 16 * draw(st.integers(1, 12))}
    common["chunked_prefill"] = common["max_num_batched_tokens"] < 160 or draw(st.booleans())
    common["prefix_caching"] = engine == "sglang" and draw(st.booleans())
    common["max_num_seqs"] = draw(st.sampled_from([2, 8, 40]))
    if engine == "trtllm":
        common["scheduling_policy"] = draw(st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"]))
    else:
        reserved = draw(st.sampled_from([0, 16, 512]))
        common["scheduler_options"] = {"num_reserved_decode_tokens": reserved}
    made = [
        pool(
            engine,
            role,
            draw(st.sampled_from([1e-3, 4e-3])),
            draw(st.integers(16, 60)),
            replicas=draw(st.integers(1, 3)),
            ranks=draw(st.sampled_from([1, 1, 3])),
            block_bytes=draw(st.sampled_from([0.0, 5e6, 1e8])),
            **common,
        )
        for role in ("prefill", "decode")
    ]
    costs = HandOverCosts(*(draw(st.sampled_from([0.0, 1e-3])) for _ in range(4)))
    routing = Routing(at_arrival=draw(st.booleans()), decode_router=draw(st.sampled_from(["round_robin", "random"])))
    first = run(work, *made, costs, routing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorRTLLM, "steady", lambda self: False)
        second = run(work, *made, costs, routing)
    assert all(first.checks.values())
    done = first.requests.status == FINISHED
    assert done.all()
    assert first.itl_count.sum() == (first.requests.output_tokens[done] - 1).sum()
    assert (first.itl_ns >= 0).all()
    for name in ("requests", "steps", "transfers"):
        for column, values in vars(getattr(first, name)).items():
            assert np.array_equal(values, getattr(getattr(second, name), column)), (name, column)
    assert first.itl_ns.tolist() == second.itl_ns.tolist() and first.itl_count.tolist() == second.itl_count.tolist()
    assert first.links.bytes[:1].sum() <= first.transfers.bytes[done].sum()

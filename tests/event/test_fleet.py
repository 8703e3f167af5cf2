"""Several pools: prefill and decode instances by hand, in closed form, and drawn; fleets of unequal replicas."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.conf import TransferConf
from sim.deployment.settings import load_engine
from sim.deployment.topology import lay_out
from sim.event.cluster import Stuck
from sim.event.handover import FREE, HandOverCosts
from sim.event.pool import EnginePool
from sim.event.run import Routing, run_exact, run_fleet
from sim.hardware.read import load_device
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED, REJECTED
from sim.workload.trace import Workload

from .conftest import make_settings, make_table


MS = 1_000_000
H100 = load_device("h100-sxm")
FULL = (GroupShape("full", 16),)
NIC = 50e9


def workload(arrivals_ms, prompts, outputs, **more) -> Workload:
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs), **more)


def drawn_workload(draw, most=25, outputs=30) -> Workload:
    """Up to `most` requests within 100 ms, of up to 150 prompt tokens and `outputs` outputs."""
    count = draw(st.integers(1, most))
    return workload(
        sorted(draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))),
        draw(st.lists(st.integers(1, 150), min_size=count, max_size=count)),
        draw(st.lists(st.integers(1, outputs), min_size=count, max_size=count)),
    )


def constant(base_s):
    return make_table(base_s=base_s, token_s=0.0, row_s=0.0)


def pool(role, base_s=10e-3, blocks=100, *, replicas=1, block_bytes=0.0, table=None, **changes):
    settings = make_settings(profile=load_engine("vllm", "0.33.0").profile, **changes)
    settings.profile.api_pickup_s = 0.0
    return EnginePool(
        settings,
        table or constant(base_s),
        blocks + 1,
        FULL,
        replicas=replicas,
        role=role,
        block_bytes=(block_bytes,),
        name=role,
    )


def disaggregated(work, prefill, decode, costs=FREE, routing=None, **transfer):
    """A run over NICs of 50 GB/s each, one device per replica, every pool in nodes of its own."""
    conf = TransferConf(placement="separate", **transfer)
    topology = lay_out([(p.name, H100, p.replicas, 1) for p in (prefill, decode)], conf, 1.0)
    return run_fleet(work, [prefill, decode], routing or Routing(), topology=topology, costs=costs)


def test_one_request_by_hand():
    """Steps of 10 ms on both sides.

    Prompt 100 with budget 64: two steps, prefilled at 20 ms. 1 ms of hand-over: queued at 21. Blocks are taken at once
    (an empty step); 2 ms of set-up, 7 blocks at 0.1 ms, 0.3 ms of latency: the first byte leaves at 24. 7 blocks of
    50 MB at 50 GB/s: 7 ms, received at 31. Then the first token at 41, the second at 51, the third at 61.
    """
    costs = HandOverCosts(1e-3, 2e-3, 1e-4, 3e-4)
    run = disaggregated(workload([0], [100], [3]), pool("prefill"), pool("decode", block_bytes=50e6), costs)
    t, requests = run.transfers, run.requests
    way = [t.prefilled_ns, t.queued_ns, t.allocated_ns, t.begun_ns, t.received_ns]
    assert [int(column[0]) / MS for column in way] == [20, 21, 21, 24, 31]
    assert (int(t.source[0]), int(t.target[0]), int(t.blocks[0]), int(t.bytes[0])) == (0, 1, 7, 350_000_000)
    assert (requests.first_token_ns[0] / MS, requests.finish_ns[0] / MS) == (41, 61)
    assert (requests.output_tokens[0], set(run.itl_ns.tolist()), run.itl_count.sum()) == (3, {10 * MS}, 2)
    assert run.links.names == ["prefill out", "decode in"]
    assert run.links.bytes.tolist() == [350e6, 350e6]
    assert (run.links.busy_ns / MS).tolist() == [7, 7]
    assert all(run.checks.values())


def test_two_transfers_share_the_nic():
    """Both prompts end in one step at 10 ms; 2 x 4 blocks of 50 MB over one NIC take 8 ms, each of them."""
    run = disaggregated(workload([0, 0], [32, 32], [1, 1]), pool("prefill"), pool("decode", block_bytes=100e6))
    assert (run.transfers.received_ns / MS).tolist() == [18, 18]
    # two prefill instances have a NIC each, but the decode instance's is one: the same
    two = disaggregated(
        workload([0, 0], [32, 32], [1, 1]), pool("prefill", replicas=2), pool("decode", block_bytes=100e6)
    )
    assert (two.transfers.received_ns / MS).tolist() == [18, 18]
    # two on both sides: nobody shares
    four = disaggregated(
        workload([0, 0], [32, 32], [1, 1]), pool("prefill", replicas=2), pool("decode", replicas=2, block_bytes=100e6)
    )
    assert (four.transfers.received_ns / MS).tolist() == [14, 14]


def test_an_oversubscribed_fabric_is_one_more_link():
    """Eight NICs of a node share an uplink of a quarter of their rate, 100 GB/s: four transfers have 25 each."""
    work = workload([0] * 4, [32] * 4, [1] * 4)
    sides = pool("prefill", replicas=4), pool("decode", replicas=4, block_bytes=50e6)
    full = disaggregated(work, *sides)
    narrow = disaggregated(work, *sides, oversubscription=4.0)
    assert (full.transfers.received_ns / MS).tolist() == [12] * 4
    assert (narrow.transfers.received_ns / MS).tolist() == [14] * 4
    assert f"node 0 of {H100.name} out" in narrow.links.names


def test_replicas_of_one_node_use_its_own_links():
    conf = TransferConf()
    topology = lay_out([("prefill", H100, 1, 1), ("decode", H100, 1, 1)], conf, 1.0)
    links = topology.path(0, 1)
    assert [topology.names[link] for link in links] == ["prefill out, in the node", "decode in, in the node"]
    assert [topology.bytes_per_s[link] for link in links] == [H100.scale_up.bytes_per_s] * 2


def test_free_transfers_and_room_for_all_is_prefill_then_decode():
    """Closed form: with free transfers a request is prefilled in a queue of its own, then decoded, one step a token.

    One at a time at the prefill side (budget = prompt), decodes of 2 ms for any batch: prefills end at 10, 20, 30 ms,
    and request i has token j at the first step that begins after that, + 2 ms each. An idle decode side starts at once.
    """
    work = workload([0, 0, 0], [64, 64, 64], [3, 3, 3])
    run = disaggregated(work, pool("prefill"), pool("decode", 2e-3))
    assert (run.requests.first_token_ns / MS).tolist() == [12, 22, 32]
    assert (run.requests.finish_ns / MS).tolist() == [16, 26, 36]


def test_a_full_decode_side_holds_the_prefill_side_up():
    """Back-pressure: 8 blocks there, one request of 100 + 12 tokens at a time; the others hold the other side's blocks.

    The prefill side has blocks for two prompts: the third waits until the first has been read, and is prefilled
    before the first has ended; the fourth waits until the second is read, when the first has ended.
    """
    work = workload([0] * 4, [100] * 4, [12] * 4)
    run = disaggregated(
        work,
        pool("prefill", blocks=14, max_num_batched_tokens=128),
        pool("decode", blocks=8, max_num_batched_tokens=128),
    )
    t, requests = run.transfers, run.requests
    assert (requests.status == FINISHED).all()
    assert t.allocated_ns[1] == requests.finish_ns[0]
    assert requests.scheduled_ns[2] >= t.received_ns[0]
    assert requests.scheduled_ns[3] >= t.received_ns[1]
    assert all(run.checks.values())


def test_what_fits_on_one_side_only_is_refused():
    work = workload([0, 0], [100, 300], [5, 5])
    run = disaggregated(
        work,
        pool("prefill", blocks=40, max_num_batched_tokens=512),
        pool("decode", blocks=10, max_num_batched_tokens=512),
    )
    assert run.requests.status.tolist() == [FINISHED, REJECTED]


@pytest.mark.parametrize("at_arrival", [False, True])
def test_the_decode_instance_is_chosen_before_or_after_the_prefill(at_arrival):
    """Two decode instances; the first request decodes long, the second comes while it does.

    Round robin sends them to 1 and 2 whatever happens; least outstanding too, for the first is still there.
    """
    routing = Routing(decode_router="least_outstanding", at_arrival=at_arrival)
    work = workload([0, 20, 40], [32, 32, 32], [50, 50, 50])
    run = disaggregated(work, pool("prefill"), pool("decode", replicas=2), routing=routing)
    assert run.transfers.target.tolist() == [1, 2, 1]


def test_unequal_replicas_in_one_fleet():
    """Ten times slower replicas of a second pool; least outstanding sends them what the first cannot take at once."""
    fast, slow = pool("both", 1e-3), pool("both", 10e-3)
    work = workload(list(range(0, 40, 2)), [32] * 20, [5] * 20)
    run = run_fleet(work, [fast, slow], Routing("least_outstanding"))
    share = np.bincount(run.requests.replica, minlength=2)
    assert share.sum() == 20
    assert share[0] > share[1] > 0
    step_ms = (run.steps.end_ns - run.steps.start_ns) / MS
    assert set(step_ms[run.steps.replica == 0].tolist()) == {1.0}
    assert set(step_ms[run.steps.replica == 1].tolist()) == {10.0}


def test_only_a_pool_that_can_serve_it_gets_a_request():
    small, large = pool("both", blocks=10), pool("both", blocks=40)
    work = workload([0] * 6, [100, 300] * 3, [5] * 6)
    run = run_fleet(work, [small, large])
    assert (run.requests.status == FINISHED).all()
    assert run.requests.replica[1::2].tolist() == [1, 1, 1]
    assert set(run.requests.replica[::2].tolist()) == {0, 1}


def test_a_fleet_of_one_pool_is_run_exact():
    work = workload([0, 3, 9], [64, 100, 20], [9, 3, 12])
    settings = make_settings(profile=load_engine("vllm", "0.33.0").profile)
    one = run_exact(work, settings, constant(1e-3), num_gpu_blocks=101, replicas=2)
    fleet = run_fleet(work, [EnginePool(settings, constant(1e-3), 101, FULL) for _ in range(2)])
    for name in ("first_token_ns", "finish_ns", "replica"):
        assert (getattr(one.requests, name) == getattr(fleet.requests, name)).all()


@pytest.mark.parametrize("version", ["0.10.2", "0.19.0", "0.33.0"])
@run_settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_drawn_fleets_conserve(version, data):
    """Conservation is checked in the run; a request's times are in order, and the same run is the same to the bit."""
    draw = data.draw
    work = drawn_workload(draw)
    profile = load_engine("vllm", version).profile
    ahead = draw(st.booleans()) and profile.async_by_default
    common = {"profile": profile, "async_scheduling": ahead, "max_num_batched_tokens": draw(st.integers(16, 200))}
    made = [
        EnginePool(
            make_settings(**common),
            constant(draw(st.sampled_from([1e-3, 4e-3]))),
            draw(st.integers(13, 60)),
            FULL,
            replicas=draw(st.integers(1, 3)),
            role=role,
            block_bytes=(draw(st.sampled_from([0.0, 5e6, 1e8])),),
            name=role,
        )
        for role in ("prefill", "decode")
    ]
    costs = HandOverCosts(*(draw(st.sampled_from([0.0, 1e-3])) for _ in range(4)))
    routing = Routing(at_arrival=draw(st.booleans()), decode_router=draw(st.sampled_from(["round_robin", "random"])))
    try:
        first, second = (disaggregated(work, *made, costs, routing) for _ in range(2))
    except Stuck:  # engines hang too where loaded prompts leave nobody room to go on; never where all fit at once
        assert sum(-(-(p + o) // 16) for p, o in zip(work.prompt_tokens, work.output_tokens, strict=True)) >= (
            made[1].num_gpu_blocks - 1
        )
        return
    assert all(first.checks.values())
    done = first.requests.status == FINISHED
    assert first.itl_count.sum() == (first.requests.output_tokens[done] - 1).sum()
    assert (first.requests.finish_ns == second.requests.finish_ns).all()
    assert first.links.bytes[:1].sum() <= first.transfers.bytes[done].sum()


def test_blocks_of_groups_count_by_what_they_hold():
    """A window of 32: of 100 tokens 7 blocks of full attention, and from token 68 on 3 of the window.

    Full attention has 3 of 4 layers: a set-up of 0.1 ms a block of all layers is 0.1 x (7 x 3/4 + 3 x 1/4) = 0.6 ms.
    """
    groups = (GroupShape("full", 16), GroupShape("swa", 16, 32))
    sides = [
        dataclasses.replace(pool(role, max_num_batched_tokens=128), groups=groups, block_bytes=(3e6, 1e6))
        for role in ("prefill", "decode")
    ]
    run = disaggregated(workload([0], [100], [3]), *sides, HandOverCosts(0.0, 0.0, 1e-4, 0.0))
    t = run.transfers
    assert (t.begun_ns - t.allocated_ns).tolist() == [0.6 * MS]
    assert (t.blocks.tolist(), t.bytes.tolist()) == ([10], [7 * 3e6 + 3 * 1e6])


def test_what_a_router_sees_of_the_ways(tmp_path):
    """The first request's 64 blocks of 100 MB are 128 ms on the way to instance 1, from 10 ms on.

    At 30 ms the second is prefilled: to instance 1 it would get half of the 50 GB/s, to instance 2 all.
    """
    path = tmp_path / "seen.py"
    path.write_text(
        f"def make(options, seed):\n    def pick(arrival, targets):\n"
        f"        with open({str(tmp_path / 'rates')!r}, 'a') as file:\n"
        f"            print(*(arrival.rate_to(place) / 1e9 for place in range(len(targets))), file=file)\n"
        f"        return 0\n    return pick\n"
    )
    limits = {"max_num_batched_tokens": 1024, "max_model_len": 2048}
    sides = pool("prefill", replicas=2, **limits), pool("decode", replicas=2, blocks=200, block_bytes=100e6, **limits)
    work = workload([0, 20], [1024, 32], [40, 2])
    run = disaggregated(work, *sides, routing=Routing(decode_router=str(path)))
    assert run.transfers.target.tolist() == [2, 2]
    assert (tmp_path / "rates").read_text().splitlines() == ["50.0 50.0", "25.0 50.0"]

"""KV that leaves layer by layer while the prompt is computed: by hand, by its recurrence, never later than without."""

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.event.handover import HandOverCosts
from sim.event.run import Routing
from sim.report.result import FINISHED

from .test_fleet import MS, disaggregated, drawn_workload, pool, workload


AT_ARRIVAL = Routing(at_arrival=True)
LAYERS = 4


def overlapped(work, prefill, decode, *costs, layers=LAYERS, **more):
    given = HandOverCosts(*(costs or (0.0,) * 4), layers=layers)
    return disaggregated(work, prefill, decode, given, more.pop("routing", AT_ARRIVAL), **more)


@pytest.mark.parametrize(
    ("block_bytes", "setup_s", "received_ms"),
    [
        # 4 blocks of 50 MB at 50 GB/s, a quarter of them a layer: 1 ms each, there at 2.5, 5, 7.5 and 10 ms
        (50e6, 0.0, 11.0),
        # 4 ms each: the first leaves at 2.5, then the link is busy: 6.5, 10.5, 14.5, 18.5
        (200e6, 0.0, 18.5),
        # the first leaves at 5, when the set-up is over, then the link is busy for 16 ms
        (200e6, 5e-3, 21.0),
        # 1 ms each, of which two leave together at 6 ms and the third right after: only the last one shows
        (50e6, 6e-3, 11.0),
        # all wait for the set-up
        (50e6, 12e-3, 16.0),
    ],
)
def test_one_chunk_over_one_link(block_bytes, setup_s, received_ms):
    """Prompt 64 in one step of 10 ms, 4 layers. Without overlap: 10 ms, the set-up, and all of the bytes."""
    sides = pool("prefill"), pool("decode", block_bytes=block_bytes)
    run = overlapped(workload([0], [64], [2]), *sides, 0.0, setup_s, 0.0, 0.0)
    t = run.transfers
    assert t.received_ns[0] / MS == received_ms
    assert t.begun_ns[0] / MS == max(10, setup_s * 1e3)
    assert run.links.bytes.tolist() == [4 * block_bytes] * 2 == [t.bytes[0]] * 2
    assert run.requests.first_token_ns[0] / MS == received_ms + 10
    plain = disaggregated(workload([0], [64], [2]), *sides, HandOverCosts(0.0, setup_s, 0.0, 0.0), AT_ARRIVAL)
    assert plain.transfers.received_ns[0] / MS == 10 + 1e3 * (setup_s + 4 * block_bytes / 50e9)


def test_two_prefills_share_the_link():
    """Two instances send to one: each layer's parts of 1 ms are there for both at once, and take 2 ms together."""
    sides = pool("prefill", replicas=2), pool("decode", block_bytes=50e6)
    run = overlapped(workload([0, 0], [64, 64], [2, 2]), *sides)
    assert (run.transfers.received_ns / MS).tolist() == [12, 12]
    assert run.links.most_flows.tolist() == [1, 2, 1]  # out, in, out: in order of their first use


def test_a_transfer_that_is_over_before_the_decode_instance_has_blocks_does_not_show():
    """The hand-over takes 5 ms, the last part 1: the KV is there when the request comes."""
    run = overlapped(workload([0], [64], [2]), pool("prefill"), pool("decode", block_bytes=50e6), 5e-3, 0.0, 0.0, 0.0)
    t = run.transfers
    assert [int(column[0]) / MS for column in (t.queued_ns, t.allocated_ns, t.begun_ns, t.received_ns)] == [15] * 4


@run_settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_recurrence(data):
    """One request in drawn chunks: the end of the recurrence, between the last part's own time and no overlap."""
    draw = data.draw
    prompt, budget = draw(st.integers(1, 150)), draw(st.integers(16, 80))
    layers, block_bytes = draw(st.integers(1, 9)), draw(st.sampled_from([1e6, 7e6, 5e7, 2e8]))
    setup_s, block_s = draw(st.sampled_from([0.0, 3e-3, 4e-2])), draw(st.sampled_from([0.0, 1e-3]))
    sides = pool("prefill", max_num_batched_tokens=budget), pool("decode", block_bytes=block_bytes)
    work, costs = workload([0], [prompt], [2]), (0.0, setup_s, block_s, 0.0)
    found = int(overlapped(work, *sides, *costs, layers=layers).transfers.received_ns[0])
    plain = int(disaggregated(work, *sides, HandOverCosts(*costs), AT_ARRIVAL).transfers.received_ns[0])
    blocks = -(-prompt // 16)
    end = 1e9 * (setup_s + block_s * blocks)
    for number, first in enumerate(range(0, prompt, budget)):
        part_ns = min(budget, prompt - first) / prompt * blocks * block_bytes / layers / 50
        for layer in range(layers):
            end = max(end, 10 * MS * (number + (layer + 1) / layers)) + part_ns
    assert found == pytest.approx(end, abs=1 + layers * 10)
    prefilled = 10 * MS * -(-prompt // budget)
    assert prefilled + part_ns - 1 <= found <= plain + 1


@run_settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_drawn_fleets_conserve(data):
    """What links carried is what requests were sent, whatever is preempted, shared or awaited."""
    draw = data.draw
    work = drawn_workload(draw, most=20)
    limits = {"max_num_batched_tokens": draw(st.integers(16, 200)), "async_scheduling": draw(st.booleans())}
    sides = [
        pool(
            role,
            draw(st.sampled_from([1e-3, 4e-3])),
            draw(st.integers(13, 60)),
            replicas=draw(st.integers(1, 3)),
            block_bytes=draw(st.sampled_from([5e6, 1e8])),
            **limits,
        )
        for role in ("prefill", "decode")
    ]
    run = overlapped(work, *sides, *(draw(st.sampled_from([0.0, 1e-3])) for _ in range(4)))
    done = run.requests.status == FINISHED
    assert all(run.checks.values())
    sent = sum(run.links.bytes[i] for i, name in enumerate(run.links.names) if " out" in name)
    assert sent == pytest.approx(run.transfers.bytes[done].sum(), rel=1e-9)
    assert (np.diff([run.transfers.allocated_ns, run.transfers.begun_ns, run.transfers.received_ns], axis=0) >= 0).all()

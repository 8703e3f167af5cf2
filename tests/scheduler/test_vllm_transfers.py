"""KV connectors of vLLM: hand-worked loads, held blocks, failures, and that nothing is ever lost.

Blocks of 4 tokens, 4 seats, 64 tokens a batch.
"""

from collections import Counter

import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.hooks import Alone, External
from sim.scheduler.vllm import ConnectedBatching, make_connected, make_rows
from tests.scheduler.vllm_setup import VERSIONS, full, make_request, settings


OLD, NEW = "0.10.2", "0.33.0"


class Pulls(Alone):
    """Every prompt in `remote` was computed elsewhere and is loaded once; the blocks of those in `read` are kept."""

    def __init__(self, remote=(), read=(), recomputes=False):
        self.remote = set(remote)
        self.read = set(read)
        self.recomputes = recomputes
        self.begun = []

    def look_up(self, request, local_tokens):
        if request.index not in self.remote:
            return External()
        return External(request.prompt - local_tokens, loads=True)

    def allocated(self, request, external, blocks):
        if external.loads:
            local = request.prompt - external.tokens
            assert sum(blocks) == -(-request.prompt // 4) - local // 4 or request.tables[1:]
            self.remote.discard(request.index)
            self.begun.append(request.index)

    def keeps(self, request, finished):
        return finished and request.index in self.read


def engine(version, blocks, connector, **changes):
    return make_rows(settings(version, **changes), full(blocks, named=True), connector=connector)


def step(scheduler):
    """One synchronous step: rows as (request, tokens, computed)."""
    batch = scheduler.schedule()
    rows = [(row.request.index, row.tokens, row.computed) for row in batch.rows]
    scheduler.complete(batch)
    return rows


@pytest.mark.parametrize("version", VERSIONS)
def test_a_load_takes_all_its_blocks_but_no_seat_and_no_budget(version):
    # Two prompts of 22 tokens = 6 blocks each, 20 usable: both begin in the first call with one seat, a budget of 22.
    # Once reported, the next call computes token 22, the last one, again: computed 21, and the second has to wait.
    scheduler = engine(version, 20, Pulls({0, 1}), max_num_seqs=1, max_num_batched_tokens=22)
    first, second = (make_request(scheduler, index, 22, 3) for index in (0, 1))
    scheduler.add(first)
    scheduler.add(second)
    assert step(scheduler) == []
    assert (scheduler.free_blocks, scheduler.unfinished, len(scheduler.running)) == (20 - 12, 2, 0)
    assert step(scheduler) == []
    scheduler.transfers.report(received=[first, second])
    assert step(scheduler) == [(0, 1, 21)]
    assert (first.emitted, first.cached, scheduler.free_blocks) == (1, 21, 8)
    for computed in (22, 23):  # tokens 23 and 24 lie in the sixth block
        assert step(scheduler) == [(0, 1, computed)]
    assert step(scheduler) == [(1, 1, 21)]


@pytest.mark.parametrize(("version", "order"), [(OLD, [1, 0]), ("0.19.0", [0, 1]), (NEW, [0, 1])])
def test_the_order_of_loads_flips_in_the_first_version(version, order):
    # Both begin in call 0 and are put back as (1, 0) by 0.10.2, call 1 flips them to (0, 1), call 2 to (1, 0).
    scheduler = engine(version, 20, Pulls({0, 1}))
    requests = [make_request(scheduler, index, 10, 3) for index in (0, 1)]
    for request in requests:
        scheduler.add(request)
    for _ in range(3):
        assert step(scheduler) == []
    scheduler.transfers.report(received=requests)
    assert [index for index, _, _ in step(scheduler)] == order


@pytest.mark.parametrize("version", VERSIONS)
def test_a_prefill_side_holds_its_blocks_until_they_are_read(version):
    # 10 tokens = 3 blocks stay after the only token came; the next prompt, 26 tokens = 7 blocks, does not fit in 9 - 3.
    scheduler = engine(version, 9, Pulls(read={0, 1}))
    first, second = make_request(scheduler, 0, 10, 1), make_request(scheduler, 1, 26, 1)
    scheduler.add(first)
    assert step(scheduler) == [(0, 10, 0)]
    assert (scheduler.unfinished, scheduler.free_blocks) == (0, 6)
    assert scheduler.watches is (version == NEW)  # only 0.33 goes on stepping to hear of it
    scheduler.add(second)
    assert step(scheduler) == []
    scheduler.transfers.report(sent=[first])
    assert scheduler.free_blocks == 9
    assert step(scheduler) == [(1, 26, 0)]
    scheduler.transfers.report(sent=[second])
    assert scheduler.free_blocks == 9


def test_only_the_newest_version_reserves_what_prefills_still_need():
    # A local prompt of 40 tokens gets 8 a call: 2 of its 10 blocks are taken, 8 are still needed, 12 - 2 = 10 free.
    # A load of 12 tokens = 3 blocks fits in 10, but not in 10 - 8.
    for version, begun in (("0.19.0", [1]), (NEW, [])):
        connector = Pulls({1})
        scheduler = engine(version, 12, connector, max_num_batched_tokens=8, long_prefill_token_threshold=4)
        scheduler.add(make_request(scheduler, 0, 40, 2))
        scheduler.add(make_request(scheduler, 1, 12, 2))
        step(scheduler)
        assert connector.begun == begun


@pytest.mark.parametrize("version", VERSIONS)
def test_an_abort_during_a_load_keeps_its_blocks_while_they_are_written(version):
    scheduler = engine(version, 9, Pulls({0}))
    request = make_request(scheduler, 0, 10, 2)
    scheduler.add(request)
    step(scheduler)
    scheduler.abort(request)
    assert scheduler.unfinished == 0
    assert scheduler.free_blocks == (9 if version == OLD else 6)
    scheduler.transfers.report(received=[request])
    assert scheduler.free_blocks == 9


def test_what_failed_to_load_is_computed_here():
    # 10 tokens in blocks 1, 2, 3; block 2 is invalid: 4 tokens are kept, 6 computed in the blocks it has.
    scheduler = engine(NEW, 9, Pulls({0}, recomputes=True))
    request = make_request(scheduler, 0, 10, 2)
    scheduler.add(request)
    step(scheduler)
    assert scheduler.transfers.report([request], invalid_blocks={request.tables[0][1]}) == []
    assert step(scheduler) == [(0, 6, 4)]
    assert scheduler.free_blocks == 6
    # as a whole: its blocks are freed and taken again, and all 10 tokens are computed
    scheduler = engine(NEW, 9, Pulls({0}, recomputes=True))
    request = make_request(scheduler, 0, 10, 2)
    scheduler.add(request)
    step(scheduler)
    assert scheduler.transfers.report([request], failed=[request]) == []
    assert step(scheduler) == [(0, 10, 0)]
    assert scheduler.free_blocks == 6


def test_or_the_request_ends_with_an_error():
    scheduler = engine(NEW, 9, Pulls({0}))
    request = make_request(scheduler, 0, 10, 2)
    scheduler.add(request)
    step(scheduler)
    assert scheduler.transfers.report([request], failed=[request]) == [request]
    assert (request.ended, scheduler.unfinished, scheduler.free_blocks) == (True, 0, 9)


@pytest.mark.parametrize("version", VERSIONS)
@run_settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_nothing_is_lost_whatever_becomes_of_the_transfers(version, data):
    """Drawn pools, loads, local prompts, held blocks, delays, aborts, failures: all end once, all blocks come back."""
    draw = data.draw
    count = draw(st.integers(1, 8))
    roles = draw(st.lists(st.sampled_from(["local", "remote", "read"]), min_size=count, max_size=count))
    windowed = version != OLD and draw(st.booleans())
    groups = (GroupShape("full", 4), GroupShape("swa", 4, 8)) if windowed else (GroupShape("full", 4),)
    connector = Pulls(
        {i for i, role in enumerate(roles) if role == "remote"},
        {i for i, role in enumerate(roles) if role == "read"},
        recomputes=draw(st.booleans()),
    )
    config = settings(version, max_num_batched_tokens=draw(st.integers(4, 32)))
    blocks = draw(st.integers(26, 60))
    scheduler = make_rows(config, CacheShape(blocks, True, groups), connector=connector)
    requests = [
        make_request(scheduler, i, draw(st.integers(1, 40)), 1 if role == "read" else draw(st.integers(1, 8)))
        for i, role in enumerate(roles)
    ]
    delay = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    fails = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    dies = draw(st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=count, max_size=count))
    fails = [fail and version == NEW and not windowed for fail in fails]
    ends, due, held, begun = Counter(), {}, set(), 0
    for call in range(400):
        if call < count:
            scheduler.add(requests[call])
        for request, at in zip(requests, dies, strict=True):
            if at == call and request.index <= call and not ends[request.index]:
                scheduler.abort(request)
                ends[request.index] += 1
        batch = scheduler.schedule()
        ends.update(request.index for request in scheduler.complete(batch))
        for index in connector.begun[begun:]:
            due[index] = call + delay[index]
        begun = len(connector.begun)
        received = [requests[index] for index, at in due.items() if at == call]
        failed = [request for request in received if fails[request.index]]
        sent = [request for request in requests if request.index in held]
        held = {
            request.index
            for request in requests
            if roles[request.index] == "read" and request in scheduler.transfers.held and request not in sent
        }
        ends.update(request.index for request in scheduler.transfers.report(received, sent, (), failed))
        if call >= count and not scheduler.unfinished and not scheduler.transfers.held:
            break
    assert ends == Counter(range(count))
    assert scheduler.free_blocks == blocks
    assert not scheduler.transfers.loading


SAID = ("prefill_tokens", "prefill_chunks", "prefill_area", "decodes", "decode_sum", "decode_max", "decode_sumsq")
SAID += ("emitting", "running", "waiting", "free_blocks")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("version", ["0.19.0", "0.33.0"])
@run_settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_fast_path_decides_the_same(version, named, asynchronous, data):
    """Drawn loads, local prompts, held blocks and delays: both schedulers decide every batch alike."""
    draw = data.draw
    count = draw(st.integers(1, 8))
    roles = draw(st.lists(st.sampled_from(["local", "remote", "read"]), min_size=count, max_size=count))
    sizes = [(draw(st.integers(1, 40)), 1 if role == "read" else draw(st.integers(1, 12))) for role in roles]
    families = [draw(st.one_of(st.none(), st.integers(0, 1))) for _ in roles]
    delay = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    config = settings(version, asynchronous=asynchronous, max_num_batched_tokens=draw(st.integers(4, 32)))
    shape = full(draw(st.integers(14, 40)), named=named)
    sides = []
    for make in (make_connected, lambda *given: make_rows(*given[:2], connector=given[2])):
        connector = Pulls(
            {i for i, role in enumerate(roles) if role == "remote"},
            {i for i, role in enumerate(roles) if role == "read"},
        )
        scheduler = make(config, shape, connector)
        requests = [
            make_request(scheduler, i, *size, family=family)
            for i, (size, family) in enumerate(zip(sizes, families, strict=True))
        ]
        sides.append(drive(scheduler, connector, requests, delay, 2 if asynchronous else 1))
    fast, slow = sides
    assert isinstance(make_connected(config, shape, Pulls()), ConnectedBatching)
    assert fast == slow


def drive(scheduler, connector, requests, delay, depth):
    """What each call decided; loads end `delay` calls after they began, held blocks are read in the call after."""
    said, due, begun, open_batches = [], {}, 0, []
    read = {}
    for call in range(300):
        if call < len(requests):
            scheduler.add(requests[call])
        batch = scheduler.schedule()
        said.append(
            [getattr(batch, name) for name in SAID]
            + [[request.index for request in batch.admitted], [request.index for request in batch.preempted]]
        )
        open_batches.append(batch)
        ended = scheduler.complete(open_batches.pop(0)) if len(open_batches) == depth else []
        said.append([request.index for request in ended])
        for index in connector.begun[begun:]:
            due[index] = call + delay[index]
        begun = len(connector.begun)
        received = [requests[index] for index, at in due.items() if at == call]
        sent = [requests[index] for index, at in read.items() if at == call]
        read |= {request.index: call + 1 for request in ended if request.index in connector.read}
        scheduler.report(received, sent)
    assert scheduler.free_blocks == scheduler.usable_blocks
    assert scheduler.unfinished == 0
    return said

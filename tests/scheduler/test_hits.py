"""Prefix-cache look-ups as engines count them, and requests taken out of the fast path."""

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.event.batch_queue import BatchQueue
from sim.memory.blocks import CountedBlocks
from sim.memory.hits import HitStats
from sim.memory.prefix import PrefixBlocks
from sim.scheduler.vllm import make_fast, make_rows
from sim.scheduler.vllm.continuous import ContinuousBatching, DecodingRequest
from tests.scheduler.vllm_setup import VERSIONS, full, make_request, settings


def scheduler_of(blocks, **changes):
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128} | changes
    return ContinuousBatching(blocks, **options)


def request_of(index, prompt, outputs, first=0):
    return DecodingRequest(index, prompt, outputs, np.arange(first, first + prompt))


@pytest.mark.parametrize("repeated", [False, True], ids=["schedule", "repeat"])
@pytest.mark.parametrize("count_refused", [True, False], ids=["every try", "admissions"])
def test_a_blocked_head_tried_again(repeated, count_refused):
    """Ten blocks of 4. Request 0 takes 4 for 13 tokens, with 9 outputs; request 1 begins alike and has 32.

    Call 1 admits 0 (13 asked, none found) and tries 1 (32 asked, 3 whole blocks found: 12 tokens): 5 of its 8 blocks
    are new and 6 are free, so it enters; request 2 (40 tokens, all unlike) needs 10, so it is refused.
    Calls 2 to 4 refuse it again. In call 2 contexts are 14 and 33, and request 1 takes its ninth block; in call 3 no
    block is taken or filled, so it repeats call 2; in call 4 context 16 fills a block.
    """
    scheduler = scheduler_of(
        PrefixBlocks(10, 4), max_num_seqs=3, max_num_batched_tokens=120, count_refused=count_refused
    )
    scheduler.add(request_of(0, 13, 9))
    scheduler.add(request_of(1, 32, 9))
    scheduler.add(request_of(2, 40, 2, first=1000))
    tries = 40 if count_refused else 0
    first = scheduler.schedule()
    assert [r.index for r in first.admitted] == [0, 1]
    assert scheduler.hit_stats == HitStats(2 + count_refused, 45 + tries, 12)
    scheduler.complete(first)
    second = scheduler.schedule()
    assert scheduler.hit_stats == HitStats(2 + 2 * count_refused, 45 + 2 * tries, 12)
    scheduler.complete(second)
    if repeated:
        assert second.plain and scheduler.repeat(second)
    else:
        scheduler.complete(scheduler.schedule())
    assert scheduler.hit_stats == HitStats(2 + 3 * count_refused, 45 + 3 * tries, 12)
    assert not scheduler.repeat(second)  # a block is filled


def test_no_look_up_without_a_seat_a_budget_or_after_a_preemption():
    """Seats full: request 2 is not looked at. Two decodes use up a budget of 2: nor is it then. Nor in the call that
    preempts: it is tried again in the next one, counted apart, with what it had emitted."""
    seats = scheduler_of(PrefixBlocks(20, 4), max_num_seqs=1)
    for index in (0, 1):
        seats.add(request_of(index, 4, 5, first=100 * index))
    seats.complete(seats.schedule())
    seats.complete(seats.schedule())
    assert seats.hit_stats == HitStats(1, 4, 0)

    budget = scheduler_of(PrefixBlocks(20, 4), max_num_batched_tokens=2)
    for index in (0, 1, 2):
        budget.add(request_of(index, 1, 5, first=100 * index))
    budget.complete(budget.schedule())
    assert budget.hit_stats == HitStats(2, 2, 0)
    budget.complete(budget.schedule())
    assert budget.hit_stats == HitStats(2, 2, 0)

    # five blocks of 4: both prompts of 8 take two, and in call 2 each wants a third
    short = scheduler_of(PrefixBlocks(5, 4))
    for index in (0, 1):
        short.add(request_of(index, 8, 6, first=100 * index))
    short.complete(short.schedule())
    assert short.hit_stats == HitStats(2, 16, 0)
    preempting = short.schedule()
    assert [r.index for r in preempting.preempted] == [1]
    assert short.hit_stats == HitStats(2, 16, 0)
    short.complete(preempting)
    # its 8 prompt tokens and one output: two whole blocks are still there, and it needs a third
    assert not short.schedule().preempted
    assert short.hit_stats == HitStats(2, 16, 0, 1, 9, 8)


def test_nothing_is_counted_without_reuse():
    for blocks in (CountedBlocks(10, 4), PrefixBlocks(10, 4, reuse=False)):
        scheduler = scheduler_of(blocks)
        for index in (0, 1):
            scheduler.add(request_of(index, 30, 4))
        scheduler.complete(scheduler.schedule())
        assert scheduler.hit_stats == HitStats()


def test_requests_passed_over_keep_turning_in_repeated_calls():
    """vLLM 0.10 puts requests passed over back in reversed order, in every call, also in one that repeats the last."""
    orders = []
    for repeats in (True, False):
        scheduler = scheduler_of(
            CountedBlocks(100, 16),
            max_num_batched_tokens=10,
            max_model_len=10,
            chunked_prefill=False,
            skip_oversized=True,
        )
        scheduler.add(DecodingRequest(0, 1, 9))
        batch = scheduler.schedule()
        scheduler.complete(batch)
        for index in (1, 2, 3):
            scheduler.add(DecodingRequest(index, 10, 1))
        batch = scheduler.schedule()
        for _ in range(3):
            scheduler.complete(batch)
            if not (repeats and scheduler.repeat(batch)):
                batch = scheduler.schedule()
        orders.append([request.index for request in scheduler.waiting])
    assert orders[0] == orders[1] == [1, 2, 3]


drawn = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 60), st.integers(1, 40), st.sampled_from([None, 0, 1]), st.integers(0, 60)
    ),
    min_size=1,
    max_size=12,
)


def start(make, config, shape, rows):
    scheduler = make(config, shape)
    queue = BatchQueue(scheduler, config.batches_in_flight, not config.profile.nonempty_batch_returns)
    return queue, [make_request(scheduler, i, row[1], row[2], 0, row[3]) for i, row in enumerate(rows)]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("version", VERSIONS)
@hypothesis_settings(deadline=None, max_examples=60)
@given(
    rows=drawn,
    chunked=st.booleans(),
    seats=st.integers(1, 6),
    spare=st.sampled_from([0, 2, 8, 30]),
    aborting=st.booleans(),
)
def test_look_ups_are_counted_as_row_by_row(version, asynchronous, rows, chunked, seats, spare, aborting):
    """The fast path, repeated calls and aborts included, against the scheduler that makes every look-up.

    Both are driven call by call: what is counted, free and left must agree after each one.
    """
    config = settings(
        version,
        asynchronous=asynchronous,
        chunked_prefill=chunked,
        max_num_seqs=seats,
        max_num_batched_tokens=32 if chunked else 100,
        max_model_len=100,
    )
    shape = full(26 + spare, named=True)
    fast, fast_requests = start(make_fast, config, shape, rows)
    slow, slow_requests = start(make_rows, config, shape, rows)
    arriving = [(row[0], i) for i, row in enumerate(rows)]
    dying = [(row[0] + row[4], i) for i, row in enumerate(rows) if aborting and row[4] < 30]
    gone: set[int] = set()
    last, waits, repeated = None, False, 0
    for call in range(3000):
        quiet = not any(at == call for at, _ in arriving + dying)
        if waits and quiet and last is not None and last.plain and fast.in_flight[0].plain and fast.repeat(last):
            repeated += 1
            slow.complete()
            assert slow.issue().tokens == last.tokens
        else:
            if waits:
                ended, same = fast.complete()[1], slow.complete()[1]
                assert sorted(r.index for r in ended) == sorted(r.index for r in same)
                gone |= {request.index for request in ended}
            for _, i in (pair for pair in arriving if pair[0] == call):
                fast.scheduler.add(fast_requests[i])
                slow.scheduler.add(slow_requests[i])
            for _, i in (pair for pair in dying if pair[0] == call):
                if i not in gone:
                    fast.abort(fast_requests[i])
                    slow.abort(slow_requests[i])
                    gone.add(i)
            last, issued = fast.issue(), slow.issue()
            assert (last is None) == (issued is None)
            waits = fast.waits(last)
            assert waits == slow.waits(issued)
            if last is not None:
                assert (last.tokens, last.running, last.waiting) == (issued.tokens, issued.running, issued.waiting)
                assert last.decode_sum + last.prefill_kv_tokens == issued.decode_sum + issued.prefill_kv_tokens
        assert fast.scheduler.hit_stats == slow.scheduler.hit_stats
        assert fast.scheduler.free_blocks == slow.scheduler.free_blocks
        if len(gone) == len(rows) and not fast.in_flight:
            break
    assert fast.scheduler.unfinished == slow.scheduler.unfinished == 0
    assert fast.scheduler.free_blocks == fast.scheduler.usable_blocks


def test_abort_wherever_a_request_is():
    """Waiting, partly prefilled, decoding, and with its last token under way: blocks are free, nothing is reported."""
    scheduler = scheduler_of(CountedBlocks(20, 4), max_num_batched_tokens=16, register_on_output=True)
    decoding, last, partial, waiting = (
        DecodingRequest(i, p, o) for i, (p, o) in enumerate([(4, 9), (4, 2), (40, 3), (9, 3)])
    )
    for request in (decoding, last, partial, waiting):
        scheduler.add(request)
    first = scheduler.schedule()
    assert [r.index for r in first.admitted] == [0, 1, 2]  # 4 + 4 + 8 tokens
    assert (scheduler.unfinished, scheduler.free_blocks) == (4, 20 - 1 - 1 - 2)
    second = scheduler.schedule()  # before the first one's output: request 1 gets its last token from it
    assert [r.index for r in second.finishing] == [1] and second.decodes == 2
    assert scheduler.free_blocks == 20 - 2 - 2 - 6
    scheduler.abort(last)
    scheduler.abort(partial)
    scheduler.abort(waiting)
    assert (scheduler.unfinished, scheduler.free_blocks) == (1, 18)
    assert not scheduler.repeat(second)
    assert scheduler.complete(first) == []
    assert [r.index for r in first.emitted] == [0]  # not request 1, which is gone
    assert scheduler.complete(second) == []
    third = scheduler.schedule()
    assert (third.decodes, third.decode_sum, third.decode_max) == (1, 6, 6)
    scheduler.abort(decoding)
    assert (scheduler.unfinished, scheduler.free_blocks) == (0, 20)
    scheduler.complete(third)
    assert scheduler.schedule().tokens == 0


def test_abort_of_a_preempted_request_whose_last_token_is_under_way():
    """Two blocks of 2. Request 1 (one token, two outputs) got its last token from call 2; call 3 preempts it for
    request 0; then it is aborted, and the output of call 2 reports nobody."""
    scheduler = scheduler_of(CountedBlocks(2, 2), register_on_output=True)
    requests = [DecodingRequest(0, 1, 4), DecodingRequest(1, 1, 2)]
    for request in requests:
        scheduler.add(request)
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.complete(first)
    third = scheduler.schedule()
    assert [r.index for r in third.preempted] == [1] and [r.index for r in second.finishing] == [1]
    scheduler.abort(requests[1])
    assert scheduler.complete(second) == []
    assert scheduler.unfinished == 1

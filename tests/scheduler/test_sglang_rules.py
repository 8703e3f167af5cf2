"""SGLang's rules, one by one, in cases small enough to work out by hand."""

import dataclasses

import numpy as np
import pytest

from sim.deployment.rules import SglangRules
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.options import read_options
from sim.scheduler.sglang import Options, make, most_batch_tokens
from sim.scheduler.sglang.pool import TokenPool
from sim.scheduler.sglang.ratio import NewTokenRatio
from sim.scheduler.sglang.retraction import retraction_order
from tests.event.conftest import make_settings
from tests.scheduler.sglang_drive import request, scheduler, turn


def names(requests):
    return [r.index for r in requests]


def prefilled(batch):
    return [(row.request.index, row.tokens, row.computed, row.kind) for row in batch.rows]


def test_the_ratio_decays_in_600_steps_and_starts_again():
    ratio = NewTokenRatio(1.0)
    assert ratio.value == 0.7 and ratio.least == pytest.approx(0.098)
    ratio.step()
    assert ratio.value == pytest.approx(0.7 - 0.602 / 600)
    for _ in range(700):
        ratio.step()
    assert ratio.value == ratio.least
    # 3 rows that have 30 of 299 tokens: (30 + 20 x 3) / (299 + 1)
    ratio.retracted(3, 30, 299)
    assert ratio.value == 0.3
    ratio.retracted(3, 300, 299)
    assert ratio.value == 1.0
    ratio.reset()
    assert ratio.value == 0.7
    assert NewTokenRatio(2.0).initial == 1.0


@pytest.mark.parametrize(("outputs", "admitted"), [(39, [1]), (40, [])])
def test_admission_wants_strictly_less_than_there_is(outputs, admitted):
    made = scheduler(100)
    made.add(request(0, 10, 30))
    turn(made)
    # 90 free, the running request may want 29 more: 61 left. 20 + outputs + a page of 1 must be below that.
    made.add(request(1, 20, outputs))
    batch, _ = turn(made)
    assert names(batch.admitted) == admitted
    assert made.full == (not admitted)


def test_the_maximum_is_cut_so_that_one_request_alone_fits():
    made = scheduler(160, 16, context_len=100)
    long = request(0, 40, 500)
    made.add(long)
    # context: 99 - 40 - 1 = 58; pool: 160 - 48 - 16 - 1 = 95
    assert (long.max_new, long.outputs) == (58, 58)
    wide = request(1, 90, 500)
    scheduler(160, 16, context_len=1000).add(wide)
    # pool: 159 - 90 - 1 = 68, and 160 - 96 - 16 - 1 = 47
    assert wide.max_new == 47
    assert made.servable_tokens(40, 500) == 58
    assert made.servable_tokens(94, 1) is None and made.servable_tokens(93, 1) == 1
    assert made.servable_tokens(10, 0) is None


def test_admission_stays_closed_until_somebody_leaves():
    made = scheduler(2000)
    made.enter(request(0, 10, 5), 1000, False)
    turn(made)
    # 1990 - 0.7 x 999 = 1290.7 left; 1000 + 290 + 1 = 1291 does not fit
    made.enter(request(1, 1000, 1), 290, False)
    batch, _ = turn(made)
    assert batch.mode == "decode" and made.full
    # a step later the ratio has come down: 1988 - (0.7 - 0.602/600 x 2) x 997 > 1291 would fit, but nobody looks
    for _ in range(2):
        batch, _ = turn(made)
        assert batch.mode == "decode" and batch.waiting == 1
        assert made.pool.available - made.ratio.value * 997 > 1291
    batch, ended = turn(made)
    assert names(ended) == [0]
    batch, _ = turn(made)
    assert names(batch.admitted) == [1]


def test_retraction_takes_the_last_and_sets_the_ratio():
    made = scheduler(200, reuse=False, schedule_conservativeness=0.05)
    for index, prompt in ((0, 20), (1, 20), (2, 30)):
        made.enter(request(index, prompt, 150), 150, False)
    turns = [turn(made)[0] for _ in range(3)]
    # 0: 20 + 150 + 1 < 200, then nothing more. 1: 180 - 0.035 x 149 = 174.8 > 171. Then admission is closed.
    assert [names(batch.admitted) for batch in turns] == [[0], [1], []]
    # 160 free tokens are 80 decodes of two rows; the 81st has none. Both have 81 tokens: the later one goes.
    for _ in range(79):
        batch, _ = turn(made)
        assert not batch.retracted and batch.decodes == 2
    batch, _ = turn(made)
    assert names(batch.retracted) == names(batch.preempted) == [1]
    assert (batch.mode, batch.decodes, batch.decode_sum) == ("decode", 1, 101)
    assert names(made.waiting) == [2, 1]
    assert made.ratio.value == (81 + 20) / (150 + 1)
    assert made.pool.free == 200 - 101


def test_victims_have_few_outputs_then_long_prompts_then_late_places():
    rows = [request(i, prompt, 50, priority) for i, prompt, priority in ((0, 9, 0), (1, 10, 1), (2, 20, 0), (3, 20, 0))]
    out = {0: 5, 1: 3, 2: 3, 3: 3}
    assert names(retraction_order(rows, lambda r: out[r.index], None)) == [0, 1, 2, 3]
    # by priority first (a high value is urgent): 1 is the last to go
    assert names(retraction_order(rows, lambda r: out[r.index], lambda r: -r.priority)) == [1, 0, 2, 3]


def test_equal_prompts_of_one_batch_are_all_computed():
    made = scheduler(100)
    ids = np.arange(10)
    for index in (0, 1):
        made.add(request(index, 10, 5, content=ids))
    batch, _ = turn(made)
    assert prefilled(batch) == [(0, 10, 0, "n"), (1, 10, 0, "n")]
    # one copy is kept, the other freed
    assert (made.pool.free, made.pool.tree.tokens, made.pool.tree.evictable) == (90, 10, 0)
    made.add(request(2, 10, 5, content=ids))
    batch, _ = turn(made)
    # all but the last token are found
    assert prefilled(batch) == [(2, 1, 9, "n")]
    assert (made.hit_stats.queries, made.hit_stats.hits) == (30, 9)


def test_chunks_and_the_next_prompt_in_one_batch():
    made = scheduler(400, 16, chunk=64)
    made.add(request(0, 100, 3))
    made.add(request(1, 20, 3))
    made.add(request(2, 50, 3))
    batches = [turn(made)[0] for _ in range(4)]
    assert prefilled(batches[0]) == [(0, 64, 0, "n")] and batches[0].emitting == 0
    # 36 tokens are charged as 48, which leaves 16 of the chunk; of the 20 of request 1 a whole page is taken
    assert prefilled(batches[1]) == [(0, 36, 64, "c"), (1, 16, 0, "n")]
    # its rest of 4 costs 16; then 48 of the 50 of request 2
    assert prefilled(batches[2]) == [(1, 4, 16, "c"), (2, 48, 0, "n")]
    assert prefilled(batches[3]) == [(2, 2, 48, "c")]
    assert [batch.running for batch in batches] == [0, 0, 1, 2]
    assert batches[1].prefill_area == 36 * 64 + 36 * 37 // 2 + 16 * 17 // 2


def test_without_chunks_a_prompt_may_overrun_the_budget_alone():
    made = scheduler(1000, chunk=None, max_prefill_tokens=100)
    for index, prompt in enumerate((60, 39, 150)):
        made.add(request(index, prompt, 2))
    assert prefilled(turn(made)[0]) == [(0, 60, 0, "n"), (1, 39, 0, "n")]
    assert prefilled(turn(made)[0]) == [(2, 150, 0, "n")]


def test_mixed_batches_carry_the_decodes_and_rotate_them():
    made = scheduler(1000, enable_mixed_chunk=True)
    made.add(request(0, 10, 9))
    turn(made)
    made.add(request(1, 20, 9))
    batch, _ = turn(made)
    assert (batch.mode, prefilled(batch), names(batch.decoding.values())) == ("mixed", [(1, 20, 0, "n")], [0])
    assert (batch.running, batch.emitting, batch.decode_sum) == (0, 2, 11)
    assert batch.follows == {0: 1}
    batch, _ = turn(made)
    # those that were prefilled come first
    assert (batch.mode, names(batch.decoding.values())) == ("decode", [1, 0])
    assert made.ratio.value == pytest.approx(0.7 - 0.602 / 600)


def test_overlap_sees_lengths_in_time_and_eos_a_step_late():
    made = scheduler(100, overlap=True)
    made.enter(request(0, 10, 3), 3, True)
    first = [made.schedule() for _ in range(2)]
    assert made.complete(first[0]) == []
    last = made.schedule()
    made.complete(first[1])
    idle = made.schedule()
    # its third token is under way: no further row
    assert (last.decodes, idle.mode, idle.idle) == (1, "idle", False)
    assert names(made.complete(last)) == [0]
    assert made.pool.tree.tokens == 12  # the last token has no KV
    made.enter(request(1, 10, 3), 50, False)
    batches = [made.schedule() for _ in range(2)]
    made.complete(batches[0])
    batches.append(made.schedule())
    made.complete(batches[1])
    batches.append(made.schedule())
    assert names(made.complete(batches[2])) == [1]
    # EOS came with the third token while a fourth row was under way
    assert names(batches[3].dropped) == [1] and batches[3].follows == {}
    assert made.pool.tree.tokens == 12 + 13
    assert made.unfinished == 0 and made.schedule().idle is False
    assert made.complete(batches[3]) == []


def test_nothing_left_resets_the_ratio():
    made = scheduler(100)
    made.add(request(0, 10, 5))
    for _ in range(5):
        turn(made)
    assert made.ratio.value < 0.7 and made.unfinished == 0
    made.idle()
    assert made.ratio.value == 0.7


def test_priority_takes_a_seat_only_by_more_than_the_threshold():
    def run(priority):
        made = scheduler(1000, max_running=1, enable_priority_scheduling=True)
        made.add(request(0, 10, 9, priority=0))
        turn(made)
        made.add(request(1, 10, 9, priority=priority))
        return made, turn(made)[0]

    made, batch = run(11)
    assert (names(batch.preempted), batch.retracted, prefilled(batch)) == ([0], [], [(1, 10, 0, "n")])
    assert names(made.waiting) == [0] and made.waiting[0].preemptions == 1
    _, batch = run(10)
    assert (list(batch.preempted), batch.mode) == ([], "decode")


def test_several_victims_queue_again_as_they_were_selected():
    made = scheduler(
        100, max_running=2, enable_priority_scheduling=True, priority_scheduling_preemption_threshold=0, ignore_eos=True
    )
    for index in (0, 1):
        made.add(request(index, 5, 30, priority=1))
        turn(made)
    turn(made)
    # 2 wants 10 + 80: both must go. Of equals the latest enqueued is selected first
    made.add(request(2, 10, 80, priority=20))
    batch, _ = turn(made)
    assert names(batch.preempted) == [1, 0] and names(made.waiting) == [1, 0]
    assert prefilled(batch) == [(2, 10, 0, "n")]


def test_no_second_prompt_is_cut():
    made = scheduler(1024, 16, chunk=64, enable_mixed_chunk=True, reuse=False, ignore_eos=False)
    made.enter(request(0, 64, 5), 5, True)
    turn(made)
    # 63 tokens beside one decode row: the first takes 48, whole pages; the second would be cut to the other 15
    made.enter(request(1, 96, 1), 1, False)
    made.enter(request(2, 78, 1), 1, True)
    assert prefilled(turn(made)[0]) == [(1, 48, 0, "n")]
    ended = []
    for _ in range(12):
        ended += names(turn(made)[1])
    assert sorted(ended) == [0, 1, 2] and made.free_blocks == made.usable_blocks


def test_longest_prefix_first_and_likely_hits_last():
    made = scheduler(2000, policy="lpm")
    stored = np.arange(100)
    made.add(request(0, 100, 1, content=stored))
    turn(made)
    alike = np.arange(40) + 500
    contents = [np.arange(60) + 900, alike, np.concatenate([alike, [1]]), np.concatenate([stored[:50], [7, 8]])]
    for index, ids in enumerate(contents, 1):
        made.add(request(index, len(ids), 2, content=ids))
    # 4 has 50 cached tokens; 3 shares 40 with 2, which is not computed yet
    assert prefilled(turn(made)[0]) == [(4, 2, 50, "n"), (1, 60, 0, "n"), (2, 40, 0, "n"), (3, 41, 0, "n")]


def test_depth_first_serves_the_fullest_branch_first():
    made = scheduler(2000, policy="dfs-weight")
    left, right = np.arange(50), np.arange(50) + 500
    for index, ids in enumerate((left, right)):
        made.add(request(index, 50, 1, content=ids))
    turn(made)
    for index, ids in ((2, left), (3, right), (4, right), (5, np.array([9]))):
        made.add(request(index, len(ids) + 1, 2, content=np.append(ids, index)))
    batch, _ = turn(made)
    # two wait below `right`, one below `left`, one at the root
    assert names(batch.admitted) == [3, 4, 2, 5]


def test_response_ratio_and_shortest_prefill():
    made = scheduler(3000, policy="hrrn", max_running=1)
    for index, prompt in enumerate((30, 500, 20)):
        made.add(request(index, prompt, 1))
    turn(made)
    # nothing had been computed, so the first in line went; since then 30 tokens: 30/20 > 30/500
    assert names(turn(made)[0].admitted) == [2]
    made = scheduler(3000, policy="shortest-prefill-first", chunk=64)
    made.add(request(0, 200, 2))
    turn(made)
    made.add(request(1, 16, 2))
    made.add(request(2, 150, 2))
    # the cut prompt leaves 16 of its 64 tokens to the shorter one; no second prompt is cut
    assert prefilled(turn(made)[0]) == [(0, 48, 64, "c"), (1, 16, 0, "n")]


def test_without_radix_cache_ends_are_looked_ahead():
    made = scheduler(100, reuse=False)
    made.add(request(0, 10, 30))
    turn(made)
    # request 0 wants 29 more and then frees 11. 90 - 21 = 69 left after the 20 tokens and a page of request 1.
    # Together they want 29 each until the first ends: 69 - 2 x 29 = 11 > 2; then 69 + 11 - 50 = 30 > 1
    made.add(request(1, 20, 50))
    assert names(turn(made)[0].admitted) == [1]
    made.add(request(2, 5, 40))
    # 69 - 6 = 63 left with it, 29 + 49 + 40 wanted: 63 - 3 x 29 < 0
    assert turn(made)[0].mode == "decode" and made.full


def test_older_versions_charge_no_page():
    old = dataclasses.replace(SglangRules(), reserve_page=False)
    for rules, admitted in ((SglangRules(), []), (old, [1])):
        made = scheduler(100, rules=rules)
        made.add(request(0, 10, 30))
        turn(made)
        made.add(request(1, 20, 40))
        assert names(turn(made)[0].admitted) == admitted


def test_a_pool_that_a_prefill_exhausts_is_said():
    pool = TokenPool(70, 16)
    pool.extend(0, 33)
    assert (pool.tokens, pool.free) == (64, 16)
    pool.extend(33, 48)
    with pytest.raises(ValueError, match="finds the KV pool of 64 tokens exhausted, at which SGLang stops"):
        pool.extend(0, 17)


def settings(**changes):
    return make_settings(name="sglang", max_num_batched_tokens=8192, **{"prefix_caching": True, **changes})


def shape(blocks, size=16):
    return CacheShape(blocks, True, (GroupShape("full", size),))


def test_make_reads_the_settings():
    made = make(settings(scheduling_policy="lpm", scheduler_options={"enable_mixed_chunk": True}), shape(100))
    assert (made.usable_blocks, made.pool.tokens, made.pool.page_size) == (100, 1600, 16)
    assert (made.max_running, made.context_len, made.chunk, made.mixed) == (8, 512, 8192, True)
    assert (made.order.policy, made.overlap) == ("lpm", False)
    assert make(settings(batches_in_flight=2), shape(100)).overlap
    assert not make(settings(prefix_caching=False), shape(100)).pool.reuse
    assert make(settings(chunked_prefill=False), shape(100)).chunk is None


def test_running_requests_follow_the_pool_where_not_given():
    given = settings(max_num_seqs=4096, max_model_len=4096)
    # 512 x 24,000 / 4,096 = 3,000 between 2,048 and 4,096
    assert make(given, shape(1500)).max_running == 3000
    assert make(given, shape(15)).max_running == 120  # half the tokens of the pool
    user = dataclasses.replace(given, max_num_seqs=7, origin={"max_num_seqs": "user"})
    assert make(user, shape(1500)).max_running == 7


def test_the_largest_batch():
    assert most_batch_tokens(settings()) == 8192
    assert most_batch_tokens(settings(chunked_prefill=False)) == 16384 + 512


@pytest.mark.parametrize(
    ("options", "policy", "said"),
    [
        ({"mixed": True}, "fcfs", "scheduler_options.mixed is no option of the scheduler sglang"),
        ({"enable_mixed_chunk": 1}, "fcfs", "enable_mixed_chunk wants true or false, got 1"),
        ({"schedule_conservativeness": -1.0}, "fcfs", "schedule_conservativeness must be at least 0, got -1"),
        ({"max_prefill_tokens": 0}, "fcfs", "max_prefill_tokens must be at least 1"),
        ({"retraction_policy": "newest"}, "fcfs", "retraction_policy must be one of length, priority, got 'newest'"),
        ({"max_new_tokens": 5}, "fcfs", "max_new_tokens .* wants ignore_eos=false"),
        ({"disable_priority_preemption": True}, "fcfs", "no effect without enable_priority_scheduling"),
        ({"enable_priority_scheduling": True}, "lpm", "goes with the policies fcfs and lof, got .*lpm"),
        ({"disable_radix_cache": True}, "shortest-prefill-first", "needs the radix cache"),
    ],
)
def test_mistakes_in_the_options(options, policy, said):
    with pytest.raises(ValueError, match=said):
        make(settings(scheduler_options=options, scheduling_policy=policy), shape(100))


def test_mistakes_in_the_settings():
    with pytest.raises(ValueError, match="whole pages of 16 tokens, got 8,190: change"):
        make(dataclasses.replace(settings(), max_num_batched_tokens=8190), shape(100))
    with pytest.raises(ValueError, match="at most 2 batches in flight, got 3: set deployment.pipeline_parallel"):
        make(settings(batches_in_flight=3), shape(100))
    assert read_options(Options, {}).retraction_policy == "length"


@pytest.mark.parametrize("late", [0, 4, 9])
def test_new_requests_are_looked_for_every_so_many_turns(late):
    made = scheduler(1000, scheduler_recv_interval=10)
    made.add(request(0, 10, 100))
    turn(made)  # at rest: seen at once, and prefilled
    turn(made)  # a prefill counts as 1,000 turns: looked for, nobody there
    for _ in range(late):
        turn(made)
    made.add(request(1, 10, 5))
    seen = next(turns for turns in range(1, 20) if names(turn(made)[0].admitted))
    # the tenth decoding turn after the last look
    assert late + seen == 10

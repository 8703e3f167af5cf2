"""The rules of vLLM's scheduler one by one, worked by hand. Blocks hold 4 tokens; 4 seats, 64 tokens a batch."""

import pytest

from sim.deployment.check import check_conf
from sim.deployment.settings import load_engine
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.hooks import Alone, Drafting, External
from sim.scheduler.vllm import make, make_rows, takes_fast_path
from tests.scheduler.vllm_setup import VERSIONS, full, loop, make_request, settings


class Accepting:
    """k drafts after every row, a fixed number accepted, one stop."""

    foreseen = False

    def __init__(self, drafts, accepted, stop=None):
        self.k, self.take, self.stop = drafts, accepted, stop

    def drafts(self, request, known_tokens, emitted):
        return self.k

    def accepted(self, request, drafts):
        return min(self.take, drafts)

    def stops(self, request, emitted):
        return emitted == self.stop


def engine(version, blocks, *, drafts=0, accepted=0, stop=None, **changes):
    """A row-by-row scheduler and how to add to it, by (prompt, outputs[, priority])."""
    scheduler = make_rows(
        settings(version, **changes),
        full(blocks),
        progress=Accepting(drafts, accepted, stop),
        drafting=Drafting(drafts) if drafts else None,
    )
    made = []

    def add(*lengths):
        made.append(make_request(scheduler, len(made), *lengths))
        scheduler.add(made[-1])
        return made[-1]

    return scheduler, add


def rows(batch):
    return [(row.request.index, row.tokens, row.kind) for row in batch.rows]


def step(scheduler):
    """Schedule and process the output at once."""
    batch = scheduler.schedule()
    scheduler.complete(batch)
    return batch


@pytest.mark.parametrize("version", VERSIONS)
def test_victim_already_counted(version):
    # a (least urgent, first in running) holds 2 blocks, b 2, c 1: all 5. In call 3 a has its row when b crosses into
    # its 3rd block (8 computed + 1) and a is the victim. Free then: 2 - 1 for b = 1, which c (4 + 1) can have.
    # 0.10.2: a's row stays as a ghost, with the counter of its row before (5 computed), and c misses its turn.
    scheduler, add = engine(version, 5, scheduling_policy="priority")
    a = add(4, 20, 5)
    assert rows(step(scheduler)) == [(0, 4, "n")]
    add(7, 20, 0)
    add(3, 20, 1)
    assert rows(step(scheduler)) == [(0, 1, "c"), (1, 7, "n"), (2, 3, "n")]
    assert scheduler.free_blocks == 0
    assert rows(step(scheduler)) == [(0, 1, "c"), (1, 1, "c"), (2, 1, "c")]
    batch = step(scheduler)
    assert batch.preempted == [a]
    if version == "0.10.2":
        assert rows(batch) == [(0, 1, "x"), (1, 1, "c")]
        assert batch.rows[0].computed == 5
        assert batch.tokens == 2 and batch.emitting == 1
        assert [request.index for request, _ in batch.delivered] == [1]
        assert (a.computed, a.known) == (1, 4 + 3)  # one token counts as computed although its block is gone
    else:
        assert rows(batch) == [(1, 1, "c"), (2, 1, "c")]
        assert (a.computed, a.known) == (0, 4 + 3)


@pytest.mark.parametrize("accepted,emits,computed", [(0, True, 1), (1, False, 0)])
def test_ghost_with_drafts_emits_by_the_counters_of_the_row_before(accepted, emits, computed):
    # As above with k = 1: a's ghost row has 2 tokens, 1 of them a draft. The runner's counter still stands at the start
    # s of the row before, which gave 1 + accepted tokens: s + 2 + accepted are known. With s + 2 it takes the row for a
    # finished one if nothing was accepted before; then computed = 0 + 2 - 1 rejected. Otherwise no token comes
    # out, which 0.10.2 takes for one less than none accepted: 0 + 2 - (1 + 1).
    scheduler, add = engine("0.10.2", 4, drafts=1, accepted=accepted, scheduling_policy="priority")
    a = add(3, 20, 5)
    step(scheduler)
    add(7, 20, 0)
    for _ in range(6):
        known = a.known
        batch = step(scheduler)
        if batch.preempted:
            break
    ghost = batch.rows[0]
    assert (ghost.request.index, ghost.kind, ghost.drafts, ghost.emits) == (0, "x", 1, emits)
    assert (a.computed, a.known) == (computed, known + emits)
    assert ghost.computed + 2 == known - accepted


@pytest.mark.parametrize("policy,victim", [("fcfs", 2), ("priority", 1)])
@pytest.mark.parametrize("version", VERSIONS)
def test_victim(version, policy, victim):
    # Three requests of one block each fill 3 blocks; the first needs its 2nd. Victim: the last, or the least urgent.
    scheduler, add = engine(version, 3, scheduling_policy=policy)
    for prompt, priority in ((4, 0), (2, 2), (2, 1)):
        add(prompt, 20, priority)
    step(scheduler)
    batch = step(scheduler)
    assert [request.index for request in batch.preempted] == [victim]
    assert [row.request.index for row in batch.rows] == [0, 3 - victim]
    assert batch.waiting == 1 and batch.interrupted == batch.preempted


@pytest.mark.parametrize("version,served", [("0.10.2", []), ("0.19.0", []), ("0.33.0", [1])])
def test_self_preemption(version, served):
    # The first of running needs a 2nd block of 2 and is itself the least urgent. Up to 0.19 that ends the pass.
    scheduler, add = engine(version, 2, scheduling_policy="priority")
    a = add(3, 20, 2)
    step(scheduler)
    add(3, 20, 0)
    assert rows(step(scheduler)) == [(0, 1, "c"), (1, 3, "n")]
    batch = step(scheduler)
    assert batch.preempted == [a]
    assert [row.request.index for row in batch.rows] == served
    assert batch.running == 1 and batch.waiting == 1


@pytest.mark.parametrize("version,alone", [("0.10.2", 5), ("0.19.0", 5), ("0.33.0", 12)])
def test_threshold_of_a_lone_request(version, alone):
    scheduler, add = engine(version, 9, long_prefill_token_threshold=5)
    add(12, 3)
    assert rows(step(scheduler)) == [(0, alone, "n")]
    scheduler, add = engine(version, 9, long_prefill_token_threshold=5)
    add(12, 3)
    add(3, 3)
    assert rows(step(scheduler)) == [(0, 5, "n"), (1, 3, "n")]
    assert rows(step(scheduler)) == [(0, 5, "c"), (1, 1, "c")]


def test_prompts_passed_over_come_back_reversed():
    # Without chunking, of 8, 6, 5 and 3 tokens in a budget of 12: 8 leaves 4, so 6 and 5 do not fit, 3 does.
    # 0.10.2 passes them over, and next time looks at the 5 first: 12 - 2 decodes - 5 leaves 5, too few for the 6.
    limits = {"chunked_prefill": False, "max_num_batched_tokens": 12, "max_model_len": 12}
    scheduler, add = engine("0.10.2", 30, **limits)
    for prompt in (8, 6, 5, 3):
        add(prompt, 4)
    assert rows(step(scheduler)) == [(0, 8, "n"), (3, 3, "n")]
    assert rows(step(scheduler)) == [(0, 1, "c"), (3, 1, "c"), (2, 5, "n")]
    scheduler, add = engine("0.33.0", 30, **limits)
    for prompt in (8, 6, 5, 3):
        add(prompt, 4)
    assert rows(step(scheduler)) == [(0, 8, "n")]
    assert rows(step(scheduler)) == [(0, 1, "c"), (1, 6, "n"), (2, 5, "n")]


@pytest.mark.parametrize("version,admitted", [("0.10.2", [1]), ("0.19.0", []), ("0.33.0", [])])
def test_full_input_reservation(version, admitted):
    # 5 blocks; a's 9th token takes its 3rd, 2 are left. b's chunk of 8 - 1 tokens needs 2, all of its 12 need 3.
    scheduler, add = engine(version, 5, max_num_batched_tokens=8)
    add(8, 20)
    step(scheduler)
    add(12, 20)
    assert [request.index for request in step(scheduler).admitted] == admitted


def test_watermark():
    # 10 blocks with the null block, of which 0.3 stay free while a request runs. a: 2 of 9 blocks, nothing runs yet.
    # b: 4 + 3 of the 7 left. c: 1 + 3 of 3: refused. Without the watermark all three enter.
    for share, admitted in ((0.3, [0, 1]), (0, [0, 1, 2])):
        scheduler, add = engine("0.33.0", 9, scheduler_options={"watermark": share})
        for prompt in (8, 16, 4):
            add(prompt, 3)
        assert [request.index for request in step(scheduler).admitted] == admitted


def test_rejected_drafts_are_not_computed():
    # Prompt 4, k = 2, one accepted: 1 token, then rows of 1 + 2 that yield 2: computed 4 + 3 - 1 = 6, known 5 + 2 = 7.
    scheduler, add = engine("0.33.0", 20, drafts=2, accepted=1)
    a = add(4, 20)
    step(scheduler)
    assert (a.known, a.computed, a.drafts) == (5, 4, 2)
    batch = step(scheduler)
    assert rows(batch) == [(0, 3, "c")] and batch.delivered == [(a, 2)]
    assert (batch.decodes, batch.draft_tokens, batch.tokens, batch.decode_sum) == (1, 2, 3, 7)
    assert (a.known, a.computed) == (7, 6)


@pytest.mark.parametrize("version,second", [("0.10.2", 4 + 2), ("0.19.0", 4), ("0.33.0", 4)])
def test_drafts_in_prefill(version, second):
    # EAGLE proposes 2 drafts after a chunk of 6 of 10 tokens; 0.10.2 lets them ride with the other 4.
    scheduler, add = engine(version, 20, drafts=2, accepted=2, max_num_batched_tokens=6)
    add(10, 20)
    step(scheduler)
    batch = step(scheduler)
    assert rows(batch) == [(0, second, "c")]
    assert [tokens for _, tokens in batch.delivered] == [3 if second > 4 else 1]


def test_padded_admission():
    # 0.33 with k = 2: beside a decode row of 3 tokens an admission with 1 token to compute gets 2 dummy drafts, which
    # are not accepted; with 5 tokens of budget it does not fit and waits; alone, or beside a prefill, it is not padded.
    scheduler, add = engine("0.33.0", 20, drafts=2, accepted=2)
    add(1, 20)
    assert rows(step(scheduler)) == [(0, 1, "n")]
    b = add(1, 20)
    batch = step(scheduler)
    assert rows(batch) == [(0, 3, "c"), (1, 3, "n")]
    assert batch.delivered[1] == (b, 1) and (b.computed, b.known) == (1, 2)
    scheduler, add = engine("0.33.0", 20, drafts=2, max_num_batched_tokens=5)
    add(6, 20)
    step(scheduler)
    add(1, 20)
    assert rows(step(scheduler)) == [(0, 1, "c"), (1, 1, "n")]  # the rest of the prompt, 1 of 6
    add(1, 20)
    assert rows(step(scheduler)) == [(0, 3, "c"), (1, 2, "c")]
    assert scheduler.running[1].known == 2 + 1
    scheduler.abort(scheduler.running[1])
    assert rows(step(scheduler)) == [(0, 3, "c")]  # 3 of the 5 tokens are used up


def test_max_model_len():
    # 8 tokens at most: a prompt of 5 gets 3 more. With k = 3, 6 computed tokens leave room for 8 - 1 - 6 = 1.
    scheduler, add = engine("0.33.0", 20, max_model_len=8)
    a = add(5, 20)
    assert [step(scheduler).finishing for _ in range(3)] == [[], [], [a]]
    assert a.emitted == 3 and scheduler.unfinished == 0
    scheduler, add = engine("0.33.0", 20, drafts=3, max_model_len=8)
    add(5, 20)
    assert [rows(step(scheduler))[0][1] for _ in range(3)] == [5, 2, 1]


def test_stop_in_the_middle_of_accepted_tokens():
    # 1 + 3 tokens come out, the 2nd of all is a stop token: of 4 + 4 computed, 3 cut off: 8 - 2 = 6 with KV in 0.33.
    for version, computed in (("0.19.0", 8), ("0.33.0", 6)):
        scheduler, add = engine(version, 20, drafts=3, accepted=3, stop=3)
        a = add(4, 20)
        step(scheduler)
        batch = step(scheduler)
        assert batch.delivered == [(a, 2)] and batch.finishing == [a]
        assert a.computed == computed


@pytest.mark.parametrize("stages,batches,dropped", [(1, 2, 0), (4, 4, 2)])
def test_foreseen_end(stages, batches, dropped):
    # Prompt 3, 2 outputs: the end is known when computed + 2 - placeholders >= 5. Two in flight: after batches 0 and 1,
    # and output 0: 4 + 2 - 1 = 5, so no third row. Four in flight: 4 + 2 - 2 and 5 + 2 - 3 are 4: two rows too many.
    config = settings("0.19.0", asynchronous=True, stages=stages)
    scheduler = make_rows(config, full(20))
    completed, ends = loop(scheduler, config, [(0, make_request(scheduler, 0, 3, 2))])
    assert sum(bool(batch.rows) for batch in completed) == batches
    assert sum(len(batch.dropped) for batch in completed) == dropped
    assert ends == {0: 1}


def test_decode_stagger():
    # 0.33, two stages, a chunk of 4 and one of 2 tokens, 3 outputs. The chunks follow at once; from then on a row in
    # every second call. Each token follows the one of two batches before.
    config = settings("0.33.0", asynchronous=True, stages=2, max_num_batched_tokens=4)
    scheduler = make_rows(config, full(20))
    completed, _ = loop(scheduler, config, [(0, make_request(scheduler, 0, 6, 3))])
    assert [batch.number for batch in completed if batch.rows] == [0, 1, 3, 5]
    assert [batch.follows for batch in completed if batch.rows] == [{}, {}, {1: 1}, {3: 1}]


@pytest.mark.parametrize("version", ["0.19.0", "0.33.0"])
def test_stale_output(version):
    # 4 blocks: a 1, d 2, b 1. Batch 2 (b's prompt) is in flight when a needs a block and b is the victim; then d's
    # blocks come free. 0.19 resumes b at once; 0.33 waits for its output, which counts although it was preempted.
    scheduler, add = engine(version, 4, stages=4)
    a, d = add(3, 20), add(4, 20)
    step(scheduler)
    first = scheduler.schedule()
    b = add(4, 20)
    second = scheduler.schedule()
    assert rows(second) == [(2, 4, "n")]
    scheduler.complete(first)
    third = scheduler.schedule()
    assert rows(third) == [(0, 1, "c"), (1, 1, "c")] and third.preempted == [b]
    scheduler.abort(d)
    fourth = scheduler.schedule()
    assert rows(fourth) == ([(2, 4, "r")] if version == "0.19.0" else [])
    scheduler.complete(second)
    assert b.known == 5 and second.delivered == [(b, 1)]
    scheduler.complete(third)
    assert third.delivered == [(a, 1)] and third.dropped == [d]
    fifth = scheduler.schedule()
    assert rows(fifth)[-1] == ((2, 1, "c") if version == "0.19.0" else (2, 5, "r"))


def test_abort_of_waiting_and_running():
    scheduler, add = engine("0.33.0", 20, max_num_seqs=1)
    a, b = add(4, 9), add(4, 9)
    batch = scheduler.schedule()
    scheduler.abort(b)
    scheduler.abort(a)
    assert scheduler.unfinished == 0 and scheduler.free_blocks == 20
    assert scheduler.complete(batch) == [] and batch.dropped == [a] and batch.delivered == []


def test_fast_path_is_taken_where_it_is_the_same():
    plain = settings("0.33.0", asynchronous=True)
    assert takes_fast_path(plain, full(20)) and takes_fast_path(settings("0.10.2"), full(20, named=True))
    for changes in (
        {"scheduling_policy": "priority"},
        {"long_prefill_token_threshold": 8},
        {"scheduler_options": {"watermark": 0.1}},
        {"stages": 2},
    ):
        assert not takes_fast_path(settings("0.33.0", **changes), full(20))
        assert make(settings("0.33.0", **changes), full(20)).repeat(None) is False
    hybrid = CacheShape(20, False, (GroupShape("full", 4), GroupShape("swa", 4, 8)))
    assert not takes_fast_path(plain, hybrid)


def test_bad_settings():
    with pytest.raises(ValueError, match=r"engine.scheduling_policy must be one of fcfs, priority, got 'lifo'"):
        make(settings(scheduling_policy="lifo"), full(9))
    with pytest.raises(ValueError, match=r"watermark must be below 1, got 1.5"):
        make(settings(scheduler_options={"watermark": 1.5}), full(9))
    with pytest.raises(ValueError, match=r"vLLM 0.19.0 keeps no blocks free .* engine.scheduler_options.watermark=0.1"):
        make(settings("0.19.0", scheduler_options={"watermark": 0.1}), full(9))
    conf = load_engine("vllm", "0.33.0")
    conf.long_prefill_token_threshold = -1
    with pytest.raises(ValueError, match=r"got -1: change engine.long_prefill_token_threshold"):
        check_conf(conf)


class Stored(Alone):
    """Another place holds the first `tokens` of every prompt, in whole blocks of 4, but never the last token."""

    def __init__(self, tokens):
        self.tokens = tokens

    def look_up(self, request, local_tokens):
        return External(max(0, min(self.tokens, request.prompt - 1) // 4 * 4 - local_tokens))


@pytest.mark.parametrize("version", VERSIONS)
def test_tokens_from_elsewhere_cost_blocks_but_no_budget(version):
    # 8 tokens a batch. Prompt 20, of which 12 lie elsewhere: computed 12, the other 8 are the chunk, 5 blocks in all,
    # which are registered at once. The second, with the same prompt, hits 4 blocks of its own replica: 19 // 4 = 4, so
    # nothing is left to fetch (12 < 16), and 4 tokens to compute in a 5th block.
    scheduler = make_rows(settings(version, max_num_batched_tokens=8), full(12, named=True), connector=Stored(12))
    first, second = (make_request(scheduler, index, 20, 9, 0, 0) for index in (0, 1))
    scheduler.add(first)
    batch = step(scheduler)
    assert [(row.tokens, row.computed) for row in batch.rows] == [(8, 12)]
    assert (first.cached, scheduler.free_blocks, first.emitted) == (12, 12 - 5, 1)
    scheduler.add(second)
    batch = step(scheduler)
    assert [(row.tokens, row.computed) for row in batch.rows] == [(1, 20), (4, 16)]
    assert scheduler.free_blocks == 12 - 6 - 1

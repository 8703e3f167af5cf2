"""Several groups: how a hit is agreed on, what is registered for the next one. Values worked by hand.

Blocks of 4 tokens unless said otherwise; a window of 8 needs 2 blocks before the end of a hit.
"""

from dataclasses import replace

import pytest

from sim.memory.cache import Hit, KVCache
from sim.memory.shape import CacheShape, GroupShape
from tests.memory.asking import VERSIONS, Asking, admit, decode, forget, hashed, make, rules


FULL = ("full", 4)
SWA = ("swa", 4, 8)
SHARED = list(range(16))


def tail(index):
    return [*SHARED, *range(100 * index, 100 * index + 9)]


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_draw_from_one_pool_in_order(version):
    cache = make(version, FULL, SWA, SWA, usable=9)
    request = Asking(0, range(10))
    admit(cache, request)
    assert request.tables == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    cache.release(request)
    # all hashed but the last of each group: 0.33 puts those of the last group freed in front
    order = [9, 6, 3, 2, 1, 5, 4, 8, 7] if version == "0.33.0" else [3, 2, 1, 6, 5, 4, 9, 8, 7]
    assert list(cache.pool.queue) == order


@pytest.mark.parametrize("version", ("0.10.2", "0.19.0"))
def test_dense_registration_hits_at_the_second_request(version):
    cache = make(version, FULL, SWA)
    assert [admit(cache, Asking(i, tail(i + 1))) for i in range(2)] == [0, 16]


def test_sparse_registration_hits_at_the_third_request():
    cache = make("0.33.0", FULL, SWA)
    first, second, third = (Asking(i, tail(i + 1)) for i in range(3))
    # 25 tokens: hits end at 24 at most; blocks 4 and 5 are kept
    assert admit(cache, first) == 0
    assert hashed(cache, first, 0) == [0, 1, 2, 3, 4, 5] and hashed(cache, first, 1) == [4, 5]
    # full attention finds the shared 16 tokens, the window nothing: the junction, where 2 and 3 are kept now
    assert admit(cache, second) == 0
    assert second.junction == 16 and hashed(cache, second, 1) == [2, 3, 4, 5]
    hit = cache.lookup(third)
    assert hit == Hit(16, [first.tables[0][:4], [0, 0, *second.tables[1][2:4]]])
    assert third.junction == 0


def test_the_next_turn_of_a_chat_hits_to_the_end_of_the_last_prompt():
    for version, found in (("0.19.0", 28), ("0.33.0", 20)):
        cache = make(version, FULL, SWA)
        request = Asking(0, range(22))
        admit(cache, request)
        for _ in range(9):
            decode(cache, request)
        outputs = [request.output_base + i for i in range(10)]
        # of 10 outputs the last was never computed: 31 tokens, 7 blocks; sparse: the 2 blocks before token 20
        assert cache.lookup(Asking(1, [*range(22), *outputs, 7])).tokens == found


def test_one_sliding_kind_alone_has_no_junction():
    cache = make("0.33.0", SWA)
    requests = [Asking(i, tail(i + 1)) for i in range(3)]
    assert [admit(cache, request) for request in requests] == [0, 0, 0]
    assert admit(cache, Asking(4, tail(1))) == 24


@pytest.mark.parametrize("version", VERSIONS)
def test_a_block_is_found_if_all_groups_of_the_kind_have_it(version):
    cache = make(version, FULL, SWA, SWA)
    admit(cache, request := Asking(0, range(13)))
    assert cache.lookup(Asking(1, range(13))).tokens == 12
    forget(cache.pool, request.tables[2][1])
    # block 1 of the second sliding group is gone: no run of 2 ends at 12 or 8
    assert cache.lookup(Asking(1, range(13))).tokens == (0 if version == "0.33.0" else 4)


def test_eagle_loses_one_block_in_each_kind_or_one_in_all():
    # 25 tokens, sent again: full attention finds 24 and drops to 20
    for version, found in (("0.10.2", 16), ("0.19.0", 16), ("0.33.0", 20)):
        cache = make(version, FULL, SWA, eagle=True)
        admit(cache, first := Asking(0, range(25)))
        # until 0.19 the window drops from 20 to 16; 0.33 looks one block further, at 24, and drops to 20
        hit = cache.lookup(Asking(1, range(25)))
        blocks = found // 4
        assert hit.tokens == found
        assert hit.blocks == [first.tables[0][:blocks], [0] * (blocks - 2) + first.tables[1][blocks - 2 : blocks]]


def test_what_sparse_registration_keeps_for_eagle():
    cache = make("0.33.0", FULL, SWA, eagle=True)
    admit(cache, request := Asking(0, range(26)))
    # the prompt again or longer: found to 24, resumes at 20: blocks 3 and 4 before it, and 5 to look one further
    assert hashed(cache, request, 1) == [3, 4, 5]
    cache = make("0.33.0", FULL, SWA, eagle=True)
    admit(cache, request := Asking(0, range(24)))
    # the same prompt finds at most 20 (of 23 tokens) and resumes at 16, a longer one finds 24 and resumes at 20
    assert hashed(cache, request, 1) == [2, 3, 4, 5]


def test_three_kinds_agree_in_rounds():
    wide = ("swa", 4, 12)
    cache = make("0.19.0", FULL, SWA, wide)
    admit(cache, request := Asking(0, range(26)))
    # of the wide window (3 blocks before an end) block 3 is gone: it has 0, 1, 2, 4, 5 and agrees to 12 tokens only
    forget(cache.pool, request.tables[2][3])
    hit = cache.lookup(Asking(1, range(26)))
    # at 12 the narrow window is asked again: blocks 1 and 2
    assert hit == Hit(12, [request.tables[0][:3], [0, *request.tables[1][1:3]], request.tables[2][:3]])


def test_unequal_blocks_agree_on_whole_blocks_of_all():
    cache = make("0.33.0", ("full", 8), SWA)
    admit(cache, request := Asking(0, range(30)))
    assert [len(table) for table in request.tables] == [4, 8]
    # registered to 24, whole in both: 3 blocks of 8; of the window blocks 4 and 5, before the last end, 24
    assert hashed(cache, request, 0) == [0, 1, 2] and hashed(cache, request, 1) == [4, 5]
    hit = cache.lookup(Asking(1, range(30)))
    assert hit == Hit(24, [request.tables[0][:3], [0, 0, 0, 0, *request.tables[1][4:6]]])
    # 24 tokens leave one to compute, so 16 at most; nothing of the window ends there
    again = Asking(2, range(24))
    assert cache.lookup(again).tokens == 0 and again.junction == 16


def test_unequal_blocks_of_no_common_factor_are_hashed_in_small_units():
    cache = make("0.33.0", ("full", 4), ("swa", 6, 12))
    admit(cache, request := Asking(0, range(26)))
    # units of 2, ends at multiples of 12: at 24 full attention has 6 blocks, the window cdiv(11, 6) = 2 of 4
    assert hashed(cache, request, 0) == [0, 1, 2, 3, 4, 5] and hashed(cache, request, 1) == [2, 3]
    hit = cache.lookup(Asking(1, range(26)))
    assert hit == Hit(24, [request.tables[0][:6], [0, 0, *request.tables[1][2:4]]])
    assert len(request.block_keys) == 13


def test_of_unequal_blocks_a_run_begins_at_an_aligned_end():
    # registration of all (0.19), blocks of 8 and 4: 20 tokens shared
    cache = make("0.19.0", ("full", 8), SWA)
    admit(cache, request := Asking(0, range(20)))
    assert hashed(cache, request, 1) == [0, 1, 2, 3, 4]
    hit = cache.lookup(Asking(1, [*range(20), *range(100, 110)]))
    # full attention has 16 of it, the window would have 20
    assert hit == Hit(16, [request.tables[0][:2], [0, 0, *request.tables[1][2:4]]])


def test_with_eagle_the_junction_is_kept_with_one_block_less_too():
    cache = make("0.33.0", FULL, SWA, eagle=True)
    requests = [Asking(i, tail(i + 1)) for i in range(3)]
    admit(cache, requests[0])
    assert admit(cache, requests[1]) == 0
    # full attention found 16 and dropped to 12; ends 12, 8 and 20 with 2 blocks before and one above each
    assert requests[1].junction == 12 and hashed(cache, requests[1], 1) == [0, 1, 2, 3, 4, 5]
    assert cache.lookup(requests[2]) == Hit(12, [requests[0].tables[0][:3], [0, *requests[1].tables[1][1:3]]])


def loose(*groups, registration="all"):
    """0.33 with an EAGLE drafter, but everything registered."""
    shape = CacheShape(100, True, tuple(GroupShape(*group) for group in groups))
    free = replace(rules("0.33.0"), registration=registration)
    return KVCache(shape, free, reuse=True, max_model_len=1000, ahead_tokens=16, eagle=True)


def test_a_kind_searched_again_at_a_shorter_length_may_drop_again():
    # windows of 8 (2 blocks before an end) and of 5 (1 block)
    cache = loose(FULL, SWA, ("swa", 4, 5))
    admit(cache, request := Asking(0, range(26)))
    forget(cache.pool, request.tables[1][2])
    forget(cache.pool, request.tables[2][2])
    forget(cache.pool, request.tables[2][5])
    # round 1: full 24 - 4; wide 5, 4, 3 = 24 - 4; narrow 4, 3 = 20 - 4. Round 2, at 16: wide lacks 2, so 1, 0 = 8,
    # shorter without a drop; so the narrow one looks ahead to 12 and drops: 1, 0 = 8 - 4. Round 3, at 4: agreed
    assert cache.lookup(Asking(1, range(26))).tokens == 4


def test_unequal_blocks_with_eagle():
    cache = loose(("full", 8), SWA)
    admit(cache, request := Asking(0, range(30)))
    # full attention 24 - 8 = 16; the window looks to 20, where its blocks 4, 3, 2 are
    assert cache.lookup(Asking(1, range(30))) == Hit(16, [request.tables[0][:2], [0, 0, *request.tables[1][2:4]]])
    # without block 4 a run may begin at block 2 only, so that it ends at 8 when one is dropped
    forget(cache.pool, request.tables[1][4])
    assert cache.lookup(Asking(1, range(30))) == Hit(8, [request.tables[0][:1], request.tables[1][:2]])


def test_a_run_too_short_for_its_window_is_rounded_before_and_after_the_drop():
    cache = loose(("full", 8), ("swa", 4, 20))
    admit(cache, request := Asking(0, range(30)))
    forget(cache.pool, request.tables[1][3])
    # cached from the start are 0, 1, 2: 12 tokens, whole 8, less a block 4, whole 0
    assert cache.lookup(Asking(1, range(30))).tokens == 0


def test_registration_ends_at_whole_blocks_of_all_groups():
    cache = make("0.33.0", FULL, ("swa", 8, 8))
    admit(cache, request := Asking(0, range(30)))
    # 30 tokens are 28 in blocks of 4, but 24 in blocks of both
    assert hashed(cache, request, 0) == [0, 1, 2, 3, 4, 5]
    # with EAGLE one block more, to look ahead
    cache = make("0.33.0", FULL, ("swa", 8, 8), eagle=True)
    admit(cache, request := Asking(0, range(30)))
    assert hashed(cache, request, 0) == [0, 1, 2, 3, 4, 5, 6]


def test_aligned_registration_keeps_all_where_ends_are_no_wider_apart_than_a_run():
    cache = loose(("full", 12), SWA, registration="aligned")
    admit(cache, request := Asking(0, range(30)))
    # ends 12 apart, runs of 2 + 1 blocks; registered are 24 tokens and a block
    assert hashed(cache, request, 1) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("other", (SWA, ("chunk", 4, 8)))
@pytest.mark.parametrize("version", VERSIONS)
def test_the_quiet_call_changes_nothing(version, other):
    # a row that takes, frees and registers no block; and the same calls made the long way agree
    quiet, slow = (make(version, FULL, other) for _ in range(2))
    one, two = Asking(0, range(10)), Asking(0, range(10))
    admit(quiet, one)
    admit(slow, two)
    for _ in range(40):
        slow._quiet.clear()
        assert decode(quiet, one) == decode(slow, two)
        assert one.tables == two.tables and one.registered == two.registered
        assert list(quiet.pool.queue) == list(slow.pool.queue) and quiet.pool.hash_of == slow.pool.hash_of

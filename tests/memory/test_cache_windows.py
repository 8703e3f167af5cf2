"""Sliding windows, local chunks and recurrent states. Values worked by hand; blocks of 4 tokens, windows of 8.

A window of 8 reads 7 tokens before the next one: after c tokens the first c - 7 are skipped, (c - 7) // 4 whole blocks,
and a hit needs cdiv(7, 4) = 2 blocks before its end.
"""

from dataclasses import replace

import pytest

from sim.memory.cache import Hit, KVCache
from sim.memory.shape import CacheShape, GroupShape
from tests.memory.asking import VERSIONS, Asking, admit, decode, forget, hashed, make, rules


FULL = ("full", 4)
SWA = ("swa", 4, 8)
CHUNK = ("chunk", 4, 8)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_window_gives_back_what_it_has_left(version):
    cache = make(version, SWA, reuse=False)
    request = Asking(0, range(10))
    admit(cache, request)
    held = []
    for _ in range(10):
        decode(cache, request)
        held.append(sum(block > 0 for block in request.tables[0]))
    # the call at computed c has cdiv(c + 1, 4) blocks less (c - 7) // 4: c = 10 ... 19
    assert held == [-(-(c + 1) // 4) - (c - 7) // 4 for c in range(10, 20)]
    assert cache.free == 100 - held[-1]


def test_blocks_left_are_freed_last_one_first():
    request = Asking(0, range(20))
    for version, taken in (("0.33.0", 3), ("0.19.0", 6)):
        cache = make(version, SWA, usable=20, reuse=False)
        request = Asking(0, range(20))
        admit(cache, request)
        # 20 computed: 13 // 4 = 3 blocks are left, freed as 3, 2, 1: to the front of the queue or to its back
        assert decode(cache, request) == [[taken]]
        assert request.tables == [[0, 0, 0, 4, 5, taken]]
        assert list(cache.pool.queue)[:2] == ([2, 1] if version == "0.33.0" else [7, 8])
        assert list(cache.pool.queue)[-3:] == ([18, 19, 20] if version == "0.33.0" else [3, 2, 1])


def test_blocks_left_are_free_even_if_the_rest_fails():
    cache = make("0.19.0", SWA, usable=5, reuse=False)
    request = Asking(0, range(20))
    admit(cache, request)
    request.known += 1
    # slots 36 are 9 blocks, 5 are held, 3 were freed
    assert cache.allocate(request, 1, None, 15) is None
    assert request.tables == [[0, 0, 0, 4, 5]] and cache.free == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hit_needs_the_blocks_of_a_window_only(version):
    cache = make(version, SWA)
    first = Asking(0, range(20))
    admit(cache, first, 12)
    cache.allocate(first, 8, None)
    # 12 computed: 5 // 4 = 1 block is left; in 0.33, where no hit can need it, it has no hash and is taken at once
    assert first.tables == ([[0, 2, 3, 1, 4]] if version == "0.33.0" else [[0, 2, 3, 4, 5]])
    # at most 4 blocks; the third and fourth cover the window
    assert cache.lookup(Asking(1, range(20))) == Hit(16, [[0, 0, *first.tables[0][2:4]]])


def test_the_last_run_that_covers_a_window_is_taken():
    cache = make("0.19.0", SWA)
    admit(cache, request := Asking(0, range(24)))
    pool = cache.pool
    forget(pool, request.tables[0][4])
    # cached are blocks 0 to 3 and 5: 5 alone is too short, 3 and 2 are enough
    assert cache.lookup(Asking(1, range(30))) == Hit(16, [[0, 0, 3, 4]])
    forget(pool, request.tables[0][2])
    # 0, 1, 3, 5: the run from the start ends with block 1
    assert cache.lookup(Asking(1, range(30))) == Hit(8, [[1, 2]])
    forget(pool, request.tables[0][1])
    # 0, 3, 5: no run of two, but the start of a prompt needs no more than what there is
    assert cache.lookup(Asking(1, range(30))) == Hit(4, [[1]])
    forget(pool, request.tables[0][0])
    assert cache.lookup(Asking(1, range(30))) == Hit(0, [[]])


def test_what_a_request_needs_that_starts_inside():
    # computed without blocks: 11 tokens, of which a window has left 4 // 4 = 1 block
    for version, table, free in (("0.19.0", [0, 1, 2, 3], 0), ("0.10.2", [1, 2, 3, 4], None)):
        cache = make(version, SWA, usable=3, reuse=False)
        request = Asking(0, range(15))
        request.computed = 11
        new = cache.allocate(request, 4, None)
        if free is None:
            assert new is None and cache.free == 3  # 4 blocks
        else:
            assert request.tables == [table] and cache.free == free


def test_the_full_input_needs_no_more_than_windows_and_what_is_under_way():
    prompt = Asking(0, range(100))
    nothing = Hit(0, [[]])
    # uncapped 25; swa cdiv(7 + 16, 4) + 1 = 7; chunk cdiv(8 + 16, 4) = 6
    for version, group, blocks in (
        ("0.19.0", SWA, 25),
        ("0.19.0", CHUNK, 25),
        ("0.33.0", SWA, 7),
        ("0.33.0", CHUNK, 6),
        ("0.33.0", FULL, 25),
    ):
        assert make(version, group, usable=blocks).fits_full_input(prompt, nothing)
        assert not make(version, group, usable=blocks - 1).fits_full_input(prompt, nothing)
    # bounded by the longest request too: cdiv(20, 4) + 1
    assert make("0.33.0", SWA, usable=6, max_model_len=20).fits_full_input(Asking(0, range(100)), nothing)


@pytest.mark.parametrize("version", VERSIONS)
def test_chunks_that_are_over_count_as_found(version):
    cache = make(version, FULL, CHUNK)
    admit(cache, Asking(0, range(22)))
    # full 5 blocks; chunk of token 20 begins at 16: block 4
    assert cache.lookup(Asking(1, range(22))) == Hit(20, [[1, 2, 3, 4, 5], [0, 0, 0, 0, 11]])
    # 17 tokens: 4 blocks, the chunk of token 16 begins with it
    assert cache.lookup(Asking(2, range(17))) == Hit(16, [[1, 2, 3, 4], [0, 0, 0, 0]])


def test_the_last_registered_block_of_a_chunk_is_kept_by_0_10_2():
    # 16 computed: two chunks are over, blocks 0 to 3; the last of them has a hash
    after = [False, False, False, False, True]
    for version, kept in (("0.10.2", [False, False, False, True, True]), ("0.19.0", after), ("0.33.0", after)):
        cache = make(version, FULL, CHUNK)
        request = Asking(0, range(16))
        admit(cache, request)
        decode(cache, request)
        assert [bool(block) for block in request.tables[1]] == kept
    cache = make("0.10.2", FULL, CHUNK, reuse=False)
    request = Asking(0, range(16))
    admit(cache, request)
    decode(cache, request)
    assert [bool(block) for block in request.tables[1]] == after


def test_a_window_waits_for_the_output_where_the_version_does():
    for version, first in (("0.19.0", 0), ("0.33.0", 1)):
        cache = make(version, SWA, reuse=False)
        request = Asking(0, range(11))
        request.known += 1
        cache.allocate(request, 10, Hit(0, [[]]))
        # 11 computed would leave the first block; of them 1 is under way
        request.computed, request.in_flight = 11, 1
        cache.allocate(request, 1, None)
        assert request.tables[0][0] == first


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recurrent_state_is_one_block(version):
    cache = make(version, FULL, ("mamba", 4), ("mamba", 4), reuse=False, max_model_len=64)
    request = Asking(0, range(9))
    admit(cache, request)
    assert request.tables == [[1, 2, 3], [4], [5]]
    while request.known < 64:
        decode(cache, request)
    assert [len(table) for table in request.tables] == [16, 1, 1]
    assert cache.note is None


def test_recurrent_states_are_not_reused_and_it_says_so():
    cache = make("0.33.0", FULL, ("mamba", 4), max_model_len=64)
    admit(cache, Asking(0, range(9)))
    assert cache.lookup(Asking(1, range(9))).tokens == 0
    assert not cache.reuse and "recurrent states is not modelled" in cache.note


def test_every_aligned_end_is_kept_if_registration_is_not_sparse():
    shape = CacheShape(100, True, (GroupShape("full", 16), GroupShape("swa", 4, 8)))
    aligned = replace(rules("0.33.0"), registration="aligned")
    cache = KVCache(shape, aligned, reuse=True, max_model_len=1000, ahead_tokens=16)
    request = Asking(0, range(50))
    admit(cache, request)
    # hits end at 16, 32 and 48: of the blocks of 4 tokens those that hold the 7 tokens before
    assert hashed(cache, request, 1) == [2, 3, 6, 7, 10, 11]
    assert cache.lookup(Asking(1, range(40))).tokens == 32

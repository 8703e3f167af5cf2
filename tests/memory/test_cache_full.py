"""One group of full attention: allocation, free order, the prefix cache. Values worked by hand."""

import pytest

from sim.memory.cache import Hit
from tests.memory.asking import VERSIONS, Asking, admit, decode, make


def full(version, **more):
    return make(version, ("full", 4), **more)


def test_blocks_are_taken_when_a_token_needs_one():
    cache = full("0.19.0")
    request = Asking(0, range(6))
    admit(cache, request)
    assert request.tables == [[1, 2]]
    # tokens 7 and 8 fit into block 2, token 9 takes block 3
    assert [decode(cache, request) for _ in range(3)] == [[[]], [[]], [[3]]]
    assert cache.free == 97


def test_slots_stop_at_max_model_len():
    cache = full("0.19.0", max_model_len=10)
    request = Asking(0, range(7))
    # 7 + 1 + 6 slots would be 4 blocks; 10 slots are 3
    assert len(cache.allocate(request, 7, Hit(0, [[]]), 7)[0]) == 3
    request.computed, request.known = 7, 8
    assert cache.allocate(request, 1, None, 6) == [[]]


def test_too_few_blocks_takes_nothing():
    cache = full("0.19.0", usable=3)
    first, second = Asking(0, range(8)), Asking(1, range(100, 108))
    admit(cache, first)
    assert cache.allocate(second, 8, cache.lookup(second)) is None
    assert second.tables == [] and cache.free == 1
    assert cache.allocate(first, 5, None) is None
    assert first.tables == [[1, 2]] and cache.free == 1


def test_spare_blocks_stay_free():
    cache = full("0.33.0", usable=3)
    request = Asking(0, range(8))
    hit = cache.lookup(request)
    assert not cache.fits_full_input(request, hit, 2) and cache.fits_full_input(request, hit, 1)
    assert cache.allocate(request, 8, hit, 0, 2) is None
    assert cache.allocate(request, 8, hit, 0, 1) == [[1, 2]]


def test_freed_blocks_go_to_the_back_tail_first():
    cache = full("0.10.2", usable=6)
    request = Asking(0, range(10))
    admit(cache, request)
    cache.release(request)
    # free were 4, 5, 6; then 3, 2, 1
    admit(cache, second := Asking(1, range(100, 124)))
    assert second.tables == [[4, 5, 6, 3, 2, 1]]


def test_freed_blocks_without_a_hash_go_to_the_front():
    cache = full("0.33.0", usable=6)
    request = Asking(0, range(14))
    admit(cache, request)
    assert request.tables == [[1, 2, 3, 4]]
    cache.release(request)
    # block 4 is not full, so it has no hash and comes before 5 and 6; 3, 2, 1 wait at the back
    admit(cache, second := Asking(1, range(100, 124)))
    assert second.tables == [[4, 5, 6, 3, 2, 1]]


def test_without_reuse_the_last_freed_is_the_first_taken():
    cache = full("0.33.0", usable=6, reuse=False)
    admit(cache, request := Asking(0, range(12)))
    cache.release(request)
    admit(cache, second := Asking(1, range(12)))
    # 3, 2, 1 in this order at the front
    assert second.tables == [[3, 2, 1]]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hit_leaves_one_token_to_compute(version):
    cache = full(version)
    admit(cache, Asking(0, range(12)))
    # 12 tokens: floor(11 / 4) = 2 blocks; 13 tokens: 3 blocks
    assert cache.lookup(Asking(1, range(12))) == Hit(8, [[1, 2]])
    assert cache.lookup(Asking(2, range(13))) == Hit(12, [[1, 2, 3]])


def test_a_hash_stands_for_all_before_it():
    cache = full("0.19.0")
    admit(cache, Asking(0, [1, 2, 3, 4, 5, 6, 7, 8]))
    # the second block has the tokens of a cached block, the first has not
    assert cache.lookup(Asking(1, [9, 2, 3, 4, 5, 6, 7, 8, 9])).tokens == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_an_eagle_drafter_gives_up_the_last_block_found(version):
    cache = full(version, eagle=True)
    admit(cache, Asking(0, range(13)))
    assert cache.lookup(Asking(1, range(13))) == Hit(8, [[1, 2]])
    assert cache.lookup(Asking(2, range(5))) == Hit(0, [[]])


def test_hits_in_the_free_queue_are_charged():
    cache = full("0.19.0", usable=4)
    admit(cache, request := Asking(0, range(9)))
    cache.release(request)
    second = Asking(1, [*range(8), *range(100, 109)])
    hit = cache.lookup(second)
    assert hit.blocks == [[1, 2]]
    # 17 tokens are 5 blocks, 2 of them found but idle: 3 + 2 > 4
    assert cache.allocate(second, 9, hit) is None
    assert not cache.fits_full_input(second, hit)
    # 16 are 4 blocks: 2 + 2; the chunk fits, all 17 tokens do not
    assert cache.allocate(second, 8, hit) == [[4, 3]]
    assert second.tables == [[1, 2, 4, 3]] and cache.free == 0


def test_hits_in_use_are_free():
    cache = full("0.19.0", usable=4)
    admit(cache, Asking(0, range(9)))
    second = Asking(1, range(9))
    hit = cache.lookup(second)
    # 9 tokens are 3 blocks, 2 of them in use by the first: one new, and one is free
    assert cache.fits_full_input(second, hit)
    assert cache.allocate(second, 1, hit) == [[4]]


def test_shared_blocks_stay_until_the_last_user_leaves():
    cache = full("0.19.0")
    admit(cache, first := Asking(0, range(9)))
    assert admit(cache, second := Asking(1, range(9))) == 8
    assert second.tables == [[1, 2, 4]] and cache.free == 96
    cache.release(first)
    assert cache.free == 97
    cache.release(second)
    assert cache.free == 100


def test_of_two_equal_blocks_the_first_registered_is_found_and_the_other_inherits():
    cache = full("0.19.0", usable=7)
    first, second = Asking(0, range(4)), Asking(1, range(4))
    admit(cache, first)
    admit(cache, second)  # 4 tokens: nothing to find, so the block exists twice
    assert cache.lookup(Asking(2, range(5))).blocks == [[1]]
    cache.release(first)  # at the back of the queue, its hash kept
    assert cache.lookup(Asking(2, range(5))).blocks == [[1]]
    admit(cache, Asking(3, range(100, 124)))  # takes 3 to 7 and block 1
    assert cache.lookup(Asking(2, range(5))).blocks == [[2]]


def test_blocks_keep_their_hash_until_taken():
    cache = full("0.19.0", usable=4)
    admit(cache, request := Asking(0, range(9)))
    cache.release(request)
    # queue 4, 3, 2, 1: the third block taken is 2
    admit(cache, second := Asking(1, range(100, 108)))
    assert second.tables == [[4, 3]]
    assert cache.lookup(Asking(2, range(9))).tokens == 8
    assert decode(cache, second) == [[2]]
    assert cache.lookup(Asking(2, range(9))).tokens == 4


def test_blocks_are_registered_when_allocated_up_to_what_is_known():
    cache = full("0.19.0")
    request = Asking(0, range(6))
    hit = cache.lookup(request)
    cache.allocate(request, 6 - hit.tokens + 3, hit)  # 3 drafts: 9 slots
    assert request.registered == [1]
    request.computed, request.known = 7, 7
    cache.allocate(request, 1, None)
    assert request.registered == [1]
    request.computed, request.known = 7, 8
    cache.allocate(request, 1, None)
    assert request.registered == [2]


def test_outputs_are_found_by_a_request_that_brings_them():
    cache = full("0.19.0")
    request = Asking(0, range(6))
    admit(cache, request)
    for _ in range(3):
        decode(cache, request)
    outputs = [request.output_base + i for i in range(3)]
    assert cache.lookup(Asking(1, [*range(6), *outputs])).tokens == 8
    # positions are told apart: the same outputs shifted by one
    assert cache.lookup(Asking(2, [*range(6), *outputs[1:], 5])).tokens == 4


def test_registration_at_output():
    cache = full("0.19.0")
    request = Asking(0, range(7))
    admit(cache, request)
    request.known += 1
    request.computed += 1
    cache.register(request, 8)
    assert cache.lookup(Asking(1, [*range(7), request.output_base, 0])).tokens == 8


def test_a_resumed_request_finds_its_own_blocks():
    cache = full("0.33.0")
    request = Asking(0, range(6))
    admit(cache, request)
    for _ in range(4):
        decode(cache, request)
    cache.release(request)
    request.computed, request.preemptions = 0, 1
    # 10 tokens known: floor(9 / 4) = 2 blocks
    assert admit(cache, request) == 8


def test_lookups_count_on_every_try():
    cache = full("0.19.0")
    admit(cache, Asking(0, range(8)))
    request = Asking(1, range(10))
    cache.lookup(request)
    cache.lookup(request)
    request.preemptions = 1
    cache.lookup(request)
    stats = cache.hit_stats
    assert (stats.requests, stats.queries, stats.hits) == (3, 28, 16)
    assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (1, 10, 8)


def test_lookups_count_once_admitted_where_the_version_does():
    cache = full("0.33.0")
    admit(cache, Asking(0, range(8)))
    request = Asking(1, range(10))
    cache.lookup(request)
    admit(cache, request)
    assert (cache.hit_stats.requests, cache.hit_stats.queries, cache.hit_stats.hits) == (2, 18, 8)


def test_without_reuse_nothing_is_found_or_counted():
    cache = full("0.19.0", reuse=False)
    admit(cache, Asking(0, range(8)))
    assert cache.lookup(Asking(1, range(8))) == Hit(0, [[]])
    assert cache.hit_stats.requests == 0


def test_common_prefix_counts_blocks_of_all_running():
    cache = full("0.19.0")
    first, second = Asking(0, range(12)), Asking(1, [*range(8), 99, 98])
    admit(cache, first)
    assert cache.common_prefix([first]) == 3
    admit(cache, second)
    assert cache.common_prefix([first, second]) == 2
    assert cache.common_prefix([]) == 0
    other = full("0.33.0")
    admit(other, third := Asking(0, range(12)))
    assert other.common_prefix([third]) == 0


def test_latent_attention_behaves_as_full():
    cache = make("0.33.0", ("mla", 4))
    admit(cache, Asking(0, range(9)))
    assert cache.lookup(Asking(1, range(9))) == Hit(8, [[1, 2]])

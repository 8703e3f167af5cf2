"""From a memory budget's groups to block tables, and shapes that are refused."""

from dataclasses import replace

import pytest

from sim.memory.cache import KVCache, cache_shape
from sim.memory.groups import LayerCache, layout
from sim.memory.shape import CacheShape, GroupShape
from tests.memory.asking import Asking, admit, make, rules


def test_a_layout_of_a_budget_becomes_groups():
    # 6 full and 30 sliding layers of equal pages: groups of 6 layers, one of full attention and five of windows
    layers = [LayerCache("full", 6, 1024.0), LayerCache("swa", 30, 1024.0, 512)]
    shape = cache_shape(layout("0.33.0", layers, 16), 101, True)
    assert shape == CacheShape(100, True, (GroupShape("full", 16), *[GroupShape("swa", 16, 512)] * 5))
    cache = KVCache(shape, rules("0.33.0"), reuse=True, max_model_len=4096, ahead_tokens=2048)
    admit(cache, request := Asking(0, range(40)))
    assert [len(table) for table in request.tables] == [3] * 6


def test_a_layout_with_states_gives_each_request_one():
    layers = [LayerCache("full", 2, 1024.0), LayerCache("mamba", 2, state_bytes=16384)]
    shape = cache_shape(layout("0.33.0", layers, 16), 11, False)
    cache = KVCache(shape, rules("0.33.0"), reuse=False, max_model_len=4096, ahead_tokens=2048)
    admit(cache, request := Asking(0, range(40)))
    assert sorted(len(table) for table in request.tables) == [1, 3]


def test_no_block_at_all_is_a_cache_that_fits_nothing():
    shape = cache_shape(layout("0.19.0", [LayerCache("full", 2, 1024.0)], 16), 0, False)
    assert shape.usable_blocks == 0
    cache = KVCache(shape, rules("0.19.0"), reuse=False, max_model_len=64, ahead_tokens=16)
    request = Asking(0, range(4))
    assert cache.allocate(request, 4, cache.lookup(request)) is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "at least one group, got none"),
        ([("full", 0)], "must hold at least one token, got 0 in a full group: change engine.block_size"),
        ([("linear", 16)], "must be full, swa, chunk, mla or mamba, got 'linear'"),
        ([("swa", 16)], "swa group needs a window of at least one token, got None"),
        ([("chunk", 16, 0)], "chunk group needs a window of at least one token, got 0"),
    ],
)
def test_bad_groups(groups, message):
    with pytest.raises(ValueError, match=message):
        make("0.33.0", *groups)


def test_a_negative_pool():
    with pytest.raises(ValueError, match="usable_blocks must not be negative, got -1"):
        make("0.33.0", ("full", 16), usable=-1)


@pytest.mark.parametrize(
    "groups",
    [
        [("full", 16), ("swa", 16, 64), ("swa", 16, 128)],
        [("full", 16), ("swa", 8, 64)],
        [("swa", 16, 64), ("swa", 16, 64)],
        [("full", 16), ("full", 16)],
    ],
)
def test_0_10_2_reuses_over_full_attention_and_one_other_kind(groups):
    with pytest.raises(ValueError, match="full attention and one other kind, of one block size, got .*later engine"):
        make("0.10.2", *groups)
    make("0.10.2", *groups, reuse=False)
    make("0.19.0", *groups)


def test_chunks_go_with_one_block_size_and_without_eagle():
    with pytest.raises(ValueError, match="only if all groups have one block size, got 8, 16"):
        make("0.33.0", ("full", 16), ("chunk", 8, 64))
    with pytest.raises(ValueError, match="do not go with an EAGLE drafter"):
        make("0.33.0", ("full", 16), ("chunk", 16, 64), eagle=True)
    make("0.33.0", ("full", 16), ("chunk", 16, 64), eagle=True, reuse=False)


def test_an_unknown_registration():
    shape = CacheShape(10, True, (GroupShape("full", 16),))
    with pytest.raises(
        ValueError, match="engine.profile.cache.registration must be all, aligned or sparse, got 'some'"
    ):
        KVCache(shape, replace(rules("0.33.0"), registration="some"), reuse=True, max_model_len=64, ahead_tokens=16)

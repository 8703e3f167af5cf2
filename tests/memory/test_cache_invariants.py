"""What holds whatever is asked, for any groups and version: drawn requests, chunks, drafts, preemptions and ends."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings, strategies as st

from sim.memory.cache import KVCache
from sim.memory.shape import CacheShape, GroupShape
from tests.memory.asking import Asking, rules


LENGTH = 60

windowed = st.one_of(
    st.builds(GroupShape, st.just("swa"), st.sampled_from([4, 8]), st.integers(1, 20)),
    st.builds(GroupShape, st.sampled_from(["full", "mla"]), st.sampled_from([4, 8])),
    st.builds(GroupShape, st.just("mamba"), st.just(4)),
)
local = st.builds(GroupShape, st.just("chunk"), st.just(4), st.sampled_from([4, 8, 10, 12]))


@st.composite
def caches(draw):
    version = draw(st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]))
    reuse = draw(st.booleans())
    if version == "0.10.2" and reuse:
        other = draw(st.one_of(st.builds(GroupShape, st.just("swa"), st.just(4), st.integers(1, 20)), local))
        groups = draw(st.sampled_from([(GroupShape("full", 4),), (other,), (GroupShape("full", 4), other, other)]))
    elif draw(st.booleans()):
        groups = tuple(draw(st.lists(windowed, min_size=1, max_size=4)))
    else:
        groups = (GroupShape("full", 4), *draw(st.lists(local, max_size=2)))
    eagle = draw(st.booleans()) and not any(group.kind == "chunk" for group in groups)
    switches = rules(version)
    if switches.registration == "sparse" and draw(st.booleans()):
        switches = replace(switches, registration="aligned")
    usable = draw(st.integers(0, 60))
    shape = CacheShape(usable, reuse, groups)
    return KVCache(shape, switches, reuse=reuse, max_model_len=LENGTH, ahead_tokens=16, eagle=eagle)


def check(cache, requests):
    pool = cache.pool
    held = np.zeros(cache.usable + 1, int)
    places = {}
    for request in requests:
        assert len(request.tables) in (0, len(cache.groups))
        for group, table in enumerate(request.tables):
            for place, block in enumerate(table):
                if block:
                    held[block] += 1
                    # two requests share a block only as the same piece of the same prefix
                    key = (group, place, pool.hash_of[block])
                    assert held[block] == 1 or (places[block] == key and key[2] is not None)
                    places[block] = key
    assert pool.references[1:] == held[1:].tolist()
    assert sorted(pool.queue) == [block for block in range(1, cache.usable + 1) if not held[block]]
    assert cache.free + np.count_nonzero(held) == cache.usable
    found = {block: key for key, block in pool.by_hash.items() if pool.hash_of[block] == key}
    found |= {block: key for key, blocks in pool.duplicates.items() for block in blocks}
    assert found == {block: key for block, key in enumerate(pool.hash_of) if key is not None}
    assert all(pool.find(key) is not None for key in found.values())


@settings(max_examples=150, deadline=None)
@given(caches(), st.data())
def test_blocks_are_neither_lost_nor_held_twice(cache, data):
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=LENGTH - 1)
    requests = [Asking(i, np.repeat(data.draw(prompts), 4)[: LENGTH - 1]) for i in range(4)]
    for _ in range(data.draw(st.integers(1, 40))):
        request = requests[data.draw(st.integers(0, 3))]
        free = cache.free
        if not request.tables:
            request.computed = 0
            hit = cache.lookup(request)
            assert 0 <= hit.tokens < request.known or hit.tokens == 0
            assert all(len(b) * k.block_size == hit.tokens for b, k in zip(hit.blocks, cache.groups, strict=True))
            tokens = data.draw(st.integers(1, request.known - hit.tokens))
            taken = cache.allocate(request, tokens, hit, data.draw(st.integers(0, 3)))
            if taken is None:
                assert not request.tables and cache.free == free
            else:
                request.computed = hit.tokens + tokens
        elif data.draw(st.integers(0, 4)) == 0:
            cache.release(request)
            request.preemptions += 1
        elif request.computed < LENGTH - 1:
            drafts = data.draw(st.integers(0, 2))
            tokens = min(request.known + drafts - request.computed, LENGTH - 1 - request.computed)
            if tokens > 0 and cache.allocate(request, tokens, None, data.draw(st.integers(0, 2))) is not None:
                end = request.computed + tokens
                accepted = data.draw(st.integers(0, max(end - request.known, 0)))
                request.known = min(request.known + accepted + 1, LENGTH)
                request.computed = min(end, request.known - 1)
                if data.draw(st.booleans()):
                    cache.register(request, request.computed)
        check(cache, requests)
        for other in requests:
            for kind, table in zip(cache.groups, other.tables, strict=bool(other.tables)):
                # whatever the next token reads is there
                assert all(table[kind.skipped_blocks(other.computed) : -(-other.computed // kind.block_size)])
    for request in requests:
        cache.release(request)
    check(cache, requests)
    assert cache.free == cache.usable

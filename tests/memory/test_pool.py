"""The block pool against a literal one: same blocks, same order, same finds."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
from hypothesis import given, strategies as st

from sim.memory.pool import BlockPool, chain_keys


BLOCKS = 7


class Literal:
    """The rules word for word: an ordered free queue, and per hash the blocks that have it, in order."""

    def __init__(self, unhashed_first):
        self.queue = OrderedDict.fromkeys(range(1, BLOCKS + 1))
        self.users = dict.fromkeys(self.queue, 0)
        self.hash_of = dict.fromkeys(self.queue)
        self.holders = {}
        self.unhashed_first = unhashed_first

    def take(self):
        block, _ = self.queue.popitem(last=False)
        self.users[block] = 1
        if (key := self.hash_of[block]) is not None:
            self.holders[key].remove(block)
            self.hash_of[block] = None
        return block

    def find(self, key):
        return next(iter(self.holders.get(key, [])), None)

    def touch(self, block):
        if not self.users[block]:
            del self.queue[block]
        self.users[block] += 1

    def name(self, block, key):
        self.hash_of[block] = key
        self.holders.setdefault(key, []).append(block)

    def give_back(self, blocks):
        front = []
        for block in blocks:
            self.users[block] -= 1
            if not self.users[block]:
                if self.unhashed_first and self.hash_of[block] is None:
                    front.append(block)
                else:
                    self.queue[block] = None
        for block in reversed(front):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)


@given(st.data(), st.booleans())
def test_the_pool_follows_the_rules(data, unhashed_first):
    pool, literal = BlockPool(BLOCKS, unhashed_first), Literal(unhashed_first)
    held = []
    for _ in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.sampled_from(["take", "name", "touch", "give", "give"]))
        if act == "take" and literal.queue:
            count = data.draw(st.integers(1, min(3, len(literal.queue))))
            taken = [literal.take() for _ in range(count)]
            assert pool.take(count) == taken
            held += taken
        elif act == "name":
            nameless = sorted({block for block in held if literal.hash_of[block] is None})
            keys = data.draw(st.lists(st.integers(1, 4), min_size=len(nameless), max_size=len(nameless)))
            for block, key in zip(nameless, keys, strict=True):
                literal.name(block, key)
            pool.name_all(nameless[:-1], keys[:-1])
            for block, key in zip(nameless[-1:], keys[-1:], strict=True):
                pool.name(block, key)
        elif act == "touch":
            keys = data.draw(st.lists(st.integers(1, 4), max_size=3))
            found = []
            for key in keys:
                if literal.find(key) is None:
                    break
                found.append(literal.find(key))
            assert pool.find_run(keys) == found
            for block in found:
                literal.touch(block)
            pool.touch(found)
            held += found
        elif act == "give" and held:
            given_back = data.draw(st.permutations(held))[: data.draw(st.integers(1, len(held)))]
            literal.give_back(given_back)
            pool.give_back(given_back)
            for block in given_back:
                held.remove(block)
        assert pool.queue == list(literal.queue)
        assert pool.free == len(literal.queue)
        assert pool.references[1:] == [literal.users[block] for block in range(1, BLOCKS + 1)]
        assert [pool.find(key) for key in range(5)] == [literal.find(key) for key in range(5)]


def test_hashes_of_taken_blocks_are_swept_up():
    pool = BlockPool(2, False)
    for key in range(1, 100):
        (block,) = pool.take(1)
        pool.name(block, key)
        pool.give_back([block])
    assert len(pool.by_hash) < 20
    assert pool.find(99) == 1
    assert pool.find(97) is None


def content(ids, prompt):
    known = None if ids is None else np.array(ids, dtype=np.int64)
    return SimpleNamespace(token_ids=known, prompt=prompt, output_base=1 << 32, block_keys=[])


def test_keys_stand_for_all_tokens_so_far():
    """Units of 4. Equal up to the third unit, then a token differs; and a piece made later goes on from the same."""
    one, other = content(range(16), 16), content([*range(11), 99, *range(12, 16)], 16)
    assert chain_keys(one, 4, 4)[:2] == chain_keys(other, 4, 4)[:2]
    assert not set(chain_keys(one, 4, 4)[2:4]) & set(chain_keys(other, 4, 4)[2:4])
    slowly = content(range(16), 16)
    for count in range(1, 7):
        chain_keys(slowly, count, 4)
    assert slowly.block_keys[:6] == chain_keys(one, 6, 4)[:6]


def test_unknown_outputs_are_unlike_any_other():
    """Tokens beyond the content are numbered from the request's own base."""
    short, long = content(range(6), 6), content([*range(6), 1 << 32, (1 << 32) + 1], 6)
    assert chain_keys(short, 2, 4)[:2] == chain_keys(long, 2, 4)[:2]
    assert chain_keys(content(None, 6), 2, 4)[:2] != chain_keys(short, 2, 4)[:2]

"""SGLang's radix cache: splits, locks, the clock, and what is evicted first."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.memory.radix import RadixTree


def content(*tokens):
    return np.array(tokens, np.int64).tobytes()


def runs(tree):
    """The token runs of all nodes, sorted."""
    return sorted(tuple(np.frombuffer(node.key, np.int64).tolist()) for node in tree)


def test_a_match_that_ends_inside_a_node_splits_it():
    tree = RadixTree()
    tree.insert(content(1, 2, 3, 4, 5), 5)
    end, found = tree.match(content(1, 2, 3, 9), 4)
    assert found == 3 and end.tokens == 3
    assert runs(tree) == [(1, 2, 3), (4, 5)]
    assert (tree.tokens, tree.evictable, tree.nodes) == (5, 5, 2)
    assert tree.match(content(7), 1) == (tree.root, 0)


def test_only_the_first_tokens_asked_for_are_matched():
    tree = RadixTree()
    whole = content(1, 2, 3, 4)
    tree.insert(whole, 4)
    assert tree.match(whole, 3)[1] == 3
    assert runs(tree) == [(1, 2, 3), (4,)]


def test_pages_are_matched_whole():
    tree = RadixTree(4)
    # 10 tokens are 2 pages; of the second prompt 7 tokens are equal, one page
    tree.insert(content(*range(10)), 10)
    assert tree.tokens == 8
    assert tree.match(content(0, 1, 2, 3, 4, 5, 6, 99), 8)[1] == 4
    assert tree.match(content(*range(10)), 7)[1] == 4
    assert tree.insert(content(0, 1, 2), 3) == (tree.root, 0)


def test_insert_says_what_was_there():
    tree = RadixTree()
    assert tree.insert(content(1, 2, 3), 3)[1] == 0
    end, found = tree.insert(content(1, 2, 7, 8), 4)
    assert found == 2 and end.tokens == 2
    assert runs(tree) == [(1, 2), (3,), (7, 8)]
    assert tree.tokens == 5


def test_the_prompt_gets_a_node_of_its_own():
    tree = RadixTree()
    tree.insert(content(1, 2, 3, 4, 5), 5, boundary=3)
    assert runs(tree) == [(1, 2, 3), (4, 5)]
    # outputs can go without the prompt: the younger prompt is only a leaf once they are gone
    assert tree.evict(1) == 2
    assert runs(tree) == [(1, 2, 3)]
    plain = RadixTree()
    plain.insert(content(1, 2, 3), 3, boundary=3)
    assert runs(plain) == [(1, 2, 3)]


def test_the_oldest_leaf_goes_first_then_its_parent():
    tree = RadixTree()
    tree.insert(content(1, 2, 3), 3)
    tree.insert(content(1, 2, 4), 3)
    tree.insert(content(9, 9), 2)
    tree.match(content(1, 2, 3), 3)
    # times: (4) < (9, 9) < (1, 2) < (3); after (4) the next oldest is (9, 9), and (1, 2) stays while (3) does
    assert tree.evict(1) == 1 and runs(tree) == [(1, 2), (3,), (9, 9)]
    assert tree.evict(1) == 2 and runs(tree) == [(1, 2), (3,)]
    assert tree.evict(2) == 3 and runs(tree) == []
    assert tree.evict(5) == 0


def test_a_split_renews_the_remainder():
    tree = RadixTree()
    tree.insert(content(1, 2, 3, 4), 4)
    tree.insert(content(8, 8), 2)
    # looking up (1, 2) splits the older node; its remainder (3, 4) is newer than (8, 8) from then on
    tree.match(content(1, 2), 2)
    assert tree.evict(1) == 2
    assert runs(tree) == [(1, 2), (3, 4)]


def test_an_end_node_is_newer_than_its_ancestors():
    tree = RadixTree()
    tree.insert(content(1, 2, 3), 3)
    end, _ = tree.match(content(1, 2), 2)
    below, _ = tree.match(content(1, 2, 3), 3)
    assert below.parent is end and end.time == below.time - 1


def test_locked_paths_are_kept():
    tree = RadixTree()
    end, _ = tree.insert(content(1, 2, 3, 4), 4)
    tree.lock(end)
    assert tree.evictable == 0 and tree.evict(4) == 0
    # a split copies the lock count, so unlocking the end frees both parts
    tree.match(content(1, 2), 2)
    assert [node.locks for node in tree] == [1, 1]
    other, _ = tree.insert(content(1, 2, 9), 3)
    tree.lock(other)
    tree.unlock(end)
    assert tree.evictable == 2 and tree.evict(9) == 2
    assert runs(tree) == [(1, 2), (9,)]
    tree.unlock(other)
    assert tree.evict(9) == 3 and tree.nodes == 0


class Plain:
    """The same cache, written down as a set of pages' prefixes with a time each."""

    def __init__(self, page):
        self.page = page
        self.known = set()

    def match(self, tokens, count):
        found = 0
        for end in range(self.page, count // self.page * self.page + 1, self.page):
            if tuple(tokens[:end]) not in self.known:
                break
            found = end
        return found

    def insert(self, tokens, count):
        found = self.match(tokens, count)
        for end in range(self.page, count // self.page * self.page + 1, self.page):
            self.known.add(tuple(tokens[:end]))
        return found


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=14)), max_size=25),
)
def test_finds_what_was_stored(page, steps):
    tree, plain = RadixTree(page), Plain(page)
    for stores, tokens in steps:
        if stores:
            assert tree.insert(content(*tokens), len(tokens))[1] == plain.insert(tokens, len(tokens))
        else:
            assert tree.match(content(*tokens), len(tokens))[1] == plain.match(tokens, len(tokens))
        assert tree.tokens == len(plain.known) * page == tree.evictable
    assert tree.evict(tree.tokens) == len(plain.known) * page
    assert tree.nodes == 0 and list(tree) == []


@pytest.mark.parametrize("page", [1, 4])
def test_order_holds_after_many_touches(page):
    tree = RadixTree(page)
    for start in range(40):
        tree.insert(content(*range(start * 100, start * 100 + 8)), 8)
    for _ in range(200):
        for start in range(0, 40, 2):
            tree.match(content(*range(start * 100, start * 100 + 8)), 8)
    # every odd one is older than every even one
    assert tree.evict(20 * 8) == 160
    assert {run[0] // 100 % 2 for run in runs(tree)} == {0}

"""SGLang's radix cache: a tree of token runs at page granularity, with locks, splits and a logical clock.

A request's tokens are given as bytes, `TOKEN_BYTES` each. Every access gives a node a new time; eviction takes the
childless unlocked node with the smallest. In simulated time all accesses of one step would carry the same stamp, so
the clock counts accesses. Source: UnifiedRadixCache of SGLang 0.5.23.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np


TOKEN_BYTES = 8
_TICK = 1 << 24
"""Between two accesses there is room for the ancestors, each one less than its child."""


class Node:
    """A run of tokens below `parent`; `children` by their first page; `locks` requests use it."""

    __slots__ = ("key", "tokens", "parent", "children", "locks", "time")

    def __init__(self, key: bytes, parent: "Node | None"):
        self.key = key
        self.tokens = len(key) // TOKEN_BYTES
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.time = 0

    def __repr__(self) -> str:
        return f"Node({self.tokens} tokens, {self.locks} locks, {len(self.children)} children)"


class RadixTree:
    """The cached tokens of one replica. `tokens` are in it, of which `evictable` are unlocked.

    `page_size`: tokens per page; all lengths are cut to whole pages.
    """

    def __init__(self, page_size: int = 1):
        self.page_size = page_size
        self.root = Node(b"", None)
        self.root.locks = 1
        self.tokens = 0
        self.evictable = 0
        self.nodes = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = 0
        self._oldest: list[tuple[int, Node]] = []

    def match(self, content: bytes, tokens: int) -> tuple[Node, int]:
        """The longest cached prefix of the first `tokens`: its end node and length.

        A node that the match ends in is split, and the remainder is newer than all before it; then the end node gets
        the next time, each ancestor a trifle less than its child.
        """
        node, found = self._walk(content, tokens, renew=False)
        self._clock = time = self._clock + _TICK
        end: Node | None = node
        while end is not None:
            self._touch(end, time)
            time -= 1
            end = end.parent
        return node, found

    def insert(self, content: bytes, tokens: int, boundary: int | None = None) -> tuple[Node, int]:
        """Store the first `tokens`: the end node, and how many of them were there already.

        With `boundary`, an insertion that goes past so many tokens is followed by one that ends there, so that what
        comes after (a request's outputs) can be evicted without what comes before (its prompt).
        """
        node, found = self._insert(content, tokens)
        if boundary is not None and tokens // self.page_size > boundary // self.page_size > 0:
            self._insert(content, boundary)
        return node, found

    def lock(self, node: Node) -> None:
        """Keep the path from the root to `node` from being evicted."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= node.tokens
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += node.tokens
                if not node.children:
                    heappush(self._oldest, (node.time, node))
            node = node.parent

    def evict(self, tokens: int) -> int:
        """Drop whole unlocked leaves, the oldest first, until `tokens` are dropped or none is left; how many were."""
        dropped = 0
        oldest = self._oldest
        while dropped < tokens and oldest:
            time, node = heappop(oldest)
            if node.time != time or node.children or node.locks or node.parent is None:
                continue
            dropped += node.tokens
            parent = node.parent
            del parent.children[node.key[: self._page_bytes]]
            node.parent = None
            self.nodes -= 1
            if not parent.children and parent.locks == 0:
                heappush(oldest, (parent.time, parent))
        self.tokens -= dropped
        self.evictable -= dropped
        return dropped

    def __iter__(self) -> Iterator[Node]:
        """All nodes but the root, parents before children."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node

    def _insert(self, content: bytes, tokens: int) -> tuple[Node, int]:
        wanted = tokens // self.page_size * self.page_size
        node, found = self._walk(content, wanted, renew=True)
        if found < wanted:
            leaf = Node(content[found * TOKEN_BYTES : wanted * TOKEN_BYTES], node)
            node.children[leaf.key[: self._page_bytes]] = leaf
            self.nodes += 1
            self.tokens += leaf.tokens
            self.evictable += leaf.tokens
            self._renew(leaf)
            node = leaf
        return node, found

    def _walk(self, content: bytes, tokens: int, renew: bool) -> tuple[Node, int]:
        """Follow the first `tokens` as far as they are cached; the node they end in is split there.

        With `renew`, every node of the path gets a new time on the way down; a remainder always does.
        """
        node, at = self.root, 0
        end = tokens // self.page_size * self._page_bytes
        page = self._page_bytes
        while at < end:
            child = node.children.get(content[at : at + page])
            if child is None:
                break
            key = child.key
            if at + len(key) <= end and content.startswith(key, at):
                node = child
                at += len(key)
                if renew:
                    self._renew(node)
                continue
            shared = _shared_bytes(key, content[at : min(at + len(key), end)]) // page * page
            node = self._split(child, shared)
            at += shared
            if renew:
                self._renew(node)
            self._renew(child)
            break
        return node, at // TOKEN_BYTES

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node after `at` bytes; the new upper part is returned, the node itself keeps the remainder."""
        parent, key = node.parent, node.key
        assert parent is not None
        upper = Node(key[:at], parent)
        upper.locks = node.locks
        upper.time = node.time
        parent.children[key[: self._page_bytes]] = upper
        node.key = key[at:]
        node.tokens -= upper.tokens
        node.parent = upper
        upper.children[node.key[: self._page_bytes]] = node
        self.nodes += 1
        return upper

    def _renew(self, node: Node) -> None:
        self._clock += _TICK
        self._touch(node, self._clock)

    def _touch(self, node: Node, time: int) -> None:
        node.time = time
        if not node.children and node.locks == 0:
            heappush(self._oldest, (time, node))
            if len(self._oldest) > 4 * self.nodes + 1024:
                self._oldest = [(leaf.time, leaf) for leaf in self if not leaf.children and leaf.locks == 0]
                heapify(self._oldest)


def _shared_bytes(one: bytes, other: bytes) -> int:
    """Bytes of whole tokens that both begin with."""
    tokens = min(len(one), len(other)) // TOKEN_BYTES
    differ = np.flatnonzero(np.frombuffer(one, np.int64, tokens) != np.frombuffer(other, np.int64, tokens))
    return (int(differ[0]) if differ.size else tokens) * TOKEN_BYTES

"""Requests and caches for the tests of `sim.memory.cache`: tokens are small numbers, outputs unlike any prompt."""

import numpy as np

from sim.deployment.rules import CacheRules
from sim.deployment.settings import load_engine
from sim.memory.cache import KVCache
from sim.memory.shape import CacheShape, GroupShape


VERSIONS = ("0.10.2", "0.19.0", "0.33.0")


class Asking:
    """A request as the cache sees it."""

    def __init__(self, index, tokens):
        self.index = index
        self.token_ids = np.array(tokens, dtype=np.int64)
        self.prompt = self.known = len(tokens)
        self.output_base = (index + 1) << 32
        self.computed = self.in_flight = self.preemptions = self.junction = 0
        self.block_keys = []
        self.tables = []
        self.registered = []


def rules(version) -> CacheRules:
    return load_engine("vllm", version).profile.cache


def make(version, *groups, usable=100, reuse=True, eagle=False, max_model_len=1000, ahead_tokens=16):
    """A cache of groups (kind, block size, window)."""
    shape = CacheShape(usable, reuse, tuple(GroupShape(*group) for group in groups))
    return KVCache(
        shape, rules(version), reuse=reuse, max_model_len=max_model_len, ahead_tokens=ahead_tokens, eagle=eagle
    )


def admit(cache, request, tokens=None):
    """Look up and allocate `tokens` (all known ones) of a request; returns the tokens found."""
    hit = cache.lookup(request)
    new = cache.allocate(request, (tokens or request.known) - hit.tokens, hit)
    assert new is not None
    request.computed = tokens or request.known
    return hit.tokens


def decode(cache, request, lookahead=0):
    """One token more, and blocks for it; returns the new blocks per group."""
    request.known += 1
    new = cache.allocate(request, 1, None, lookahead)
    request.computed += 1
    return new


def forget(pool, block):
    """Take a block's hash away, as if it had been evicted."""
    del pool.by_hash[pool.hash_of[block]]
    pool.hash_of[block] = None


def hashed(cache, request, group):
    """Places in a table whose blocks have a hash."""
    return [i for i, block in enumerate(request.tables[group]) if block and cache.pool.hash_of[block] is not None]

"""Block tables with identity for every kind of attention, and the prefix cache over them."""

from sim.memory.cache.manager import Cached, Hit, KVCache
from sim.memory.cache.shapes import cache_shape


__all__ = ["Cached", "Hit", "KVCache", "cache_shape"]

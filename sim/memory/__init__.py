"""How much fits: the KV budget by the engine's own rule, KV-cache groups, and the block pool."""

from sim.memory.budget import cache_layout, memory_budget, request_shape
from sim.memory.terms import MemoryBudget, StageBudget, Term
from sim.memory.text import to_json, to_text


__all__ = [
    "MemoryBudget",
    "StageBudget",
    "Term",
    "cache_layout",
    "memory_budget",
    "request_shape",
    "to_json",
    "to_text",
]

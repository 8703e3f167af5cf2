"""Loads of the rows of operator tables, by the rule their experts' rows were drawn with.

Even routing strides over the experts: token t takes `t + i ceil(E/k)` for i < k; with fewer tokens than a stride, their
starts are spread over it. Skewed routing draws popularities from a bounded power law, rounds them to T k rows, caps
each at T, and hands what is over or missing out in turn, to the emptiest expert of each rank (or from the fullest).
Tables of `UNCAPPED` versions give what is missing to the most popular experts, with no cap. The busiest rank was
measured (of even routing, the first). Draws have a fixed seed; a row's loads are means over `DRAWS`.

Rows of `GROUP_LIMITED` op let every token choose 4 of 8 groups of experts first. Of its strided experts, one per
group, four stay, and their groups give it a second each: half the experts are ever active. Of drawn experts the share
`STAY` stays (the expected number in the best four groups, of 8 drawn among 8 groups of 32: 6.68), and the rest of the
rows goes to experts that are active anyway.
"""

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from predictors.moe.loads import TILES, Loads
from predictors.table import GROUP_LIMITED, OperatorTable


DRAWS = 16
STAY = 6.68 / 8.0
UNCAPPED = (("vllm", "0.14.0"), ("trtllm", "1.0.0"))
KEY = ("tokens", "experts", "top_k", "ep", "skew")


def table_loads(table: OperatorTable) -> Loads:
    """Loads of every row; where a row tells how many experts were active, or how full the fullest was, from that."""
    keys = np.stack([np.nan_to_num(table[name]) for name in KEY], axis=1)
    builds = zip(table["engine"].tolist(), table["engine_version"].tolist(), strict=True)
    keys = np.column_stack([keys, [build in UNCAPPED for build in builds], table["op"] == GROUP_LIMITED])
    known = np.isfinite(table["active"])
    keys[known] = (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    distinct, place = np.unique(keys, axis=0, return_inverse=True)
    found = np.array([_loads(*map(int, key[:4]), float(key[4]), *map(bool, key[5:])) for key in distinct])[place]
    rows: Any = found[:, 0]
    active: Any = found[:, 1]
    padded: Any = found[:, 2:].T
    if known.any():
        local = table["experts"] / table["ep"]
        rows = np.where(known, table["tokens"] * table["top_k"] / table["ep"], rows)
        active = np.where(known, np.clip(table["active"], 1.0, np.minimum(local, np.maximum(rows, 1.0))), active)
        padded = np.where(known, [np.maximum(active * tile, rows + active * (tile - 1) / 2) for tile in TILES], padded)
    return Loads(rows, active, padded)


@cache
def _loads(
    tokens: int, experts: int, top_k: int, ranks: int, skew: float, uncapped: bool, grouped: bool
) -> tuple[float, ...]:
    """Rows, active experts and padded rows of the measured rank."""
    if skew == 0.0 and grouped:
        counts = 2 * strided(tokens, experts // 2, top_k // 2)[None]
    elif skew == 0.0:
        counts = strided(tokens, experts, top_k)[None, : max(experts // ranks, 1)]
    else:
        drawn = skewed(tokens, experts, top_k, ranks, skew, uncapped)
        counts = drawn[np.arange(DRAWS), drawn.sum(axis=2).argmax(axis=1)]
    active = 1.0 - (1.0 - STAY if grouped and skew else 0.0) ** counts
    padded = (float((active * np.ceil(counts / tile) * tile).sum(axis=1).mean()) for tile in TILES)
    return float(counts.sum(axis=1).mean()), float(active.sum(axis=1).mean()), *padded


def strided(tokens: int, experts: int, top_k: int) -> Int[np.ndarray, " expert"]:
    """Rows of each expert under even routing."""
    stride = -(-experts // top_k)
    start = np.arange(tokens) * (stride / tokens if tokens < stride else 1.0)
    chosen = np.floor(start[:, None] + np.arange(top_k) * stride).astype(int) % experts
    return np.bincount(chosen.ravel(), minlength=experts)


def skewed(
    tokens: int, experts: int, top_k: int, ranks: int, skew: float, uncapped: bool = False
) -> Int[np.ndarray, "draw rank local"]:
    """Rows of each expert in `DRAWS` draws from the power law of exponent `skew`."""
    total = tokens * top_k
    low, high = (1.0, max(0.8 * tokens, 1.0)) if total > experts else (0.01, 2.0)
    power = 1.0 - skew
    generator = np.random.default_rng([tokens, experts, top_k, ranks, round(1000 * skew)])
    uniform = generator.random((DRAWS, experts))
    drawn = (low**power + uniform * (high**power - low**power)) ** (1.0 / power)
    rounded = np.rint(drawn / drawn.sum(axis=1, keepdims=True) * total).astype(int)
    if uncapped:
        return _to_the_largest(rounded, drawn, total).reshape(DRAWS, ranks, experts // ranks)
    over = np.maximum(rounded - tokens, 0).sum(axis=1)
    counts = np.minimum(rounded, tokens).reshape(DRAWS, ranks, experts // ranks)
    counts = _in_turn(counts, over, 1, tokens)
    missing = total - counts.sum(axis=(1, 2))
    counts = _in_turn(counts, np.maximum(missing, 0), 1, tokens)
    return _in_turn(counts, np.maximum(-missing, 0), -1, tokens)


def _to_the_largest(
    counts: Int[np.ndarray, "draw expert"], drawn: Float[np.ndarray, "draw expert"], total: int
) -> Int[np.ndarray, "draw expert"]:
    """What is missing of `total` goes to the most popular experts, one row each; what is over comes from the least."""
    missing = (total - counts.sum(axis=1))[:, None]
    experts = counts.shape[1]
    place = np.argsort(np.argsort(-drawn, axis=1, kind="stable"), axis=1)
    place = np.where(missing > 0, place, experts - 1 - place)
    units = np.abs(missing)
    change = np.sign(missing) * (units // experts + (place < units % experts))
    return np.maximum(counts + change, 0)


def _in_turn(
    counts: Int[np.ndarray, "draw rank local"], units: Int[np.ndarray, " draw"], sign: int, most: int
) -> Int[np.ndarray, "draw rank local"]:
    """`units` rows one by one over the ranks, each to its emptiest expert up to `most` (sign -1: from its fullest)."""
    ranks = counts.shape[1]
    share = units[:, None] // ranks + (np.arange(ranks) < (units % ranks)[:, None])
    signed, limit = counts * sign, most if sign > 0 else 0
    low, high = signed.min(axis=2), np.full(share.shape, limit)
    while (low < high).any():  # the highest level that the units can fill all experts to
        level = (low + high + 1) // 2
        fits = np.maximum(level[..., None] - signed, 0).sum(axis=2) <= share
        low, high = np.where(fits, level, low), np.where(fits, high, level - 1)
    left = share - np.maximum(low[..., None] - signed, 0).sum(axis=2)
    signed = np.maximum(signed, low[..., None])
    level_with = (signed == low[..., None]) & (low[..., None] < limit)
    return sign * (signed + (level_with & (np.cumsum(level_with, axis=2) <= left[..., None])))

"""Rows of attention tables that prefill, as what the closed form reads; the kernels they tell apart; splits."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Bool

from predictors.attention.mixed_form import Heads, Lengths
from predictors.family import none_of
from predictors.splits import combinations, held_out
from predictors.table import OperatorTable
from sim.cost.lengths import windowed_chunk, windowed_rows
from sim.cost.prefill import HALF_STEP, STEP_KEYS
from sim.deployment.lower import attention_flops_per_s
from sim.deployment.plan import UNLIMITED
from sim.hardware.spec import DeviceConf


OPS = ("prefill", "mixed", "mixed_skewed", "mixed_uniform", "mla_prefill")
"""Kernels alone; modules hold projections, too."""
LONG_TOKENS = 8192.0
CACHE_SHARE = 0.7
"""Of the last-level cache, filled by the keys of one head: above it heads that read alone thrash it."""
TOP_SHARE = 0.75
ONE_IN = 8
LAYOUT = ("q_heads", "kv_heads", "qk_dim")
CELL = ("decodes", "decode_sum", "decode_max")


def is_mixed(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """The rows this family is about."""
    return none_of(unused(table), len(table))


def unused(table: OperatorTable) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """See `predictors.family.Family.unused`. A batch of one token per chunk runs the decode kernel."""
    return {
        "of batches without a chunk of two tokens": ~(table["prefill_tokens"] > table["prefill_chunks"]),
        f"whose op is none of {', '.join(OPS)}": ~np.isin(table["op"], OPS),
        "with the host's launch in their time": ~(table["timing"] == "kernel").astype(bool),
    }


def shapes(table: OperatorTable) -> int:
    """See `predictors.family.Family.shapes`: head layouts of prefills, cells of decodes beside them."""
    table = table.where(is_mixed(table))
    mixed = table["decodes"] > 0.0
    return combinations(table.where(~mixed), *LAYOUT) + combinations(table.where(mixed), *CELL)


def names_of(table: OperatorTable) -> np.ndarray:
    """The kernel of each row: `engine|version|kernel|dtype|bytes of a cache element|score and value dims`.

    Kernels are compiled by head dim: constants of one tell little of another's.
    """
    labels = ("engine", "engine_version", "kernel", "dtype")
    columns = (table[label].tolist() for label in labels)
    dims = (table["qk_dim"] + table["v_dim"]).tolist()
    rows = zip(*columns, table["kv_bytes_per_element"].tolist(), dims, strict=True)
    return np.array([f"{e}|{v}|{k}|{t}|{b:g}|{d:g}" for e, v, k, t, b, d in rows], object)


def lengths_of(table: OperatorTable) -> Lengths:
    """The batches of a table after their windows, float64.

    Where just two lengths occur among decodes, as in tables of skewed batches, both are known; each is put into the
    middle of its last step of keys, where the closed form expects lengths to be.
    """
    tokens: Any
    chunks: Any
    context: Any
    mean: Any
    variance: Any
    longest: Any
    window: Any
    area: Any
    deepest: Any
    seen: Any
    loaded: Any
    last: Any
    tokens, chunks, context = table["prefill_tokens"], table["prefill_chunks"], table["prefill_kv_tokens"]
    mean, variance, longest = _decodes(table)
    window = np.minimum(table["window"], UNLIMITED)
    free = window >= UNLIMITED
    area, deepest = table["prefill_area"] / tokens, table["prefill_max_tokens"]
    seen, loaded, last = windowed_chunk(np, area, tokens / chunks, chunks, context, deepest, window, 0.0 * window)
    within = windowed_rows(np, mean, variance, longest, window, 0.0 * window)
    pairs = zip((seen, loaded, last, *within), (area, context, deepest, mean, variance, longest), strict=True)
    seen, loaded, last, mean, variance, longest = (np.where(free, whole, cut) for cut, whole in pairs)
    prior = context - tokens
    return Lengths(tokens, chunks, seen, loaded, last, prior, table["decodes"], mean, variance, longest)


def _decodes(table: OperatorTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variance and longest."""
    rows, longest = np.maximum(table["decodes"], 1.0), table["decode_max"]
    mean = table["decode_sum"] / rows
    variance = np.maximum(table["decode_sumsq"] / rows - mean * mean, 0.0)
    variance = np.where(variance > 1e-9 * mean * mean, variance, 0.0)
    spread = variance > 0.0
    beyond = np.where(spread, longest - mean, 1.0)
    long = rows * variance / (variance + beyond * beyond)
    low = mean - variance / beyond
    two = spread & (np.abs(long - np.round(long)) < 1e-6 * rows) & (np.abs(low - np.round(low)) < 1e-6 * low)
    long = np.round(long)
    short_keys, long_keys = (STEP_KEYS * np.ceil(np.round(keys) / STEP_KEYS) - HALF_STEP for keys in (low, longest))
    centred = ((rows - long) * short_keys + long * long_keys) / rows
    squares = ((rows - long) * short_keys**2 + long * long_keys**2) / rows
    return (
        np.where(two, centred, mean),
        np.where(two, np.maximum(squares - centred**2, 0.0), variance),
        np.where(two, long_keys, longest),
    )


def heads_of(table: OperatorTable, device: DeviceConf) -> Heads:
    """What the rows run, with the device's rates as a plan has them."""
    dim = table["qk_dim"] + table["v_dim"]
    same = np.ones(len(table))
    return Heads(
        q_heads=table["q_heads"],
        kv_heads=table["kv_heads"],
        dim=dim,
        kv_token_bytes=table["kv_heads"] * dim * table["kv_bytes_per_element"],
        window=np.minimum(table["window"], UNLIMITED),
        flops_per_s=attention_flops_per_s(device) * same,
        memory_bytes_per_s=device.memory_bytes_per_s * device.memory_efficiency * same,
        cache_bytes=device.cache_bytes * same,
        units=device.compute_units * same,
    )


def splits_of(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """Held-out rows by split.

    - shapes: one in eight head layouts of batches that only prefill, and cells of mixed ones.
    - heads, lengths, top: of batches that only prefill: head layouts, chunk lengths, the quarter with most work.
    - model: all of one model, the first by hash of those with mixed batches; decode_lengths: longest decodes;
      long: decodes of 8192 tokens and more.
    - skewed_small, skewed_large: cells of decodes of two lengths, below and above 0.7 of the cache.
    """
    mine = is_mixed(table)
    mixed = mine & (table["decodes"] > 0.0)
    only, skewed = mine & ~mixed, mine & (table["op"] == "mixed_skewed")
    layouts, cells = held_out(table, LAYOUT, ONE_IN), held_out(table, CELL, ONE_IN)
    chunk = table["prefill_tokens"] / np.maximum(table["prefill_chunks"], 1.0)
    by_chunk = OperatorTable(table.family, table.device, {"chunk": chunk}, {}, table.seconds)
    head_bytes = (table["qk_dim"] + table["v_dim"]) * table["kv_bytes_per_element"]
    small = table["decode_sum"] * head_bytes < CACHE_SHARE * device.cache_bytes
    some = held_out(table, CELL, 4)
    return {
        "shapes": (only & layouts) | (mixed & cells),
        "heads": only & layouts,
        "lengths": only & held_out(by_chunk, ("chunk",)),
        "top": _top(table, only),
        "model": mine & (table["model"] == _held_model(table, mixed)),
        "decode_lengths": mixed & held_out(table, ("decode_max",)),
        "long": mixed & (table["decode_max"] >= LONG_TOKENS),
        "skewed_small": skewed & some & small,
        "skewed_large": skewed & some & ~small,
    }


def _top(table: OperatorTable, only: np.ndarray) -> np.ndarray:
    """The quarter of each kernel's rows with most query-key products."""
    rows = np.flatnonzero(only)
    part = table.where(only)
    work, names = part["prefill_area"] * part["q_heads"], names_of(part)
    found = np.zeros(len(table), bool)
    for name in set(names.tolist()):
        mine = names == name
        found[rows[mine]] = work[mine] >= np.quantile(work[mine], TOP_SHARE)
    return found


def _held_model(table: OperatorTable, mixed: np.ndarray) -> str | None:
    """None where fewer than two have mixed batches."""
    models = set(table["model"][mixed].tolist())
    if len(models) < 2:
        return None
    return str(min(models, key=lambda model: blake2b(model.encode(), digest_size=8).digest()))

"""Fits the constants of every operator of every engine, and prices rows of tables with them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from predictors.elementwise.form import BOUNDS, NAMES, Rates, analytic_constants_of, rates_of, row_seconds
from predictors.family import Fitted, Predicted, none_of
from predictors.physics import fit_constants
from predictors.splits import combinations, held_out
from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


NAME, VERSION = "elementwise", 1
START = analytic_constants_of() | {"row": 5e-12, "block": 1e-10}
STEPS, QUICK_STEPS, ROWS = 1000, 150, 1500
BEYOND = 2.0
"""Outside calibration, twice the error is claimed."""
LEAST_ERROR = 0.02
ANCHOR, ANCHOR_CACHES = 0.01, 4.0
"""Weight of what is assumed beyond the cache, where a variant's rows weigh 1; and its size in caches."""
FEWEST = 20
"""Rows that a variant needs."""
ONE_IN = 8
WIDTHS = 4
"""Of so many widths of an operator whole ones are held out, of fewer single sizes."""
ANY = "any"
"""Engine of rows that name none."""
OLD_SOURCES = ("Vidur", "LLMServingSim profiler/v0")
"""Profiles of research engines and of plain PyTorch modules: norms of 6 and 20 us where engines now take 2 us."""
EAGER = ("torch eager", "sglang")
"""Labels `kernel` of several kernels in a row, which engines fuse.

Of `scripts/profile.py`; and of SGLang's quantising tables, whose 8 us and ten passes over the memory tell as much.
"""
OPS: Mapping[str, tuple[str, ...]] = {
    "norm": ("norm", "final_norm"),
    "rotary": ("rotary",),
    "activation": ("activation",),
    "cache_write": ("cache_write",),
    "embedding": ("embedding", "embedding_shard"),
    "qk_norm": ("qk_norm",),
    "add": ("add",),
    "gate": ("gate",),
    "quantise": ("quantise_scale_matrix",),
}
"""Operators of tables that measure each kind of kernel of a plan, best first."""
LIKE: Mapping[str, tuple[str, ...]] = {
    "norm": ("norm_only", "add"),
    "cache_write": ("rotary",),
    "qk_norm": ("norm_only", "norm"),
    "add": ("activation",),
    "gate": ("activation",),
}
"""What a kind is most like where nobody measured it."""


def variants(table: OperatorTable) -> list[str]:
    """Engine, version and operator of every row."""
    rows = zip(*(table[name].tolist() for name in ("engine", "engine_version", "op")), strict=True)
    return [" ".join(filter(None, (engine or ANY, version, op))) for engine, version, op in rows]


def used(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Rows of kernels that plans price, as engines run them, timed alone; of variants with enough of them."""
    return none_of(unused(table), len(table))


def unused(table: OperatorTable) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """See `predictors.family.Family.unused`.

    Of Frontier's models only those that its own profiler timed, in both ways: the others are Vidur's.
    """
    timing, source, model = table["timing"], table["source"], table["model"]
    frontier = source == "Frontier"
    copied = frontier & ~np.isin(model, list(set(model[frontier & (timing == "launch")].tolist())))
    wanted = sorted({op for ops in (*OPS.values(), *LIKE.values()) for op in ops})
    eager = np.isin(table["kernel"], EAGER)
    named = " and ".join(sorted(set(table["kernel"][eager].tolist())))
    found = {
        f"of several kernels in a row, which engines fuse into one (kernel {named})": eager,
        "with the host's launch in their time": np.asarray(timing != "kernel", bool),
        "of research engines or plain modules": np.isin(source, OLD_SOURCES) | copied,
        f"whose op is none of {', '.join(wanted)}": ~np.isin(table["op"], wanted),
    }
    rows, names = none_of(found, len(table)), np.array(variants(table), object)
    known, counts = np.unique(names[rows].astype(str), return_counts=True)
    return found | {
        f"of an engine, version and op with fewer than {FEWEST} rows": rows & ~np.isin(names, known[counts >= FEWEST])
    }


def fit(table: OperatorTable, device: DeviceConf, seed: int, quick: bool) -> Fitted:
    """See `predictors.family.Family.fit`. Each width of a variant weighs alike."""
    table = table.where(used(table))
    if not len(table):
        raise ValueError(
            f"the elementwise tables hold no operator of an engine with {FEWEST} rows timed alone; add some, or leave "
            "the family out."
        )
    names, tokens, width, rates = variants(table), table["tokens"], table["bytes_per_token"], rates_of(device)
    kernels = tuple(sorted(set(names)))
    code = np.array([kernels.index(name) for name in names])
    generator = np.random.default_rng(seed)
    every = [np.flatnonzero(code == one) for one in range(len(kernels))]
    at = np.concatenate([np.sort(rows if len(rows) <= ROWS else generator.choice(rows, ROWS, False)) for rows in every])
    far = _anchors(every, tokens, width, rates)
    owner = np.concatenate([code[at], far.owner])
    counts, sizes = np.concatenate([tokens[at], far.tokens]), np.concatenate([width[at], far.width])
    seconds = np.concatenate([table.seconds[at], far.seconds])
    weights = np.concatenate([_weights(code[at], width[at]), np.full(len(far.owner), ANCHOR)])

    def form(constants: Mapping[str, Any]) -> Any:
        return row_seconds(jnp, _by_row(constants, owner), counts, sizes, rates)

    start = {name: np.full(len(kernels), START[name]) for name in NAMES}
    steps = QUICK_STEPS if quick else STEPS
    constants, _ = fit_constants(form, start, seconds, bounds=BOUNDS, weights=weights, steps=steps)
    error = np.abs(row_seconds(np, _by_row(constants, code), tokens, width, rates) / table.seconds - 1.0)
    limits = {
        f"{end}_{what}": np.array([pick(values[rows]) for rows in every])
        for end, pick in (("low", np.min), ("high", np.max))
        for what, values in (("width", width), ("bytes", tokens * width))
    }
    arrays = {
        "constants": constants,
        "error": np.array([max(LEAST_ERROR, float(np.mean(error[rows]))) for rows in every]),
        "rows": np.array([float(len(rows)) for rows in every]),
        **limits,
    }
    return Fitted(NAME, VERSION, arrays, kernels, {"seed": seed, "rows": len(table)})


class Anchors(NamedTuple):
    """Rows that nobody measured: what variants whose rows never leave the cache take far beyond it, one pass."""

    owner: np.ndarray
    tokens: np.ndarray
    width: np.ndarray
    seconds: np.ndarray


def _anchors(every: Sequence[np.ndarray], tokens: np.ndarray, width: np.ndarray, rates: Rates) -> Anchors:
    """One for each variant that needs it; `every`: rows of each. Without, chance decides what larger batches take."""
    beyond = ANCHOR_CACHES * rates.cache_bytes
    owner = [one for one, rows in enumerate(every) if np.max(tokens[rows] * width[rows]) < beyond]
    wide = np.array([np.max(width[every[one]]) for one in owner])
    return Anchors(np.array(owner, int), beyond / wide, wide, np.full(len(owner), beyond / rates.memory_bytes_per_s))


def _weights(owner: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Variants weigh alike, and so do the widths of each."""
    pairs = np.stack([owner, width], axis=1)
    _, pair, size = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    weights = 1.0 / size[pair.ravel()]
    return weights / np.bincount(owner, weights)[owner]


def _by_row(constants: Mapping[str, Any], code: np.ndarray) -> dict[str, Any]:
    return {name: value[code] for name, value in constants.items()}


def predict(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """See `predictors.family.Family.predict`; a variant that was not fitted takes the nearest (`like`)."""
    code, arrays = like(fitted, variants(table)), fitted.arrays
    constants = {name: np.asarray(value, np.float64)[code] for name, value in arrays["constants"].items()}
    tokens, width = table["tokens"], table["bytes_per_token"]
    seconds = row_seconds(np, constants, tokens, width, rates_of(device))
    limits = (np.asarray(arrays[name], np.float64)[code] for name in LIMITS)
    outside = 1.0 - within(np, width, tokens * width, *limits)
    return Predicted(seconds, np.asarray(arrays["error"], np.float64)[code] * (1.0 + (BEYOND - 1.0) * outside), outside)


LIMITS = ("low_width", "high_width", "low_bytes", "high_bytes")


def within(
    xp: Any, width: Any, moved_bytes: Any, low_width: Any, high_width: Any, low_bytes: Any, high_bytes: Any
) -> Any:
    """1 where a kernel's bytes per token and in all lie in the measured range; else 0.

    A factor of two is granted but for most bytes, where a cache may end.
    """
    wide = (width >= 0.5 * low_width) & (width <= 2.0 * high_width)
    return xp.where(wide & (moved_bytes >= 0.5 * low_bytes) & (moved_bytes <= 1.001 * high_bytes), 1.0, 0.0)


def like(fitted: Fitted, names: Sequence[str]) -> Int[np.ndarray, " row"]:
    """Variant of each name: itself, or of the same operator and with most words in common."""
    known = {name: _nearest(fitted, name.split()) for name in set(names)}
    return np.array([known[name] for name in names], int)


def _nearest(fitted: Fitted, words: list[str]) -> int:
    alike = [
        (kernel.split()[-1] == words[-1], len(set(words) & set(kernel.split())), -index)
        for index, kernel in enumerate(fitted.kernels)
    ]
    return -max(alike)[2]


def shapes(table: OperatorTable) -> int:
    """See `predictors.family.Family.shapes`: widths of operators with four or more, else sizes."""
    table = table.where(used(table))
    found = 0
    for _, own in table.groups("op"):
        part = table.where(own)
        widths = combinations(part, "bytes_per_token")
        found += widths if widths >= WIDTHS else combinations(part, "bytes_per_token", "tokens")
    return found


def splits(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """One in eight widths of operators with four or more, else one in eight sizes; the larger half of batches."""
    rows, wide = used(table), np.zeros(len(table), bool)
    for _, own in table.groups("op"):
        wide |= own & (len(set(table["bytes_per_token"][own & rows].tolist())) >= WIDTHS)
    width: Float[np.ndarray, " row"] = table["bytes_per_token"]
    sizes = held_out(table, ("op", "bytes_per_token", "tokens"), ONE_IN)
    largest = np.max(table["tokens"], initial=0.0, where=rows)
    return {
        "shapes": rows & np.where(wide, held_out(table, ("op", "bytes_per_token"), ONE_IN), sizes),
        "cells": rows & sizes & (width > 0.0),
        "top": rows & (table["tokens"] > 0.5 * largest),
    }

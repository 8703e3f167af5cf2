"""Family `decode`: attention kernels of batches that only decode, one fit per device over all engines' kernels.

Physics with constants by kernel (`decode_form`) times an ensemble's residual, one ensemble per engine
(`decode_features`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from predictors.attention.decode_features import features, within
from predictors.attention.decode_form import BOUNDS, chosen, seconds, starts, work
from predictors.attention.decode_kernel import OUTSIDE, WORK_SLACK, LearnedDecode
from predictors.attention.decode_kernels import (
    RULES,
    Kernels,
    as_arrays,
    cut_of,
    engine_of,
    is_decode,
    is_latent,
    kernels_of,
    names_of,
    nearest,
    rates_of,
    rows_of,
    style_of,
    unused as unused,
    window_state,
)
from predictors.family import Fitted, Predicted
from predictors.physics import fit_constants
from predictors.residual import Residual, Schedule, train
from predictors.splits import combinations, held_out
from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


NAME = "decode"
VERSION = 1
ONE_IN = 16
PER_KERNEL, DESCENT = 160, 1000
SCHEDULE = Schedule(members=3, width=64, steps=4000, batch=1024)
QUICK = Schedule(members=2, width=16, steps=200, batch=256)
CHUNK = 16384
HEADS, CELLS = ("q_heads", "kv_heads", "qk_dim"), ("decodes", "decode_max")


def fit(table: OperatorTable, device: DeviceConf, seed: int, quick: bool, schedule=None) -> Fitted:
    """Constants of all kernels together, then one ensemble per engine."""
    table = table.where(is_decode(table))
    if not len(table):
        raise ValueError("the attention tables hold no batch that only decodes; add some, or leave the family out.")
    names = names_of(table)
    known = tuple(sorted(set(names.tolist())))
    code = np.array([known.index(name) for name in names.tolist()])
    kernels, rates = kernels_of(table, names, known), rates_of(device)
    sample = _sample(code, np.asarray(table["decode_sum"] * table["kv_heads"]), seed)
    few = np.union1d(sample[::2], _chains(table, code, rates, seed))
    kernels = _cut(table.where(few), kernels, known, code[few], rates, 50 if quick else 300)
    constants, _, _ = _constants(table.where(sample), kernels, code[sample], rates, 100 if quick else DESCENT)
    batch = rows_of(table, kernels, code)
    physics_s, seen = _seen(batch, code, kernels, constants, rates, len(known))
    nets = {}
    for engine in sorted({engine_of(name) for name in known}):
        mine = np.flatnonzero(np.array([engine_of(name) == engine for name in known])[code])
        count = np.bincount(code[mine], minlength=len(known))
        rows = np.repeat(mine, np.rint((count.max() / count[code[mine]]) ** 0.5).astype(int))
        net = train(
            seen[rows],
            np.log(table.seconds / physics_s)[rows],
            seed=seed,
            schedule=schedule or (QUICK if quick else SCHEDULE),
        )
        nets[engine] = _stored(net)
    arrays = {"constants": constants, "kernels": as_arrays(kernels), "nets": nets, "rel_error": np.zeros(len(known))}
    fitted = Fitted(NAME, VERSION, arrays, known, {"rows": len(table), "seed": seed})
    found = predict(fitted, table, device)
    size = np.abs(found.seconds / table.seconds - 1.0) + found.rel_error
    arrays["rel_error"] = np.bincount(code, size) / np.bincount(code)
    return fitted


def predict(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """Price every row; those of a kernel that the fit does not know, and those beyond its work, are marked."""
    kernels = Kernels(**fitted.arrays["kernels"])
    code, unknown = _codes(fitted.kernels, kernels, table)
    rates = rates_of(device)
    batch = rows_of(table, kernels, code)
    physics_s, seen = _seen(batch, code, kernels, fitted.arrays["constants"], rates, len(fitted.kernels))
    factor, spread, outside = np.ones(len(table)), np.zeros(len(table)), np.zeros(len(table))
    for engine, stored in fitted.arrays["nets"].items():
        mine = np.flatnonzero(np.array([engine_of(name) == engine for name in fitted.kernels])[code])
        net = residual(stored)
        for start in range(0, len(mine), CHUNK):
            rows = mine[start : start + CHUNK]
            found = _apply(net, jnp.asarray(seen[rows]))
            factor[rows], spread[rows], outside[rows] = np.exp(found.log_factor), found.spread, found.outside
    beyond = batch.rows * batch.mean * batch.kv_heads > WORK_SLACK * np.asarray(kernels.work)[code]
    outside = np.where(unknown | beyond, 1.0, outside)
    error = spread + np.asarray(fitted.arrays["rel_error"])[code]
    return Predicted(physics_s * factor, error * (1.0 + (OUTSIDE - 1.0) * outside), outside)


def _codes(known: tuple[str, ...], kernels: Kernels, table: OperatorTable) -> tuple[np.ndarray, np.ndarray]:
    """Index of the kernel of each row, of the nearest one (its engine's if there is any) where it is not `known`; and
    whether that is so."""
    names, latent = names_of(table), is_latent(table)
    place = {name: index for index, name in enumerate(known)}
    unknown = np.array([name not in place for name in names.tolist()], bool)
    for name in set(names[unknown].tolist()):
        row = int(np.flatnonzero(names == name)[0])
        alike = np.asarray(kernels.latent) == latent[row]
        own = np.array([engine_of(other) == engine_of(name) for other in known])
        allowed = next(some for some in (alike & own, alike, own, own | True) if some.any())
        what = {
            "group": table["q_heads"][row] / table["kv_heads"][row],
            "element_bytes": table["kv_bytes_per_element"][row],
            "latent": float(latent[row]),
            "past": window_state(table)[row],
            "dims": table["qk_dim"][row] + table["v_dim"][row],
        }
        with jax.enable_x64(True):
            place[name] = int(nearest(kernels, allowed, **what))
    return np.array([place[name] for name in names.tolist()], int), unknown


def shapes(table: OperatorTable) -> int:
    """See `predictors.family.Family.shapes`: head layouts, and batch sizes with their longest contexts."""
    table = table.where(is_decode(table))
    return combinations(table, *HEADS) + combinations(table, *CELLS)


def splits(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """Unseen head layouts and cells, and the largest quarter of batch times length."""
    mine = is_decode(table)
    heads, cells = HEADS, CELLS
    tokens = table["decode_sum"]
    top = np.quantile(tokens[mine], 0.75)
    found = {
        "shapes": held_out(table, heads, ONE_IN) | held_out(table, cells, ONE_IN),
        "heads": held_out(table, heads),
        "cells": held_out(table, cells),
        "top": tokens >= top,
    }
    return {name: rows & mine for name, rows in found.items()}


_apply = jax.jit(lambda net, rows: net(rows))


def residual(stored: Mapping[str, Any]) -> Residual:
    """The stored network."""
    parameters = {name: dict(layer) for name, layer in stored["parameters"].items()}
    first = parameters["Dense_0"]
    used = np.asarray(stored["high"]) > np.asarray(stored["low"])
    weights = np.zeros((first["kernel"].shape[0], len(used), first["kernel"].shape[-1]), np.float16)
    weights[:, used] = first["kernel"]
    parameters["Dense_0"] = first | {"kernel": weights}
    return Residual(width=weights.shape[-1], **(dict(stored) | {"parameters": parameters}))


def _constants(table, kernels, code, rates, steps, start=None):
    """Constants that fit the rows, the physics of each and the size of its logarithmic error."""
    converts = (kernels.latent > 0.0) & (kernels.kv_element_bytes < 2.0)
    most_read = np.where(converts, CONVERTED, BOUNDS["read"][1])
    least_share = np.where(converts, CONVERTED_SHARE, BOUNDS["compute"][0])
    with jax.enable_x64(True):
        batch = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rows_of(table, kernels, code))
        done = jax.tree.map(np.asarray, work(batch, rates))
        ends: dict[str, Any] = dict(BOUNDS)
        found, _ = fit_constants(
            lambda c: seconds(batch, done, rates, chosen(c, code)),
            start or starts(len(kernels.rule)),
            table.seconds,
            bounds=ends
            | {
                "read": (np.full(len(kernels.rule), BOUNDS["read"][0]), most_read),
                "compute": (least_share, np.full(len(kernels.rule), BOUNDS["compute"][1])),
            },
            steps=steps,
        )
        physics_s = np.asarray(seconds(batch, done, rates, chosen(found, code)))
    return found, physics_s, np.abs(np.log(physics_s / table.seconds))


def _cut(table, kernels, known, code, rates, steps):
    """How each kernel splits rows and packs heads: what fits its rows best, tried one after the other.

    Kernels that differ only by the window are taken to do it alike.
    """
    alone = table["q_heads"] <= table["kv_heads"]
    family = np.array([cut_of(name) for name in known], object)
    free = np.array([style_of(name) is None for name in known])
    if not free.any():
        return kernels
    chain = _is_chain(table, rates)
    rules = tuple(float(rule) for rule in range(len(RULES)))
    for name, values, rows in (("rule", rules, ~alone), ("lone", rules, alone), ("packed", PACKINGS, alone | True)):
        tried = [kernels._replace(**{name: np.where(free, value, getattr(kernels, name))}) for value in values]
        if name == "rule":
            tried = [one._replace(lone=np.where(free, one.rule, one.lone)) for one in tried]
        errors = np.minimum([_constants(table, one, code, rates, steps)[2] for one in tried], MOST_ERROR)
        for alike in sorted(set(family[free])):
            mine = (family == alike)[code] & rows
            if name != "packed" and (mine & chain).sum() >= FEWEST:
                mine &= chain
            if mine.any():
                found = errors[:, mine].mean(axis=1) * np.where(np.arange(len(values)) == 0, SURE, 1.0)
                getattr(kernels, name)[family == alike] = values[int(np.argmin(found))]
        if name == "rule":
            kernels.lone[free] = kernels.rule[free]
    return kernels


CONVERTED = 20.0
"""Most that a kernel may move per byte of a latent cache that it converts to 16 bits first."""
CONVERTED_SHARE = 0.5
"""Least share of the peak arithmetic of such a kernel: what is slower is the conversion, which more heads share."""
SURE = 0.9
"""Another way than the usual one must fit this much better to be believed."""
PACKINGS = (64.0, 16.0, 0.0)
IDLE_SHARE, CHAIN_KEYS, CHAINS, FEWEST, MOST_ERROR = 0.5, 1024.0, 40, 6, 1.0
"""How rows are split shows where few blocks have long contexts: blocks over the units, keys, rows of that kind to take
of each kernel, and those needed to judge by them alone; no row counts for more than the last, in log time."""


def _stored(net: Residual) -> dict[str, Any]:
    """In half precision, without the weights of features that were constant: clipped to their range, they say nothing
    (other engines' kernels are most of them)."""
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), net.parameters)
    used = np.asarray(net.high, np.float32) > np.asarray(net.low, np.float32)
    parameters["Dense_0"]["kernel"] = parameters["Dense_0"]["kernel"][:, used]
    return {
        "parameters": parameters,
        "center": np.asarray(net.center, np.float32),
        "scale": np.asarray(net.scale, np.float32),
        "low": np.asarray(net.low, np.float32),
        "high": np.asarray(net.high, np.float32),
    }


def _sample(code: np.ndarray, size: np.ndarray, seed: int) -> np.ndarray:
    """Rows of each kernel, up to `PER_KERNEL`: half of them among its largest quarter."""
    rng = np.random.default_rng(seed)
    found = []
    for kernel in range(code.max() + 1):
        rows = np.flatnonzero(code == kernel)
        order = rows[np.argsort(size[rows], kind="stable")]
        cut = len(order) * 3 // 4
        for part in (order[:cut], order[cut:]):
            found.append(rng.choice(part, min(PER_KERNEL // 2, len(part)), replace=False))
    return np.sort(np.concatenate(found))


def _is_chain(table, rates):
    few = table["decodes"] * table["kv_heads"] < IDLE_SHARE * rates.units
    return few & (np.minimum(table["decode_max"], table["window"]) >= CHAIN_KEYS)


def _chains(table, code, rates, seed) -> np.ndarray:
    """Rows of each kernel, up to `CHAINS`, whose time is that of a long row unless it is split."""
    rng = np.random.default_rng(seed)
    chain = _is_chain(table, rates)
    found = []
    for kernel in range(code.max() + 1):
        rows = np.flatnonzero(chain & (code == kernel))
        found.append(rng.choice(rows, min(CHAINS, len(rows)), replace=False))
    return np.concatenate(found).astype(int)


def _seen(batch, code, kernels, constants, rates, count):
    """Physics of each row in float64, and the features of the residual."""
    physics, seen = [], []
    with jax.enable_x64(True):
        for start in range(0, len(code), CHUNK):
            rows = slice(start, start + CHUNK)
            part = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf, np.float64)[rows], batch)
            s, f = _see(part, jnp.asarray(code[rows]), kernels, constants, rates, count)
            physics.append(np.asarray(s))
            seen.append(np.asarray(f, np.float32))
    return np.concatenate(physics), np.concatenate(seen)


def _see_(batch, code, kernels, constants, rates, count):
    c = chosen(jax.tree.map(jnp.asarray, constants), code)
    physics_s = seconds(batch, work(batch, rates), rates, c)
    inside = within(batch, jnp.asarray(kernels.work)[code])
    done = work(inside, rates)
    return physics_s, features(inside, done, seconds(inside, done, rates, c), rates, code, count)


_see = jax.jit(_see_, static_argnums=5)


def kernel(fitted: Fitted, device: DeviceConf, engine: str) -> LearnedDecode:
    """The kernels of `engine`. Where it was not measured, or not with latent attention, those of the engine that was
    measured most take their place."""
    of = np.array([engine_of(name) for name in fitted.kernels])
    known = Kernels(**fitted.arrays["kernels"])
    latent = known.latent > 0.0

    def most(rows: np.ndarray) -> str:
        return max(sorted(set(of[rows])), key=lambda name: int(known.count[rows & (of == name)].sum()))

    engines = [engine if engine in of else most(of == of)]
    net_of = np.where(of == engines[0], 0.0, -1.0)
    if latent.any() and not latent[of == engines[0]].any():
        engines.append(most(latent))
        net_of[latent & (of == engines[1])] = 1.0
    error: Any = np.asarray(fitted.arrays["rel_error"])
    return LearnedDecode(
        constants=dict(fitted.arrays["constants"]),
        kernels=known,
        nets=tuple(residual(fitted.arrays["nets"][name]) for name in engines),
        rel_error=error,
        net_of=net_of,
    )

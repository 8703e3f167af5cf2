"""Rows of expert tables that a fit uses, as arrays of what the physics reads."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from predictors import variants
from predictors.family import none_of
from predictors.moe.form import Experts
from predictors.table import GROUP_LIMITED, OperatorTable
from predictors.variants import version_key
from sim.deployment.formats import format_of
from sim.hardware.spec import DeviceConf


DTYPES: Mapping[str, tuple[str, str, float]] = {
    **variants.DTYPES,
    "w4afp8": ("int4", "fp8", 0.5 + 2.0 / 128),
    "w4a16_mxfp4": ("mxfp4", "bf16", 0.5 + 1.0 / 32),
    "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8", 0.5 + 1.0 / 32),
}

DOMINANCE = 1.5
MODEL = ("hidden", "inter", "experts", "top_k")
WIDE = ("deepep", "wideep")
LOPSIDED = "moe_torch_flow_min_latency"
"""Its even rows on one rank stream all experts at up to 1.35 times the memory's rate: they reach about half of them."""


def used(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Rows that a fit and its judgement use: experts as an engine's newest version runs them."""
    return none_of(unused(table), len(table))


def unused(table: OperatorTable) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """See `predictors.family.Family.unused`.

    Left out are tables of wide expert parallelism with replicated experts (their tokens are one rank's), unknown
    types, rows of a model in a type that a newer version of the same engine was measured on too, even rows that do not
    reach all experts (`LOPSIDED`), and even ones of `GROUP_LIMITED` on one of several ranks, which hold other shares.
    """
    even, alone = table["skew"] == 0.0, table["ep"] == 1.0
    plain = (table["op"] == "experts") | (table["op"] == "block")
    plain |= (table["op"] == GROUP_LIMITED) & (alone | ~even)
    plain &= ~((table["kernel"] == LOPSIDED) & even & alone)
    wide = np.array([any(name in kernel for name in WIDE) for kernel in table["kernel"].tolist()], bool)
    known = np.array([dtype in DTYPES for dtype in table["dtype"].tolist()], bool)
    names = ("engine", "dtype", *MODEL)
    block = (table["op"] == "block").tolist()
    keys = list(zip(block, *(table[name].tolist() for name in names), strict=True))
    versions = table["engine_version"].tolist()
    newest: dict[tuple, tuple] = {}
    for key, version in zip(keys, versions, strict=True):
        newest[key] = max(newest.get(key, ()), version_key(version))
    current = [version_key(version) == newest[key] for key, version in zip(keys, versions, strict=True)]
    return {
        f"that are neither experts nor a block, or even ones that leave some without rows (op, kernel {LOPSIDED})": (
            ~plain
        ),
        f"of wide expert parallelism (kernel with {' or '.join(WIDE)})": wide,
        f"whose dtype is none of {', '.join(DTYPES)}": ~known,
        "of an older version than others of the same engine, dtype and model": ~np.array(current, bool),
    }


def doubtful(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Rows that took over 1.5 times as long as the same kernel with at least their work.

    That work: the same model and routing, at least as many tokens, divided over at most as many ranks. Such a row shows
    a disturbed measurement, or a kernel that was not tuned for its shape; nobody can tell it from the shape.
    """
    labels = [
        np.unique(table[name], return_inverse=True)[1] for name in ("engine", "engine_version", "kernel", "dtype")
    ]
    columns = [np.nan_to_num(table[name], nan=-1.0) for name in ("skew", *MODEL)]
    unknown = np.isfinite(table["active"])  # routing of its own: nothing to compare with
    keys = np.stack([*labels, table["timing"] == "launch", *columns, np.where(unknown, np.arange(len(table)), -1)], 1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(group, kind="stable")
    found = np.zeros(len(table), bool)
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        axes = [np.unique(table[name][rows], return_inverse=True) for name in ("tp", "ep", "tokens")]
        place = tuple(inverse for _, inverse in axes)
        least = np.full([len(values) for values, _ in axes], np.inf)
        np.minimum.at(least, place, table.seconds[rows])
        least = np.minimum.accumulate(np.minimum.accumulate(least, axis=0), axis=1)
        least = np.flip(np.minimum.accumulate(np.flip(least, axis=2), axis=2), axis=2)
        found[rows] = table.seconds[rows] > DOMINANCE * least[place]
    return found


def kernel_names(table: OperatorTable) -> list[str]:
    """What a fit tells apart: "engine/version type kernel" of every row, then "launched" where its launch is timed."""
    labels = (table[name].tolist() for name in ("engine", "engine_version", "kernel", "dtype", "timing"))
    return [
        f"{engine or 'any'}/{version} {dtype} {kernel or 'experts'}{' launched' if timing == 'launch' else ''}"
        for engine, version, kernel, dtype, timing in zip(*labels, strict=True)
    ]


def parsed(name: str) -> tuple[str, str, str, str]:
    """Engine, version, type and kernel of a name."""
    owner, dtype, kernel = name.split(" ", 2)
    engine, _, version = owner.partition("/")
    return engine, version, dtype, kernel


def codes(names: list[str], kernels: tuple[str, ...]) -> Int[np.ndarray, " row"]:
    """Index of each name in `kernels`; of the kernel of the most like name where it is none of them."""
    place = {name: index for index, name in enumerate(kernels)}
    found = {name: place.get(name, _nearest(name, kernels)) for name in set(names)}
    return np.array([found[name] for name in names], np.int64)


def _nearest(name: str, kernels: tuple[str, ...]) -> int:
    parts = parsed(name)
    alike = [sum(one == other for one, other in zip(parts, parsed(kernel), strict=True)) for kernel in kernels]
    return int(np.argmax(alike))


def experts_of(table: OperatorTable, device: DeviceConf) -> Experts:
    """The work of every row."""
    local = np.maximum(table["experts"] / table["ep"], 1.0)
    kinds = [DTYPES[dtype] for dtype in table["dtype"].tolist()]
    rates = {stored: format_of(stored, device).flops_per_s for _, stored, _ in set(kinds)}
    one = np.ones(len(table))
    columns: dict[str, Any] = {
        "hidden": table["hidden"],
        "inter": table["inter"] / table["tp"],
        "experts": table["experts"],
        "local_experts": local,
        "top_k": table["top_k"],
        "matrices": table["matrices"],
        "weight_bytes": np.array([size for _, _, size in kinds]),
        "flops_per_s": np.array([rates[stored] for _, stored, _ in kinds]),
        "memory_bytes_per_s": device.memory_bytes_per_s * device.memory_efficiency * one,
        "units": device.compute_units * one,
        "cache_bytes": device.cache_bytes * one,
    }
    return Experts(**columns)

"""Rows of product tables as arrays of what the physics reads, and the names of the kernels they belong to."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from predictors import variants
from predictors.family import none_of
from predictors.gemm.form import Product
from predictors.table import OperatorTable
from sim.deployment.formats import INPUT_BYTES, format_of
from sim.hardware.spec import DeviceConf


DTYPES: Mapping[str, tuple[str, str, float]] = {
    **variants.DTYPES,
    "fp32": ("fp32", "fp32", 4.0),
    "mxfp4": ("mxfp4", "fp4", 0.5 + 1.0 / 32),
}

NOT_PRODUCTS = ("qkv_norm_proj",)
"""Operators that hold more than a product."""


def used(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Rows that a fit and its judgement use: plain products of known types."""
    return none_of(unused(table), len(table))


def unused(table: OperatorTable) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """See `predictors.family.Family.unused`."""
    known = np.array([dtype in DTYPES for dtype in table["dtype"].tolist()], bool)
    return {
        f"whose dtype is none of {', '.join(DTYPES)}": ~known,
        f"of more than a product (op {', '.join(NOT_PRODUCTS)})": np.isin(table["op"].astype(str), NOT_PRODUCTS),
    }


def kernel_names(table: OperatorTable) -> list[str]:
    """What a fit tells apart: "engine/version dtype", then "in a model" and "launched" where a row is that.

    Rows of no engine have their source in its place. Which of its kernels an engine takes for a shape is part of it.
    """
    labels = (table[name].tolist() for name in ("source", "engine", "engine_version", "dtype", "model", "timing"))
    found = []
    for source, engine, version, dtype, model, timing in zip(*labels, strict=True):
        owner = f"{engine}/{version}" if engine else source.replace(" ", "-") or "any"
        inside = " in a model" if engine and model else ""
        found.append(f"{owner} {dtype}{inside}{' launched' if timing == 'launch' else ''}")
    return found


def parsed(name: str) -> tuple[str, str, str, bool, bool]:
    """Engine, version, dtype, whether in a model, whether launched."""
    owner, dtype, *rest = name.split(" ", 2)
    engine, _, version = owner.partition("/")
    flags = rest[0] if rest else ""
    return engine, version, dtype, "in a model" in flags, "launched" in flags


def format_name(name: str) -> str:
    """Stored format of the weights of a kernel."""
    return DTYPES[parsed(name)[2]][0]


def codes(names: list[str], kernels: tuple[str, ...]) -> Int[np.ndarray, " row"]:
    """Index of each name in `kernels`; of the most like one where it is none of them."""
    place = {name: index for index, name in enumerate(kernels)}
    found = {name: place.get(name, nearest(name, kernels)) for name in set(names)}
    return np.array([found[name] for name in names], np.int64)


def nearest(name: str, kernels: tuple[str, ...]) -> int:
    """The kernel of the same format, then type, launch and engine; the first of those alike."""
    engine, _, dtype, inside, launched = parsed(name)

    def alike(other: str) -> tuple[bool, ...]:
        other_engine, _, other_dtype, other_inside, other_launched = parsed(other)
        same = format_name(other) == DTYPES[dtype][0]
        return same, other_dtype == dtype, other_launched == launched, other_engine == engine, other_inside == inside

    return max(range(len(kernels)), key=lambda index: (alike(kernels[index]), -index))


def products_of(table: OperatorTable, device: DeviceConf) -> Product:
    """The product of every row."""
    kinds = [DTYPES[dtype] for dtype in table["dtype"].tolist()]
    rates = {kind: _rate(kind, device) for kind in set(kinds)}
    one = np.ones(len(table))
    columns: dict[str, Any] = {
        "n": table["n"],
        "k": table["k"],
        "weight_bytes": np.array([size for _, _, size in kinds]),
        "input_bytes": np.array([rates[kind][1] for kind in kinds]),
        "flops_per_s": np.array([rates[kind][0] for kind in kinds]),
        "memory_bytes_per_s": device.memory_bytes_per_s * device.memory_efficiency * one,
        "cache_bytes": device.cache_bytes * one,
        "units": device.compute_units * one,
        "launched": (table["timing"] == "launch").astype(np.float64),
    }
    return Product(**columns)


def _rate(kind: tuple[str, str, float], device: DeviceConf) -> tuple[float, float]:
    """FLOP/s and bytes of an input element of a product."""
    stored, computed, _ = kind
    form = format_of("int4" if stored == "int4" else computed, device)
    return form.flops_per_s, INPUT_BYTES[form.computed]

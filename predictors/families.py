"""The learned families, and which kernel of a step each takes the place of."""

from collections.abc import Iterator
from importlib import import_module
from typing import cast

from predictors.family import Family


MODULES = {
    "gemm": "predictors.gemm",
    "decode": "predictors.attention.decode",
    "mixed": "predictors.attention.mixed",
    "moe": "predictors.moe",
    "recurrent": "predictors.recurrent",
    "elementwise": "predictors.elementwise",
}
"""Module of each family, by its name."""

TABLES: dict[str, str] = {"decode": "attention", "mixed": "attention"}
"""Family of `predictors.table.FAMILIES` that a family is fitted to, where it is not named like it."""

KERNELS: dict[str, str] = {"mixed": "prefill"}
"""Field of `sim.cost.kernel_cost.KernelCost` that a family fills, where it is not named like the family."""


def family(name: str) -> Family:
    """The module of one family; ValueError for an unknown name."""
    if name not in MODULES:
        raise ValueError(f"family must be one of {', '.join(MODULES)}, got {name}.")
    return cast(Family, import_module(MODULES[name]))


def families() -> Iterator[tuple[str, Family]]:
    """All of them."""
    return ((name, family(name)) for name in MODULES)

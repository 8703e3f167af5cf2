"""The constants that a calibration may move, by name: rates, times and shares of the cost model and of a plan.

A name is `group.field`: `decode.floor_s` and `gemm.tile_share` are the cost model's,
`device.memory_bytes_per_s` and `gemm.flops_per_s` the plan's. Counts and sizes are facts of the model and the device,
and have no name here. One factor moves all entries of a constant that has several (by slot, tile, protocol or graph
mode), so that it keeps its meaning for other plans.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from sim.cost.kernel_cost import KernelCost
from sim.deployment.plan import PlanArrays


Factor = float | Float[Array, ""]

ENDINGS = ("_s", "share")
"""Seconds and rates per second; shares."""


def constants(cost: KernelCost, plan: PlanArrays) -> dict[str, Any]:
    """The present value of every constant that can be fitted, by name."""
    return dict(_named(plan)) | dict(_named(cost))


def of_plan(name: str, plan: PlanArrays) -> bool:
    """Whether the constant `name` belongs to the plan, not to the cost model."""
    return name in dict(_named(plan))


def check_name(name: str, known: Mapping[str, Any]) -> None:
    """**Raises:** ValueError, with the nearest known name, if `name` is none of the constants."""
    if name not in known:
        near = get_close_matches(str(name), known, 1, 0.0)[0]
        raise ValueError(f"'{name}' is no rate, time or share that can be fitted; the nearest is '{near}'.")


def scaled(cost: KernelCost, plan: PlanArrays, factors: Mapping[str, Factor]) -> tuple[KernelCost, PlanArrays]:
    """The same cost model and plan with the named constants multiplied by their factors."""
    return _scaled(cost, factors), _scaled(plan, factors)


def _named(tree: eqx.Module) -> Iterator[tuple[str, Any]]:
    for group in tree.__dataclass_fields__:
        part = getattr(tree, group)
        if isinstance(part, eqx.Module):
            for field in part.__dataclass_fields__:
                if field.endswith(ENDINGS):
                    yield f"{group}.{field}", getattr(part, field)


def _scaled[Tree: eqx.Module](tree: Tree, factors: Mapping[str, Factor]) -> Tree:
    own = dict(_named(tree))
    names = [name for name in factors if name in own]
    if not names:
        return tree

    def leaves(root: Tree) -> list[Any]:
        return [getattr(getattr(root, group), field) for group, field in (name.split(".") for name in names)]

    return eqx.tree_at(leaves, tree, [own[name] * factors[name] for name in names])

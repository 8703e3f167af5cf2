"""Rows of like work, padded to the slots of a plan, and the facts about kernels that they are made with."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np


def filled(kind: type[Any], rows: list[dict[str, Any]], slots: int, neutral: Mapping[str, Any], what: str) -> Any:
    """A slot group of `rows`, padded with `neutral` values and `count` 0."""
    if len(rows) > slots:
        raise ValueError(
            f"the model has {len(rows)} distinct {what} on one rank, more than the {slots} that fit a plan."
        )
    padded = rows + [{"count": 0.0} | dict(neutral)] * (slots - len(rows))
    return kind(**{name: np.array([row[name] for row in padded], np.float64) for name in kind.__dataclass_fields__})


@cache
def kernel_facts() -> dict[str, Any]:
    """The numbers of `kernels.toml`."""
    return tomllib.loads((files("sim.deployment") / "kernels.toml").read_text())

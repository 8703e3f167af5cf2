"""The analytic cost model: tiles, waves and rooflines from datasheets and published ceilings, no calibration."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from sim.cost.decode import DecodeConstants
from sim.cost.elementwise import ElementwiseConstants
from sim.cost.gemm import GemmConstants
from sim.cost.head import SamplerConstants
from sim.cost.kernel_cost import KernelCost
from sim.cost.moe import MoeConstants
from sim.cost.prefill import PrefillConstants
from sim.cost.recurrent import RecurrentConstants


KERNELS = {
    "gemm": GemmConstants,
    "decode": DecodeConstants,
    "prefill": PrefillConstants,
    "elementwise": ElementwiseConstants,
    "sampler": SamplerConstants,
    "moe": MoeConstants,
    "recurrent": RecurrentConstants,
}


@cache
def constants() -> dict[str, dict[str, float | list[float]]]:
    """The numbers of `analytic.toml`, by group."""
    return tomllib.loads((files("sim.cost") / "analytic.toml").read_text())


def analytic_cost(dtype=np.float64) -> KernelCost:
    """The published constants as numpy leaves of `dtype`."""
    claim = {name: np.asarray(value, dtype) for name, value in constants()["claim"].items()}

    def kernel(name: str) -> Any:
        values = {field: np.asarray(value, dtype) for field, value in constants()[name].items()}
        return KERNELS[name](**values, rel_error=claim[name])

    kernels: dict[str, Any] = {name: kernel(name) for name in KERNELS} | {"rel_error": claim["host"]}
    return KernelCost(**kernels)

"""Kernels of products and experts by engine, version and stored format: what families that tell them apart share."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int


DTYPES: Mapping[str, tuple[str, str, float]] = {
    "bf16": ("bf16", "bf16", 2.0),
    "fp16": ("bf16", "fp16", 2.0),
    "fp8": ("fp8", "fp8", 1.0),
    "fp8_block": ("fp8_block", "fp8", 1.0 + 4.0 / 128**2),
    "mxfp8": ("mxfp8", "fp8", 1.0 + 1.0 / 32),
    "int8": ("int8", "int8", 1.0),
    "int8_wo": ("int8", "bf16", 1.0),
    "int4_wo": ("int4", "int4", 0.5 + 2.0 / 128),
    "nvfp4": ("nvfp4", "fp4", 0.5 + 1.0 / 16),
}
"""Stored format of weights (`sim.deployment.formats.FORMATS`), type of the product, and bytes of a weight, by label."""

BITS = {"bf16": 16, "fp32": 32, "fp8": 8, "fp8_block": 8, "mxfp8": 8, "int8": 8}
FEW_ROWS = 30


def bits(stored: str) -> int:
    """Bits of a number of a stored format."""
    return BITS.get(stored, 4)


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, those of a release candidate too, for comparison."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def age(version: str, wanted: str) -> tuple[bool, tuple[int, ...]]:
    """Order of versions where `wanted` runs ("": the newest there is): up to it the newest, beyond it the oldest."""
    key = version_key(version)
    if wanted and key > version_key(wanted):
        return False, tuple(-number for number in key)
    return True, key


def expected_error(kernel_error: Any, spread: Any, outside: Any) -> Any:
    """Median error of the kernel on shapes held out, plus the disagreement of the members; twice that outside."""
    return (kernel_error + 0.67 * spread) * (1.0 + outside)


def error_by_kernel(
    size: Float[np.ndarray, " row"], code: Int[np.ndarray, " row"], judge: Bool[np.ndarray, " row"], kernels: int
) -> Float[np.ndarray, " kernel"]:
    """Median error on the rows that no network has seen; of all of a kernel's where these are few."""
    found = []
    for one in range(kernels):
        mine = code == one
        unseen = mine & judge
        found.append(float(np.median(size[unseen if unseen.sum() >= FEW_ROWS else mine])))
    return np.array(found)

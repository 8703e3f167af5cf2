"""The time of one kernel that moves activations, from few constants.

For T tokens of b bytes, read and written, x = T b, cache rate C and memory rate B,

    seconds = t0 + ((b row)^4 + (T block + moved)^4)^(1/4)
    moved = x near/C + x max(far/B - near/C, 0) f^4/(1 + f^4),    f = x/(share cache)

A block computes one token's row, `row` seconds per byte on its unit, and takes `block` of the device's time. `near` and
`far`: how often the bytes pass, in effect, while the last-level cache serves them and beyond. The time never falls with
T or b, nor rises with a rate.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from sim.cost.analytic import constants as analytic_constants
from sim.cost.elementwise import MoveTerms
from sim.cost.soft import soft_maximum
from sim.deployment.plan import DeviceArrays
from sim.hardware.spec import DeviceConf


NAMES = ("t0", "row", "block", "near", "far", "share")
BOUNDS = {
    "t0": (3e-7, 1e-3),
    "row": (1e-15, 1e-10),
    "block": (1e-14, 1e-7),
    "near": (0.1, 50.0),
    "far": (0.8, 50.0),
    "share": (0.4, 1.5),
}
"""`far`: no kernel beats the memory's achieved rate by more than that rate may be off."""


class Rates(NamedTuple):
    """Of a device, numbers or arrays: bytes per second, bytes. The cache is no slower than the memory."""

    memory_bytes_per_s: Any
    cache_bytes_per_s: Any
    cache_bytes: Any


def rates_of(device: DeviceConf) -> Rates:
    """As a plan of the device has them."""
    rate = device.memory_bytes_per_s * device.memory_efficiency
    return Rates(rate, max(device.cache_bytes_per_s, rate), device.cache_bytes)


def plan_rates(device: DeviceArrays) -> Rates:
    """Of each configuration."""
    rate = device.memory_bytes_per_s
    return Rates(rate, jnp.maximum(device.cache_bytes_per_s, rate), device.cache_bytes)


def move_terms(xp: Any, constants: Mapping[str, Any], rates: Rates) -> MoveTerms:
    """What `moved` depends on."""
    cached_s = constants["near"] / rates.cache_bytes_per_s
    return MoveTerms(
        per_capacity=1.0 / xp.maximum(constants["share"] * rates.cache_bytes, 1.0),
        cached_s=cached_s,
        missed_s=xp.maximum(constants["far"] / rates.memory_bytes_per_s - cached_s, 0.0),
    )


def moved_s(xp: Any, move: MoveTerms, moved_bytes: Any) -> Any:
    """`moved`, as `sim.cost.elementwise` has it, for either kind of arrays."""
    square = xp.minimum(moved_bytes * move.per_capacity, 1e4) ** 2
    return moved_bytes * (move.cached_s + move.missed_s * (square * square / (1.0 + square * square)))


def kernel_s(xp: Any, constants: Mapping[str, Any], move: MoveTerms, tokens: Any, bytes_per_token: Any) -> Any:
    """Seconds of one kernel, any axes."""
    work_s = tokens * constants["block"] + moved_s(xp, move, tokens * bytes_per_token)
    return constants["t0"] + soft_maximum(xp, constants["row"] * bytes_per_token, work_s)


def row_seconds(xp: Any, constants: Mapping[str, Any], tokens: Any, bytes_per_token: Any, rates: Rates) -> Any:
    """Seconds of every row of a table; constants by row."""
    return kernel_s(xp, constants, move_terms(xp, constants, rates), tokens, bytes_per_token)


def analytic_constants_of() -> dict[str, float]:
    """The analytic kernel in this form."""
    known: Mapping[str, Any] = analytic_constants()["elementwise"]
    return {
        "t0": float(known["floor_s"]),
        "row": 0.0,
        "block": 0.0,
        "near": 1.0,
        "far": 1.0,
        "share": float(known["cache_share"]),
    }

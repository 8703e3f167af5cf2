"""What a kernel's price carries beside its seconds: the error it expects, and how much of it is extrapolated."""

from functools import reduce
from operator import add
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Priced(NamedTuple):
    """Seconds of some kernels, by any axes.

    - `error_s`: expected absolute error (median over held-out shapes of the kernels' tables, in seconds).
    - `outside_s`: the part of the seconds that lies outside the range a calibration has seen.
    """

    seconds: Float[Array, "*axes"]
    error_s: Float[Array, "*axes"]
    outside_s: Float[Array, "*axes"]

    def total(self) -> "Priced":
        """Summed over the first axis. Errors of one kind of kernel go the same way: they add."""
        return Priced(*(jnp.sum(leaf, axis=0) for leaf in self))

    def times(self, factor: Float[Array, "*axes"]) -> "Priced":
        """The same kernels, `factor` times."""
        return Priced(*(leaf * factor for leaf in self))


def uncalibrated(seconds: Float[Array, "*axes"], rel_error: Float[Array, ""]) -> Priced:
    """A price that no measurement backs: all of it outside calibration."""
    return Priced(seconds, seconds * rel_error, seconds)


def claims(
    kernels: list[Priced], host: list[Float[Array, "*axes"]], host_error: Float[Array, ""]
) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """Relative error of the sum of all parts, as if all erred the same way, and the share outside calibration.

    The share is that of the kernels: launches and host, `host` seconds with a relative error of `host_error`, come from
    an engine's profile.
    """
    all_kernels = Priced(*(reduce(add, leaves) for leaves in zip(*kernels, strict=True)))
    host_s = reduce(add, host)
    error_s = all_kernels.error_s + host_error * host_s
    return error_s * _inverse(all_kernels.seconds + host_s), all_kernels.outside_s * _inverse(all_kernels.seconds)


def _inverse(seconds: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    return jnp.where(seconds > 0.0, 1.0 / jnp.where(seconds > 0.0, seconds, 1.0), 0.0)

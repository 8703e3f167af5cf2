"""What a kernel's price carries beside its seconds: the error it expects, and how much of it is extrapolated."""

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


def claims(parts: list[Priced]) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """Relative error of the sum of `parts`, as if all erred the same way, and its share outside calibration."""
    seconds = sum(part.seconds for part in parts)
    per_s = jnp.where(seconds > 0.0, 1.0 / jnp.where(seconds > 0.0, seconds, 1.0), 0.0)
    return sum(part.error_s for part in parts) * per_s, sum(part.outside_s for part in parts) * per_s

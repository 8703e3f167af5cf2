"""What turns the last hidden states into tokens: the sampler's kernels over the logits of the emitting rows.

The LM head itself is a product slot with `emitting` 1. Sampler: `kernels floor + passes rows bytes_per_row`
through cache or memory. One whole logits row per emitting request, on every rank.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.elementwise import MoveTerms, move_terms, moved_s
from sim.cost.priced import Priced, uncalibrated
from sim.deployment.plan import DeviceArrays


class SamplerConstants(eqx.Module):
    """Shortest kernel of the sampler, and the share of the cache it can fill. Source: `analytic.toml`."""

    floor_s: Float[Array, ""]
    cache_share: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, device: DeviceArrays) -> "SamplerTerms":
        """Constants of each configuration."""
        return sampler_terms(device, self)

    def price(self, terms: "SamplerTerms", rows: Float[Array, "*config"]) -> Priced:
        """The sampler over `rows` emitting rows."""
        return uncalibrated(sampler_s(terms, rows), self.rel_error)


class SamplerTerms(NamedTuple):
    """What of the sampler does not depend on the batch."""

    floor_s: Float[Array, "*config"]
    passes: Float[Array, "*config"]
    bytes_per_row: Float[Array, "*config"]
    move: MoveTerms


def sampler_terms(device: DeviceArrays, constants: SamplerConstants) -> SamplerTerms:
    """Constants of each configuration."""
    return SamplerTerms(
        floor_s=device.sampler_kernels * constants.floor_s,
        passes=device.sampler_passes,
        bytes_per_row=device.sampler_bytes_per_row,
        move=move_terms(device, constants.cache_share),
    )


def sampler_s(terms: SamplerTerms, rows: Float[Array, "*config"]) -> Float[Array, "*config"]:
    """Seconds of the sampler over `rows` emitting rows; 0 for none."""
    seconds = terms.floor_s + terms.passes * moved_s(terms.move, rows * terms.bytes_per_row)
    return jnp.where(rows > 0.0, seconds, 0.0)

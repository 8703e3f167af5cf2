"""What turns the last hidden states into tokens: the sampler's kernels over the logits of the emitting rows.

The LM head itself is a product slot with `emitting` 1. Sampler: `kernels floor + passes rows bytes_per_row`
through cache or memory. One whole logits row per emitting request, on every rank.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.elementwise import ElementwiseConstants, moved_s
from sim.deployment.plan import DeviceArrays


def sampler_s(
    rows: Float[Array, "*config"], device: DeviceArrays, elementwise: ElementwiseConstants
) -> Float[Array, "*config"]:
    """Seconds of the sampler over `rows` emitting rows; 0 for none."""
    moved = moved_s((rows * device.sampler_bytes_per_row)[..., None], device, elementwise)[..., 0]
    seconds = device.sampler_kernels * elementwise.floor_s + device.sampler_passes * moved
    return jnp.where(rows > 0.0, seconds, 0.0)

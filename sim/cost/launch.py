"""Submitting a step: what the host does not hide.

The host submits ahead of the device, so of the `launch_s` seconds that submitting takes only two parts show: the gap
before the first kernel runs, and what is longer than the device's own work on the step:
`gap + max(0, launch - device)`. Modes: 0 eager (every kernel launched), 1 piecewise graphs (one launch per
piece, attention launched between them), 2 one full graph. The device's time is that of the token-wise kernels.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.deployment.plan import DeviceArrays


def exposed_launch_s(
    tokens: Float[Array, "*config"],
    graph_mode: Float[Array, "*config"],
    device_s: Float[Array, "*config"],
    device: DeviceArrays,
) -> Float[Array, "*config"]:
    """Seconds of launching that the device waits for; 0 for no tokens. `device_s`: its work on the same step."""

    def of_mode(values):
        return jnp.where(graph_mode > 1.5, values[..., 2], jnp.where(graph_mode > 0.5, values[..., 1], values[..., 0]))

    late = jnp.maximum(of_mode(device.launch_s) - device_s, 0.0)
    return jnp.where(tokens > 0.0, of_mode(device.gap_s) + late, 0.0)

"""Submitting a step: what the host does not hide.

The host submits ahead of the device, so of the `launch_s` seconds that submitting takes only two parts show: the gap
before the first kernel runs, and what is longer than the device's own work on the step:
`gap + max(0, launch - device)`. Modes: 0 eager (every kernel launched), 1 piecewise graphs (one launch per
piece, attention launched between them), 2 one full graph. The device's time is that of the token-wise kernels.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.deployment.plan import DeviceArrays


class LaunchTerms(NamedTuple):
    """Times of submitting and of the gap, one entry per graph mode."""

    launch_s: list[Float[Array, "*config"]]
    gap_s: list[Float[Array, "*config"]]


def launch_terms(device: DeviceArrays) -> LaunchTerms:
    """Constants of each configuration."""
    modes = range(device.launch_s.shape[-1])
    return LaunchTerms([device.launch_s[..., mode] for mode in modes], [device.gap_s[..., mode] for mode in modes])


def exposed_launch_s(
    terms: LaunchTerms,
    tokens: Float[Array, "*config"],
    graph_mode: Float[Array, "*config"],
    device_s: Float[Array, "*config"],
) -> Float[Array, "*config"]:
    """Seconds of launching that the device waits for; 0 for no tokens. `device_s`: its work on the same step."""

    def of_mode(values: list[Float[Array, "*config"]]) -> Float[Array, "*config"]:
        eager, piecewise, full = values
        return jnp.where(graph_mode > 1.5, full, jnp.where(graph_mode > 0.5, piecewise, eager))

    late_s = jnp.maximum(of_mode(terms.launch_s) - device_s, 0.0)
    return jnp.where(tokens > 0.0, of_mode(terms.gap_s) + late_s, 0.0)

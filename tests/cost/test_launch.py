"""Launching: what the host does not hide, by graph mode."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.launch import exposed_launch_s, launch_terms


@pytest.fixture
def launching(plan):
    return replace(plan.device, launch_s=np.array([3e-3, 0.5e-3, 20e-6]), gap_s=np.array([5e-6, 20e-6, 20e-6]))


@pytest.mark.parametrize(
    ("mode", "device_s", "want"),
    [
        (0.0, 1e-3, 5e-6 + 2e-3),  # 3 ms of launches, 1 ms of kernels: 2 ms late
        (0.0, 10e-3, 5e-6),  # hidden behind the kernels
        (1.0, 0.1e-3, 20e-6 + 0.4e-3),
        (2.0, 10e-3, 20e-6),
    ],
)
def test_by_hand(launching, mode, device_s, want):
    got = exposed_launch_s(launch_terms(launching), jnp.float64(8), jnp.float64(mode), jnp.float64(device_s))
    assert float(got) == pytest.approx(want)


def test_no_tokens_no_launch(launching):
    assert float(exposed_launch_s(launch_terms(launching), jnp.float64(0), jnp.float64(0), jnp.float64(0))) == 0.0


def test_never_shorter_in_eager_mode(plan):
    times = [
        float(exposed_launch_s(launch_terms(plan.device), jnp.float64(8), jnp.float64(m), jnp.float64(1e-4)))
        for m in (0, 1, 2)
    ]
    assert times[0] >= times[1] >= times[2] > 0


def test_gradient(launching, slope_matches):
    slope_matches(
        lambda device_s: exposed_launch_s(launch_terms(launching), jnp.float64(8), jnp.float64(0), device_s), 1e-3
    )

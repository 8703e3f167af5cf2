"""A round device, so that values can be worked out by hand, and a small model on it; all tests here run in float64."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from sim.cost.analytic import analytic_cost
from sim.cost.kernel_cost import KernelCost
from sim.cost.stats import BatchStats
from sim.deployment.lower import lower
from sim.deployment.plan import PlanArrays
from sim.hardware.spec import DeviceConf, LinkConf
from sim.model.spec import Attention, Dense, Layer, ModelSpec, MoE


@pytest.fixture(autouse=True)
def double():
    """Prices are float64 in the engines."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def device() -> DeviceConf:
    """100 units, 200 TFLOP/s and 1 TB/s achieved, 50 GB/s per unit, 50 MB of cache at 5 TB/s."""
    link = LinkConf(kind="NVLink", bytes_per_s=100e9, latency_s=1e-6, max_group=8)
    return DeviceConf(
        name="Round",
        peak_flops_per_s={"bf16": 250e12},
        matmul_efficiency={"bf16": 0.8},
        memory_bytes=80e9,
        memory_bytes_per_s=1.25e12,
        memory_efficiency=0.8,
        cache_bytes=50e6,
        cache_bytes_per_s=5e12,
        compute_units=100,
        unit_stream_bytes_per_s=50e9,
        kernel_floor_s=2e-6,
        kernel_launch_s=5e-6,
        graph_launch_s=20e-6,
        scale_up=link,
    )


@pytest.fixture(scope="session")
def dense() -> ModelSpec:
    """Two layers: one full, one with a window of 512."""
    full = Attention(heads=16, kv_heads=4, head_dim=64)
    sliding = Attention(heads=16, kv_heads=4, head_dim=64, window=512)
    return ModelSpec("small", "llama", 1024, 32000, 8192, (Layer(full, Dense(4096)), Layer(sliding, Dense(4096))))


@pytest.fixture(scope="session")
def experts() -> ModelSpec:
    """Three layers of 16 experts, two per token."""
    layer = Layer(Attention(heads=16, kv_heads=4, head_dim=64), MoE(experts=16, top_k=2, inter=512))
    return ModelSpec("routed", "mixtral", 1024, 32000, 8192, (layer,) * 3)


@pytest.fixture(scope="session")
def plan(dense: ModelSpec, device: DeviceConf) -> PlanArrays:
    return lower(dense, device)


@pytest.fixture(scope="session")
def cost() -> KernelCost:
    return analytic_cost()


@pytest.fixture(scope="session")
def batch() -> Callable[..., BatchStats]:
    """`batch(prefills, decodes)` from chunks (new, prior) and decode lengths; padded to itself, in a full graph."""

    def build(prefills=(), decodes=(), mode: float = 2.0, padded: float | None = None) -> BatchStats:
        new = sum(c for c, _ in prefills)
        values = {
            "prefill_tokens": new,
            "prefill_chunks": len(prefills),
            "prefill_area": sum(c * p + c * (c + 1) / 2 for c, p in prefills),
            "prefill_kv_tokens": sum(c + p for c, p in prefills),
            "prefill_max_tokens": max((c + p for c, p in prefills), default=0),
            "decodes": len(decodes),
            "decode_sum": sum(decodes),
            "decode_max": max(decodes, default=0),
            "decode_sumsq": sum(n * n for n in decodes),
            "emitting": len(decodes) + len(prefills),
            "padded_tokens": new + len(decodes) if padded is None else padded,
            "graph_mode": mode,
            "draft_tokens": 0,
        }
        return BatchStats(**{name: np.float64(value) for name, value in values.items()})

    return build


@pytest.fixture(scope="session")
def slope_matches() -> Callable[..., None]:
    """`slope_matches(f, x)`: the gradient of scalar f is finite and equals central differences at the number x."""

    def check(function, point: float, step: float = 1e-5, rel: float = 1e-4) -> None:
        value, gradient = jax.jit(function), jax.jit(jax.grad(function))
        exact = float(gradient(np.float64(point)))
        h = step * abs(point)
        slope = (float(value(np.float64(point + h))) - float(value(np.float64(point - h)))) / (2 * h)
        assert np.isfinite(exact)
        assert exact == pytest.approx(slope, rel=rel, abs=1e-12 / abs(point))

    return check

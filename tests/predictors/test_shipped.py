"""The fitted kernels that come with Headway: whole, told where they come from, and fit for every engine."""

import equinox as eqx
import jax
import numpy as np
import pytest

from predictors.families import family
from predictors.learned import cost_rows, learned_cost
from predictors.store import load
from sim.cost.kernel_cost import KernelCost
from sim.cost.table import price_table
from sim.deployment.lower import lower
from sim.hardware.read import list_devices, load_device
from sim.model.read import load_model


DEVICES = (
    *("rtx-pro-6000", "rtx-4090", "rtx-3090", "rtx-a6000", "a100-sxm-80gb", "a800", "h100-sxm", "h800", "h200-sxm"),
    *("b200-sxm", "b300-sxm", "l40s", "tpu-v6e"),
)
ENGINES = ("vllm", "sglang", "trtllm")


@pytest.mark.parametrize("name", DEVICES)
def test_every_artifact_is_whole(artifacts, name):
    artifact, device = load(artifacts / name), load_device(name)
    assert artifact.card["device"] == device.name and name in list_devices()
    for found in artifact.card["families"].values():
        assert found["rows"] > 0 and found["date"]
        for table in found["tables"]:
            assert table["licence"] in ("Apache-2.0", "MIT") and len(table["sha256"]) == 64
    for engine in ENGINES:
        assert isinstance(learned_cost(artifact, device, engine), KernelCost)
    assert len(cost_rows(artifact)) >= len(artifact.families)


def test_artifacts_are_small(artifacts):
    for card in artifacts.glob("*/card.json"):
        assert sum(file.stat().st_size for file in card.parent.iterdir()) < 2_500_000


def test_a_step_by_shipped_kernels_moves_no_more_than_the_memory_can(artifacts):
    artifact, device = load(artifacts / "rtx-4090"), load_device("rtx-4090")
    plan = lower(load_model("llama-3.1-8b"), device)
    found = price_table(learned_cost(artifact, device, "vllm"), plan, 64, 64)
    prices = found.token_s[2, 1:] + found.row_s[1:]
    assert np.isfinite(prices).all()
    # 8.03 G parameters of 2 bytes, less the embedding table of 128256 x 4096, at 1.008 TB/s
    least_s = 2 * (8.03e9 - 128256 * 4096) / 1.008e12
    assert (prices > least_s).all() and prices[0] < 1.2 * least_s


def test_gradients_reach_the_rates_of_the_device(artifacts):
    artifact, device = load(artifacts / "rtx-4090"), load_device("rtx-4090")
    kernel = family("gemm").kernel(artifact.families["gemm"], device, "vllm")
    plan = lower(load_model("llama-3.1-8b"), device)
    with jax.enable_x64(True):
        rates = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), plan.device)

        def seconds(factor):
            scaled = eqx.tree_at(lambda d: d.memory_bytes_per_s, rates, rates.memory_bytes_per_s * factor)
            return kernel.price(kernel.terms(plan.gemm, scaled), np.full((1,), 8.0)).seconds.sum()

        slope = float(jax.grad(seconds)(1.0))
        step = 1e-4
        measured = (float(seconds(1.0 + step)) - float(seconds(1.0 - step))) / (2 * step)
    # a small batch streams weights: twice the rate, about half the time
    assert slope == pytest.approx(measured, rel=2e-2) and slope < 0.0

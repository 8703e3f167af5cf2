"""Llama-3.1-8B on an H100, steps of all kinds, and what they would take if four constants were other than published."""

import dataclasses

import numpy as np
import pytest

from conf.compose import compose
from predictors.constants import scaled
from predictors.fit import Fit, fit
from sim.cost.analytic import analytic_cost
from sim.cost.kernel_cost import KernelCost
from sim.cost.stats import BatchStats
from sim.cost.table import price_steps
from sim.deployment.compile import compile_plan
from sim.deployment.plan import PlanArrays
from sim.hardware.check import device_from
from sim.model.read import model_from_conf


TRUTH = {
    "device.memory_bytes_per_s": 0.85,
    "gemm.flops_per_s": 0.9,
    "attention.flops_per_s": 1.2,
    "decode.floor_s": 1.5,
}


@pytest.fixture(scope="session")
def truth() -> dict[str, float]:
    return TRUTH


@pytest.fixture(scope="session")
def cost() -> KernelCost:
    return analytic_cost()


@pytest.fixture(scope="session")
def plan() -> PlanArrays:
    conf = compose(["model=llama-3.1-8b", "hardware=h100-sxm"])
    device = device_from(dataclasses.asdict(conf.hardware), conf.hardware.name)
    return compile_plan(model_from_conf(conf.model), device, conf.engine, conf.deployment).arrays


@pytest.fixture(scope="session")
def stats() -> BatchStats:
    """60 steps: prefill alone (eager), mixed (piecewise graphs), decode alone (full graphs)."""
    rng = np.random.default_rng(0)
    rows = []
    for step in range(60):
        lengths = rng.integers(50, 4000, size=rng.integers(1, 129) if step % 3 else 0)
        chunks = rng.integers((16, 0), (1500, 2000), size=(0 if step % 3 == 1 else rng.integers(1, 3), 2))
        new, prior = chunks.T
        rows.append(
            {
                "prefill_tokens": new.sum(),
                "prefill_chunks": len(chunks),
                "prefill_area": (new * prior + new * (new + 1) / 2).sum(),
                "prefill_kv_tokens": chunks.sum(),
                "prefill_max_tokens": (new + prior).max(initial=0),
                "decodes": len(lengths),
                "decode_sum": lengths.sum(),
                "decode_max": lengths.max(initial=0),
                "decode_sumsq": (lengths**2).sum(),
                "emitting": len(lengths) + len(chunks),
                "padded_tokens": new.sum() + len(lengths),
                "graph_mode": (0, 2, 1)[step % 3],
                "draft_tokens": 0,
            }
        )
    return BatchStats(**{name: np.array([row[name] for row in rows], np.float64) for name in rows[0]})


@pytest.fixture(scope="session")
def measured_s(cost, plan, stats, truth) -> np.ndarray:
    return price_steps(*scaled(cost, plan, truth), stats)["total_s"]


@pytest.fixture(scope="session")
def found(cost, plan, stats, measured_s, truth) -> Fit:
    return fit(cost, plan, stats, measured_s, leaves=tuple(truth))

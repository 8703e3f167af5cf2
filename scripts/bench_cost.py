"""Benchmark of the analytic cost model: different deployments and batches, priced in one compiled call."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from conf.compose import compose
from sim.cost.analytic import AnalyticCost
from sim.cost.stats import BatchStats
from sim.deployment.compile import compile_plan
from sim.deployment.plan import PlanArrays
from sim.model.read import model_from_conf


CONFIGURATIONS = 4096
CALLS = 200
DEPLOYMENTS = (
    ("llama-3.1-8b", "h100-sxm", "single"),
    ("llama-3.1-70b", "h200-sxm", "tp4"),
    ("qwen3-30b-a3b", "h100-sxm", "tp2"),
    ("gemma-3-12b", "a100-sxm-80gb", "tp2"),
)


def analytic_kernel() -> dict[str, float | str]:
    """Configuration-steps per CPU-second in float32, over 4,096 configurations of four deployments."""
    plans = [plan_of(*deployment) for deployment in DEPLOYMENTS]
    which = np.arange(CONFIGURATIONS) % len(plans)
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)[which], jnp.float32), *plans)
    stats = random_batches(np.random.default_rng(0))
    cost = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), AnalyticCost())
    started = time.process_time()
    priced = jax.jit(lambda plan, batch: cost(plan, batch).total_s).lower(stacked, stats).compile()
    compile_s = time.process_time() - started
    total_s = np.asarray(priced(stacked, stats))
    assert total_s.shape == (CONFIGURATIONS,) and np.isfinite(total_s).all() and (total_s > 0).all()
    started = time.process_time()
    for _ in range(CALLS):
        found = priced(stacked, stats)
    found.block_until_ready()
    used_s = time.process_time() - started
    return {
        "configuration": f"{CONFIGURATIONS} configurations of {len(plans)} deployments, float32, seconds of a step",
        "steps_per_cpu_s": CONFIGURATIONS * CALLS / used_s,
        "compile_s": compile_s,
    }


def plan_of(model: str, hardware: str, deployment: str) -> PlanArrays:
    """The arrays of one deployment."""
    conf = compose([f"model={model}", f"hardware={hardware}", f"deployment={deployment}"])
    return compile_plan(model_from_conf(conf.model), conf.hardware, conf.engine, conf.deployment).arrays


def random_batches(rng: np.random.Generator) -> BatchStats:
    """One mixed batch per configuration: a prefill chunk on prior context, and up to 255 decodes."""
    decodes = rng.integers(1, 256, CONFIGURATIONS).astype(float)
    mean = rng.uniform(100, 4000, CONFIGURATIONS)
    chunk = rng.integers(1, 2048, CONFIGURATIONS).astype(float)
    prior = rng.integers(0, 4096, CONFIGURATIONS).astype(float)
    fields = {
        "prefill_tokens": chunk,
        "prefill_chunks": np.ones(CONFIGURATIONS),
        "prefill_area": chunk * prior + chunk * (chunk + 1) / 2,
        "prefill_kv_tokens": prior + chunk,
        "prefill_max_tokens": prior + chunk,
        "decodes": decodes,
        "decode_sum": decodes * mean,
        "decode_max": 1.5 * mean,
        "decode_sumsq": 1.1 * decodes * mean**2,
        "emitting": decodes + 1,
        "padded_tokens": chunk + decodes,
        "graph_mode": rng.integers(0, 2, CONFIGURATIONS).astype(float),
    }
    return BatchStats(**{name: jnp.asarray(value, jnp.float32) for name, value in fields.items()})

"""Benchmark of the analytic cost model: different deployments and batches, priced in one compiled call."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from conf.compose import compose
from sim.cost.analytic import analytic_cost
from sim.cost.stats import BatchStats
from sim.deployment.compile import compile_plan
from sim.deployment.plan import PlanArrays, trimmed
from sim.model.read import model_from_conf


CONFIGURATIONS = 4096
STEPS = 16
CALLS = 50
DEPLOYMENTS = (
    ("llama-3.1-8b", "h100-sxm", "single"),
    ("llama-3.1-70b", "h200-sxm", "tp4"),
    ("qwen3-30b-a3b", "h100-sxm", "tp2"),
    ("gemma-3-12b", "a100-sxm-80gb", "tp2"),
)


def analytic_kernel() -> dict[str, float | str]:
    """Configuration-steps per CPU-second in float32: 4,096 configurations of four deployments, 16 steps each a call.

    The full kernel by component, summed; what depends on the plan alone is made once per call, as a sweep does.
    `single_step_per_cpu_s` is the same for one step per call, plan work included.
    """
    plans = [plan_of(*deployment) for deployment in DEPLOYMENTS]
    which = np.arange(CONFIGURATIONS) % len(plans)
    slots = trimmed(jax.tree.map(lambda *leaves: np.stack(leaves)[which], *plans))
    stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), slots)
    rng = np.random.default_rng(0)
    batches = [random_batches(rng) for _ in range(STEPS)]
    steps = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    cost = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), analytic_cost())

    def price_all(plan: PlanArrays, steps: BatchStats) -> jax.Array:
        terms = cost.terms(plan)
        return jax.lax.scan(lambda carry, stats: (carry, cost.price(terms, stats).total_s), None, steps)[1]

    started = time.process_time()
    priced = jax.jit(price_all).lower(stacked, steps).compile()
    compile_s = time.process_time() - started
    single = jax.jit(lambda plan, stats: cost(plan, stats).total_s).lower(stacked, batches[0]).compile()
    total_s = np.asarray(priced(stacked, steps))
    assert total_s.shape == (STEPS, CONFIGURATIONS) and np.isfinite(total_s).all() and (total_s > 0).all()
    return {
        "configuration": f"{CONFIGURATIONS} configurations of {len(plans)} deployments, {STEPS} steps a call, float32",
        "steps_per_cpu_s": CONFIGURATIONS * STEPS / seconds_per_call(lambda: priced(stacked, steps)),
        "single_step_per_cpu_s": CONFIGURATIONS / seconds_per_call(lambda: single(stacked, batches[0])),
        "compile_s": compile_s,
    }


def seconds_per_call(call: Callable[[], jax.Array]) -> float:
    """CPU seconds of one call, over `CALLS` of them."""
    call().block_until_ready()
    started = time.process_time()
    for _ in range(CALLS):
        found = call()
    found.block_until_ready()
    return (time.process_time() - started) / CALLS


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
        "draft_tokens": np.zeros(CONFIGURATIONS),
    }
    return BatchStats(**{name: jnp.asarray(value, jnp.float32) for name, value in fields.items()})

"""Benchmarks of the exact engine: steps per CPU-second, and a whole trace."""

import time
from pathlib import Path

import numpy as np

from conf.compose import compose
from sim.api import Job, build
from sim.event.run import ExactRun, run_exact
from sim.workload.trace import Workload


AZURE_REQUESTS = 19_366


def event_counted() -> dict[str, float | str]:
    """Closed loop of 64, blocks counted, one configuration: steps per CPU-second, pricing included.

    Prompts of 425 to 1275 tokens, outputs of 325 to 975 (850 and 650 on average).
    """
    rng = np.random.default_rng(0)
    count = 4000
    workload = Workload(
        "bench",
        np.zeros(count, np.int64),
        rng.integers(425, 1276, count),
        rng.integers(325, 976, count),
        concurrency=64,
    )
    job = build(
        compose(["engine=vllm-0.10.2", "engine.max_num_seqs=256", "engine.enable_prefix_caching=false"]), workload
    )
    return _measure(job)


def azure_replay() -> dict[str, float | str]:
    """19,366 conversation requests at the trace's own times, or, where the trace is absent, of its length profile."""
    trace = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces" / "AzureLLMInferenceTrace_2023_conv.csv"
    if trace.is_file():
        overrides = [f"workload={trace}"]
    else:
        overrides = ["workload=azure-conv", f"workload.num_requests={AZURE_REQUESTS}", "workload.rate=5.5"]
    job = build(compose([*overrides, "engine=vllm-0.19.0"]))
    return _measure(job) | {"workload": trace.name if trace.is_file() else "azure-conv profile"}


def _measure(job: Job) -> dict[str, float | str]:
    started = time.process_time()
    table = job.price_table()
    compiled = time.process_time() - started
    deployment = job.conf.deployment
    found: ExactRun = run_exact(
        job.workload,
        job.plan.engine,
        table,
        num_gpu_blocks=job.pool_blocks,
        replicas=deployment.replicas,
        router=deployment.router,
        seed=job.conf.seed,
    )
    steps = len(found.steps)
    plan = job.plan
    return {
        "configuration": f"{plan.model.name}, {plan.device.name}, {plan.engine.name} {plan.engine.version}",
        "steps": steps,
        "requests": len(job.workload),
        "mean_batch": float(found.steps.decodes.mean()),
        "steps_per_cpu_s": steps / found.cpu_s,
        "simulate_cpu_s": found.cpu_s,
        "compile_s": compiled,
    }

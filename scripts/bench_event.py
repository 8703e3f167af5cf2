"""Benchmarks of the exact engine: steps per CPU-second, and a whole trace.

Beside them stands what the schedulers of the real engines do (`scripts/real_schedulers.yaml`).
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from conf.compose import compose
from sim.api import Job, build
from sim.documents import read_mapping
from sim.event.run import ExactRun, run_exact
from sim.workload.trace import Workload


AZURE_REQUESTS = 19_366


def event_counted() -> dict[str, float | str]:
    """Closed loop of 64, blocks counted, one configuration: steps per CPU-second, pricing included."""
    return _measure(closed_loop()) | real_scheduler("vllm", 64)


COUNTED = ("engine=vllm-0.10.2", "engine.max_num_seqs=256", "engine.enable_prefix_caching=false")


def closed_loop(predictor: str = "analytic", engine: Sequence[str] = COUNTED) -> Job:
    """Prompts of 425 to 1275 tokens, outputs of 325 to 975 (850 and 650 on average), 64 at a time."""
    rng = np.random.default_rng(0)
    count = 4000
    workload = Workload(
        "bench",
        np.zeros(count, np.int64),
        rng.integers(425, 1276, count),
        rng.integers(325, 976, count),
        concurrency=64,
    )
    return build(compose([*engine, f"predictor={predictor}"]), workload)


def event_identity() -> dict[str, float | str]:
    """Blocks with identity and prefix reuse: `chat_turns`, 64 at a time."""
    return _measure(_identity_job(64, [])) | real_scheduler("vllm", 64)


def event_identity_256() -> dict[str, float | str]:
    """The same, 256 at a time."""
    return _measure(_identity_job(256, [])) | real_scheduler("vllm", 256)


def event_rows() -> dict[str, float | str]:
    """The scheduler that decides row by row, made to serve by priority, on the work of `event_identity`."""
    return _measure(_identity_job(64, ["engine.scheduling_policy=priority"])) | real_scheduler("vllm", 64)


def event_sglang() -> dict[str, float | str]:
    """SGLang's scheduler with its radix tree, on the work of `event_identity`, pages of 16 tokens."""
    job = build(
        compose(["engine=sglang-0.5", "engine.block_size=16", "engine.max_num_seqs=64", "hardware=h200-sxm"]),
        chat_turns(32 * 64, 64),
    )
    return _measure(job) | real_scheduler("sglang", 64)


def event_trtllm() -> dict[str, float | str]:
    """TensorRT-LLM's scheduler on the work of `event_counted`."""
    return _measure(closed_loop(engine=("engine=trtllm-1.0", "engine.max_num_seqs=256")))


def event_decodes() -> dict[str, float | str]:
    """Only decoding, 64, 256 and 1024 at once, by both block managers: what one more running request costs.

    `steps_per_cpu_s` is that of 1024 with identity; the others are named by manager and number.
    """
    found: dict[str, float | str] = {}
    for named in (False, True):
        for running in (64, 256, 1024):
            rates = [_measure(_decode_job(running, named))["steps_per_cpu_s"] for _ in range(3)]
            rate = found[f"{'identity' if named else 'counted'}_{running}"] = statistics.median(map(float, rates))
    return found | {"steps_per_cpu_s": rate} | real_scheduler("vllm", 1024)


def azure_replay() -> dict[str, float | str]:
    """19,366 conversation requests at the trace's own times, or, where the trace is absent, of its length profile."""
    trace = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces" / "AzureLLMInferenceTrace_2023_conv.csv"
    if trace.is_file():
        overrides = [f"workload={trace}"]
    else:
        overrides = ["workload=azure-conv", f"workload.num_requests={AZURE_REQUESTS}", "workload.rate=5.5"]
    job = build(compose([*overrides, "engine=vllm-0.19.0"]))
    return _measure(job) | {"workload": trace.name if trace.is_file() else "azure-conv profile"}


def chat_turns(requests: int, concurrency: int, seed: int = 0) -> Workload:
    """Conversations of two turns: one of eight system prompts of 256 tokens, then 50 to 350 tokens asked in each turn.

    A prompt is all that was said before it and what is asked, 881 tokens on average; outputs have 325 to 975. Twice
    `concurrency` conversations go on side by side: the first turn has ended when the second is sent.
    """
    rng = np.random.default_rng(seed)
    turns, side_by_side = 2, 2 * concurrency
    systems = rng.integers(0, 128_000, (8, 256))
    prompts: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    while len(prompts) < requests:
        said = [systems[which] for which in rng.integers(0, 8, side_by_side)]
        for _ in range(turns):
            for conversation in range(side_by_side):
                asked = rng.integers(0, 128_000, rng.integers(50, 351))
                prompts.append(np.concatenate([said[conversation], asked]))
                outputs.append(rng.integers(0, 128_000, rng.integers(325, 976)))
                said[conversation] = np.concatenate([prompts[-1], outputs[-1]])
    prompts, outputs = prompts[:requests], outputs[:requests]
    return Workload(
        "chat",
        np.zeros(requests, np.int64),
        np.array([len(ids) for ids in prompts]),
        np.array([len(ids) for ids in outputs]),
        concurrency=concurrency,
        token_ids=tuple(prompts),
        output_token_ids=tuple(outputs),
    )


def _identity_job(running: int, overrides: list[str]) -> Job:
    blocks = 200 * running  # a request has 40 to 180, 80 on average while it runs; the rest is for reuse
    engine = ["engine=vllm-0.10.2", f"engine.max_num_seqs={running}", f"engine.num_gpu_blocks_override={blocks}"]
    return build(compose([*engine, "hardware=h200-sxm", *overrides]), chat_turns(32 * running, running))


def _decode_job(running: int, named: bool) -> Job:
    """All requests at once, of prompts of 33 to 64 tokens, each for 4,000 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(33, 65, running)
    content = tuple(rng.integers(0, 128_000, length) for length in lengths)
    workload = Workload(
        "decodes", np.zeros(running, np.int64), lengths, np.full(running, 4000), token_ids=content if named else None
    )
    blocks = 260 * running  # 254 hold 64 + 4,000 tokens
    engine = ["engine=vllm-0.10.2", f"engine.max_num_seqs={running}", f"engine.num_gpu_blocks_override={blocks}"]
    reuse = f"engine.enable_prefix_caching={str(named).lower()}"
    return build(compose([*engine, reuse, "hardware=b300-sxm", "deployment=tp8"]), workload)


def real_scheduler(engine: str, running: int) -> dict[str, float | str]:
    """Steps per CPU-second of a real engine's scheduler with `running` decodes, and which one it is."""
    rows = read_mapping(Path(__file__).with_name("real_schedulers.yaml"))["rates"]
    row = next(row for row in rows if (row["engine"], row["running"]) == (engine, running))
    return {
        "real_steps_per_cpu_s": float(row["steps_per_cpu_s"]),
        "real_scheduler": f"{row['engine']} {row['version']}, {running} decodes",
    }


def _measure(job: Job) -> dict[str, float | str]:
    started = time.process_time()
    prices = job.prices()
    compiled = time.process_time() - started
    return measured(job, prices) | {"compile_s": compiled}


def measured(job: Job, prices: Any) -> dict[str, float | str]:
    """The numbers of one run of `job` with the prices of its plan."""
    deployment = job.conf.deployment
    found: ExactRun = run_exact(
        job.workload,
        job.plan.engine,
        prices,
        num_gpu_blocks=job.pool_blocks,
        groups=job.groups,
        replicas=deployment.replicas,
        scheduler=job.conf.engine.scheduler,
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
    }

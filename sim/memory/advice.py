"""What would make a deployment fit that does not: each remedy is tried with the same sum before it is named."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineSettings
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf
from sim.memory.terms import MemoryBudget
from sim.model.spec import ModelSpec


Trial = Callable[[EngineSettings, DeploymentConf], MemoryBudget]

MOST_RANKS = 64
MOST_STAGES = 64
LEAST_LENGTH = 2048
LEAST_TOKENS = 256


@dataclass(frozen=True)
class Advice:
    """A clause for the verdict, and the numbers behind it (see `MemoryBudget`)."""

    text: str
    longest_model_len: int | None = None
    smallest_tensor_parallel: int | None = None


def advice(
    budget: MemoryBudget,
    longest: int,
    model: ModelSpec,
    device: DeviceConf,
    engine: EngineSettings,
    deployment: DeploymentConf,
    trial: Trial,
) -> Advice:
    """What makes it fit. `longest`: the longest request that starts; `trial`: the sum of other settings."""
    found = []
    shorter = longest if longest < budget.max_model_len and budget.available_bytes > 0 else 0
    if shorter:
        found.append(f"the largest max_model_len that fits is {shorter:,} tokens (engine.max_model_len={shorter})")
    given = engine.kv_cache_memory_bytes is not None
    nearest = "raise engine.kv_cache_memory_bytes" if given else _utilization(engine, device, deployment, trial)
    if nearest:
        found.append(nearest)
    if shorter or given or (nearest and longest):
        return Advice(", or ".join(found), shorter or None)
    if not found:
        found += _smaller_batch(engine, deployment, trial)
    ranks = smallest_tensor_parallel(model, device, engine, deployment, trial)
    island = Node(device).island
    if ranks and ranks <= island:
        found.append(f"it fits with deployment.tensor_parallel={ranks}")
        return Advice(", or ".join(found), 0, ranks)
    whole = bool(found)
    if ranks:
        found.append(f"it would need deployment.tensor_parallel={ranks}{_beyond(ranks, island)}")
    elif not found:
        halved = _shorter(model, device, engine, deployment, trial)
        found += [halved] if halved else []
    stages = "" if whole else _stages(model, device, engine, deployment, trial)
    found += [stages] if stages else []
    if not found:
        found.append(
            f"no tensor-parallel size of up to {MOST_RANKS} that divides the model and no number of pipeline stages of "
            f"up to {MOST_STAGES} makes it fit"
        )
    return Advice(", or ".join(found), 0, ranks)


def _beyond(ranks: int, island: float) -> str:
    """A remark for more ranks than reach each other without the network."""
    return f", more than the {island:.0f} of one node or scale-up domain" if ranks > island else ""


def _shorter(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf, trial: Trial
) -> str:
    """The fewest ranks that hold a length halved as often as needed; empty if none do."""
    lengths: list[int] = []
    while engine.max_model_len >> (len(lengths) + 1) >= LEAST_LENGTH:
        lengths.append(engine.max_model_len >> (len(lengths) + 1))
    for ranks in model.tensor_parallel_sizes(MOST_RANKS):
        for length in lengths:
            larger = replace(deployment, tensor_parallel=ranks)
            if ranks > deployment.tensor_parallel and _fits(trial, replace(engine, max_model_len=length), larger):
                return (
                    f"engine.max_model_len={length} fits with deployment.tensor_parallel={ranks}"
                    f"{_beyond(ranks, Node(device).island)}"
                )
    return ""


def _stages(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf, trial: Trial
) -> str:
    """The fewest devices in pipeline stages, each of one node or scale-up domain, that hold it; empty if none do."""
    node = Node(device)
    sizes = [
        (ranks, 1 << power)
        for ranks in model.tensor_parallel_sizes(MOST_RANKS)
        for power in range(1, MOST_STAGES.bit_length())
        if ranks <= node.island and deployment.pipeline_parallel < 1 << power <= len(model.layers)
    ]
    for ranks, stages in sorted(sizes, key=lambda size: (size[0] * size[1], size[1])):
        if not node.link_for(ranks).exists and ranks > 1 or not node.link_for(ranks * stages).exists:
            continue
        if _fits(trial, engine, replace(deployment, tensor_parallel=ranks, pipeline_parallel=stages)):
            return f"it fits with deployment.tensor_parallel={ranks} and deployment.pipeline_parallel={stages}"
    return ""


def smallest_tensor_parallel(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf, trial: Trial
) -> int:
    """The next tensor-parallel size that fits, up to 64; 0 if none does."""
    for ranks in model.tensor_parallel_sizes(MOST_RANKS):
        if ranks > deployment.tensor_parallel:
            larger = replace(deployment, tensor_parallel=ranks)
            if ranks <= Node(device).island and not Node(device).link_for(ranks).exists:
                continue
            if _fits(trial, engine, larger):
                return ranks
    return 0


def _fits(trial: Trial, engine: EngineSettings, deployment: DeploymentConf) -> MemoryBudget | None:
    """The budget of these settings if it fits; nothing if not, or if the engine refuses them."""
    try:
        budget = trial(engine, deployment)
    except ValueError:
        return None
    return budget if budget.fits else None


def most_utilization(engine: EngineSettings, device: DeviceConf) -> float:
    """The largest fraction in hundredths, below 1, that the engine accepts: vLLM wants all of it free when it starts.

    0 if there is none.
    """
    taken = engine.profile.memory.get("context_bytes", 0.0) if engine.profile.memory_rule == "vllm" else 0.0
    return max(0, min(99, math.floor(100 * (1 - taken / device.memory_bytes)))) / 100


def _utilization(engine: EngineSettings, device: DeviceConf, deployment: DeploymentConf, trial: Trial) -> str:
    """The smallest larger fraction, in hundredths, with which it fits; empty if none does."""

    def at(hundredths: int) -> MemoryBudget | None:
        return _fits(trial, replace(engine, gpu_memory_utilization=hundredths / 100), deployment)

    low, high = (
        math.floor(100 * engine.gpu_memory_utilization + 1e-9) + 1,
        round(100 * most_utilization(engine, device)),
    )
    best = at(high) if low <= high else None
    if best is None:
        return ""
    while low < high:  # the cache grows with the fraction
        middle = (low + high) // 2
        tried = at(middle)
        if tried:
            high, best = middle, tried
        else:
            low = middle + 1
    risk = " (and may run out of memory later)" if best.oom_risk == "likely" else ""
    return f"it fits with engine.gpu_memory_utilization={high / 100:g}{risk}"


def _smaller_batch(engine: EngineSettings, deployment: DeploymentConf, trial: Trial) -> list[str]:
    """Half the tokens (and sequences) of a batch as often as needed: the first that fits, if any."""
    tokens, seqs = engine.max_num_batched_tokens, engine.max_num_seqs
    while engine.chunked_prefill and tokens > LEAST_TOKENS:
        tokens = max(tokens // 2, LEAST_TOKENS)
        seqs = min(seqs, tokens)
        if _fits(trial, replace(engine, max_num_batched_tokens=tokens, max_num_seqs=seqs), deployment):
            also = f" and engine.max_num_seqs={seqs}" if seqs < engine.max_num_seqs else ""
            return [f"it fits with engine.max_num_batched_tokens={tokens}{also}"]
    while seqs > 1:
        seqs //= 2
        smaller = replace(engine, max_num_batched_tokens=tokens, max_num_seqs=seqs)
        if _fits(trial, smaller, deployment):
            also = f" and engine.max_num_batched_tokens={tokens}" if tokens < engine.max_num_batched_tokens else ""
            return [f"it fits with engine.max_num_seqs={seqs}{also}"]
    return []

"""TensorRT-LLM's rule: a fraction of what is free after weights, activations and workspaces are loaded."""

from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import domains_of
from sim.deployment.engine import EngineSettings
from sim.hardware.spec import DeviceConf
from sim.memory.terms import Term, carried, term, value_of
from sim.memory.vllm import non_torch_bytes
from sim.model.spec import ModelSpec
from sim.model.weights import weight_bytes
from sim.units import GIB


def trtllm_terms(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf, stage: int
) -> tuple[Term, ...]:
    """Rows of one rank: `fraction x (memory - weights - runtime)`; `kept_free` is the rest of what is free."""
    pp = deployment.pipeline_parallel
    domains = domains_of(model, deployment, engine.profile)
    ranks = domains.ranks
    constants, sources = engine.profile.memory, engine.profile.sources
    weights = weight_bytes(model, domains.shards, pp)[stage]
    runtime = constants["runtime_bytes"] + (non_torch_bytes(model, device, engine, deployment) if ranks > 1 else 0.0)
    free = device.memory_bytes - weights - runtime
    fraction = engine.gpu_memory_utilization
    label = "reported" if not device.memory_bytes_estimated else "estimated"
    return (
        term(
            "requested",
            device.memory_bytes,
            f"all of the {device.memory_bytes / GIB:.2f} GiB {label} by the device",
            device.sources.get("memory_bytes", "device file"),
            0.01 if device.memory_bytes_estimated else 0.0,
        ),
        term("weights", weights, f"rank of {ranks}", "model file, tensor by tensor", 0.002),
        term(
            "runtime",
            runtime,
            "context, activations and workspaces, allocated before the cache",
            carried(sources.get("memory.runtime_bytes", "engine profile"), device.name),
            constants["runtime_spread"],
        ),
        term(
            "kept_free",
            max(free, 0.0) * (1 - fraction),
            f"{1 - fraction:.3g} of what is free after loading ({free / GIB:.2f} GiB)",
            sources.get("default_gpu_memory_utilization", "engine profile"),
        ),
    )


def trtllm_margin(terms: tuple[Term, ...], device: DeviceConf, engine: EngineSettings, model: ModelSpec) -> float:
    """Bytes left free beside the cache."""
    return value_of(terms, "kept_free")

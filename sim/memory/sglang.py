"""SGLang's rule: a fraction of what was free before loading, for weights and KV together; activations outside.

Models with recurrent layers keep their states in a pool beside the KV cache: where no prefix is
reused one state for each request that may run (512 unless that number is given), else a share of what weights leave.
"""

from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import domains_of
from sim.deployment.engine import EngineSettings
from sim.hardware.spec import DeviceConf
from sim.memory.terms import Term, carried, term, value_of
from sim.memory.vllm import non_torch_bytes
from sim.model.spec import ModelSpec
from sim.model.weights import weight_bytes
from sim.units import GIB


ACTIVATION_BYTES = 2.0
STATES_PER_KV = 0.9
STATES_UNLESS_GIVEN = 512


def sglang_terms(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf, stage: int
) -> tuple[Term, ...]:
    """Rows of one rank: `fraction x (memory - context - communication) - weights`, the pool.

    Pool = free after loading - free before loading x (1 - fraction).
    """
    pp = deployment.pipeline_parallel
    domains = domains_of(model, deployment, engine.profile)
    before = engine.profile.memory["context_bytes"] + (
        non_torch_bytes(model, device, engine, deployment) if domains.ranks > 1 else 0.0
    )
    weights = weight_bytes(model, domains.shards, pp)[stage]
    fraction, sources = engine.gpu_memory_utilization, engine.profile.sources
    label = "reported" if not device.memory_bytes_estimated else "estimated"
    return (
        term(
            "requested",
            device.memory_bytes * fraction,
            f"{device.memory_bytes / GIB:.2f} GiB {label} by the device x mem_fraction_static {fraction:g}",
            device.sources.get("memory_bytes", "device file"),
            0.01 if device.memory_bytes_estimated else 0.0,
        ),
        term(
            "before_loading",
            before * fraction,
            f"context and communication buffers ({before / GIB:.2f} GiB) are not free before loading, x fraction",
            carried(sources.get("memory.context", "engine profile"), device.name),
            engine.profile.memory["non_torch_spread"],
        ),
        term("weights", weights, f"rank of {domains.ranks}", "model file, tensor by tensor", 0.002),
        *_state_terms(model, engine, deployment, stage, (device.memory_bytes - before) * fraction - weights),
    )


def state_bytes(model: ModelSpec, tensor_parallel: int, pipeline_parallel: int, stage: int) -> float:
    """Bytes of one request's states on one rank."""
    layers = model.stages(pipeline_parallel)[stage]
    return sum(layer.mixer.cache(tensor_parallel, ACTIVATION_BYTES).state_bytes for layer in layers)


def _state_terms(
    model: ModelSpec, engine: EngineSettings, deployment: DeploymentConf, stage: int, left: float
) -> tuple[Term, ...]:
    """The pool of recurrent states, where the model has any; `left`: bytes for states and KV together."""
    one = state_bytes(model, deployment.tensor_parallel, deployment.pipeline_parallel, stage)
    if not one:
        return ()
    if not engine.prefix_caching:
        given = engine.origin.get("max_num_seqs") == "user"
        seats = engine.max_num_seqs if given else min(engine.max_num_seqs, STATES_UNLESS_GIVEN)
        note = f"{seats:,} requests x {one / 2**20:.1f} MiB of states"
        return (term("states", seats * one, note, "one state for each request that may run"),)
    share = STATES_PER_KV / (1.0 + STATES_PER_KV)
    note = f"{share:.3g} of what weights leave"
    return (term("states", max(left, 0.0) * share, note, "mamba_full_memory_ratio, SGLang's default 0.9"),)


def sglang_margin(terms: tuple[Term, ...], device: DeviceConf, engine: EngineSettings, model: ModelSpec) -> float:
    """Bytes left for activations and graphs: `(1 - fraction) x free before loading`."""
    fraction = engine.gpu_memory_utilization
    return (device.memory_bytes - value_of(terms, "before_loading") / fraction) * (1 - fraction)

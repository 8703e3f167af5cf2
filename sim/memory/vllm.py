"""vLLM's rule: a fraction of the device's memory, less weights, peak activation, libraries and (by version) graphs."""

import math

from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains, domains_of
from sim.deployment.engine import EngineSettings
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf
from sim.memory.activation import peak_activation
from sim.memory.exchange import buffer_bytes
from sim.memory.runner import graphs_counted, memory_constants
from sim.memory.terms import Term, carried, term
from sim.model.attention import MLA
from sim.model.spec import Layer, ModelSpec
from sim.model.weights import weight_bytes
from sim.units import GIB


def vllm_terms(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf, stage: int
) -> tuple[Term, ...]:
    """Rows of one stage's rank: requested, weights, peak activation, non-torch, graphs (counted by some versions)."""
    pp = deployment.pipeline_parallel
    domains = domains_of(model, deployment, engine.profile)
    profile, constants = engine.profile, memory_constants(model, engine)
    layers = model.stages(pp)[stage]
    weights = weight_bytes(model, domains.shards, pp)[stage]
    peak = peak_activation(model, engine, deployment, stage)
    known = f"{engine.name} {profile.version} profile"
    label = "reported" if not device.memory_bytes_estimated else "estimated"
    graphs = graph_bytes(layers, model, engine)
    fraction = engine.gpu_memory_utilization
    return (
        term(
            "requested",
            device.memory_bytes * fraction,
            f"{device.memory_bytes / GIB:.2f} GiB {label} by the device x utilization {fraction:g}",
            device.sources.get("memory_bytes", "device file"),
            0.01 if device.memory_bytes_estimated else 0.0,
        ),
        term(
            "weights", weights, weights_formula(domains, pp, stage, model.is_moe), "model file, tensor by tensor", 0.002
        ),
        term(
            "peak_activation",
            peak.total_bytes,
            f"{engine.max_num_batched_tokens:,} tokens and {engine.max_num_seqs:,} sequences: {peak.formula}",
            carried(profile.sources.get(f"memory.{peak.constant}", known), device.name),
            constants["activation_spread"],
        ),
        non_torch_term(model, device, engine, deployment),
        term(
            "cuda_graphs",
            graphs,
            f"{len(engine.graph_sizes)} sizes over {len(layers)} layers, {engine.graph_mode}",
            carried(profile.sources.get("memory.graph", known), device.name),
            constants["graph_spread"],
            counted=graphs_counted(model, engine),
        ),
    )


def weights_formula(domains: Domains, pp: int, stage: int, experts: bool = True) -> str:
    """Which part of the weights a rank holds, in words; `experts`: the model has some."""
    parts = [f"one rank of {domains.tp_attn}"] if domains.tp_attn > 1 else ["all"]
    parts += [f"stage {stage + 1} of {pp}"] if pp > 1 else []
    if domains.ep_ffn > 1:
        parts += [f"whole experts over {domains.ep_ffn} ranks"]
    elif experts and domains.ranks > domains.tp_attn:
        parts += [f"a slice of each expert over {domains.ranks} ranks"]
    return ", ".join(parts) + ", with rotary tables, as the allocator counts them"


def non_torch_bytes(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> float:
    """What libraries allocate outside the framework: alone, and in a group by its size, its link and the layers."""
    constants, tp = memory_constants(model, engine), domains_of(model, deployment, engine.profile).ranks
    alone = constants.get("non_torch_bytes", 0.0)
    if tp == 1:
        return constants.get("non_torch_pipeline_bytes", alone) if deployment.pipeline_parallel > 1 else alone
    direct = Node(device).link_for(tp) == device.scale_up and device.scale_up.kind != "PCIe"
    group = constants["non_torch_group_nvlink_bytes" if direct else "non_torch_group_bytes"]
    exchanged = constants["non_torch_bytes_per_layer_and_peer"] * len(model.layers) * (tp - 1)
    group += constants["non_torch_doubling_bytes"] * math.log2(tp / 2) + exchanged
    return alone + group + buffer_bytes(model, device, engine, deployment)


def non_torch_term(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> Term:
    """The row of `non_torch_bytes`."""
    tp = domains_of(model, deployment, engine.profile).ranks
    words = "libraries and kernels" if tp == 1 else f"libraries, kernels and the buffers of a group of {tp}"
    own = buffer_bytes(model, device, engine, deployment)
    words += f", {own / GIB:.2f} GiB of them DeepEP's" if own else ""
    sources = engine.profile.sources
    source = sources.get("memory.non_torch_group" if tp > 1 else "memory.non_torch_bytes")
    return term(
        "non_torch",
        non_torch_bytes(model, device, engine, deployment),
        words,
        carried(source or f"{engine.name} {engine.profile.version} profile", device.name),
        engine.profile.memory.get("non_torch_spread", 0.25),
    )


def graph_bytes(layers: tuple[Layer, ...], model: ModelSpec, engine: EngineSettings) -> float:
    """Memory of captured graphs: a fixed pool, and a part per layer and size, larger where a layer has more kernels.

    The part is that of piecewise and full graphs together; one kind alone takes half of it.
    """
    constants = engine.profile.memory
    if not engine.graph_sizes:
        return 0.0
    latent = sum(isinstance(layer.mixer, MLA) for layer in layers)
    small_kernels = len(layers) if model.quantisation == "mxfp4" else 0
    per_size = (
        constants["graph_bytes_per_layer_and_size"] * len(layers)
        + constants["graph_mla_bytes_per_layer_and_size"] * latent
        + constants["graph_mxfp4_bytes_per_layer_and_size"] * small_kernels
    )
    kinds = 1.0 if engine.graph_mode == "FULL_AND_PIECEWISE" else 0.5
    return constants["graph_fixed_bytes"] + kinds * per_size * len(engine.graph_sizes)


def vllm_margin(terms: tuple[Term, ...], device: DeviceConf, engine: EngineSettings, model: ModelSpec) -> float:
    """Bytes left on the device once KV is allocated, graphs are captured and the logits of a full batch exist again."""
    constants = engine.profile.memory
    requested = terms[0].value_bytes
    outside = sum(row.value_bytes for row in terms if not row.counted)
    logits = engine.max_num_seqs * model.padded_vocab * 4.0
    return device.memory_bytes - constants["context_bytes"] - requested - outside - logits

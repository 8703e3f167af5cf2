"""What an FFN device holds, where the feed-forward parts have devices of their own: weights, but no KV cache."""

from dataclasses import replace

from sim.deployment.attention_ffn import ffn_domains
from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineSettings
from sim.hardware.spec import DeviceConf
from sim.memory.terms import FfnMemory, Term, term, value_of
from sim.model.sides import feedforward_side
from sim.model.spec import ModelSpec, MoE
from sim.model.weights import layer_bytes
from sim.units import GIB


ACTIVATION_BYTES = 2.0
MOST_DEVICES = 512


def ffn_memory(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> FfnMemory:
    """The memory sum of one FFN device, and a sentence that says what would fit if it does not.

    Activations are those of the largest micro-batch of all instances, with T tokens of hidden size h: gathered and
    returned `2 T h`, and the widest part, `T` x its units (gate, up and product), or of experts their two workspaces,
    `T top_k (max(I, h) + max(2 I, h))`.
    """
    terms = _terms(model, device, engine, deployment)
    free = terms[0].value_bytes - sum(row.value_bytes for row in terms[1:])
    verdict = ""
    if free < 0:
        weights = value_of(terms, "weights")
        verdict = (
            f"does not fit: an FFN device holds {weights / GIB:.2f} GiB of weights and "
            f"{value_of(terms, 'peak_activation') / GIB:.2f} GiB of activations, more than the "
            f"{terms[0].value_bytes / GIB:.2f} GiB of {device.name} at gpu_memory_utilization "
            f"{engine.gpu_memory_utilization:g}; {_advice(model, device, engine, deployment)}."
        )
    return FfnMemory(device.name, deployment.ffn.devices, device.memory_bytes, terms, free, verdict)


def _terms(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf
) -> tuple[Term, ...]:
    ffn, domains = deployment.ffn, ffn_domains(model, deployment.ffn)
    tokens = deployment.data_parallel * -(-engine.max_num_batched_tokens // ffn.micro_batches)
    units = max(_units(layer.ffn.linears(model.hidden, ffn.devices)) for layer in model.layers)
    spaces = max(_workspace(layer.ffn, model.hidden, ffn.devices, domains.ep_ffn) for layer in model.layers)
    activation = ACTIVATION_BYTES * tokens * (2 * model.hidden + max(units, spaces))
    fraction = engine.gpu_memory_utilization
    experts = ", whole experts" if domains.ep_ffn > 1 else ""
    return (
        term(
            "requested",
            device.memory_bytes * fraction,
            f"{device.memory_bytes / GIB:.2f} GiB x utilization {fraction:g}",
            device.sources.get("memory_bytes", "device file"),
        ),
        term(
            "weights",
            layer_bytes(feedforward_side(model), domains.shards),
            f"feed-forward parts, one device of {ffn.devices}{experts}, as the allocator counts them",
            "model file, tensor by tensor",
        ),
        term(
            "peak_activation",
            activation,
            f"{tokens:,} tokens: a micro-batch of {deployment.data_parallel} instances",
            "counted: tensors gathered and returned, and the widest part",
        ),
        term(
            "non_torch",
            engine.profile.memory.get("non_torch_bytes", 0.0),
            "libraries and kernels",
            engine.profile.sources.get("memory.non_torch_bytes", "engine profile"),
        ),
    )


def _units(matrices: tuple) -> int:
    """Numbers per token at the widest point of dense and shared matrices: outputs of the first, inputs of the last."""
    wide = [x.n for x in matrices if x.name.endswith("up")]
    return max(wide, default=0) + max((x.k for x in matrices if x.name.endswith("down")), default=0)


def _workspace(ffn: object, hidden: int, devices: int, groups: int) -> int:
    """Numbers per token in the two buffers of routed experts."""
    if not isinstance(ffn, MoE):
        return 0
    routed = ffn.routed(hidden, devices, groups)
    return routed.top_k * (max(routed.inter, hidden) + max((routed.matrices - 1) * routed.inter, hidden))


def _advice(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> str:
    """The fewest more devices that hold it."""
    for devices in range(deployment.ffn.devices + 1, MOST_DEVICES + 1):
        wider = replace(deployment, ffn=replace(deployment.ffn, devices=devices))
        experts = {layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, MoE)}
        groups = ffn_domains(model, wider.ffn).ep_ffn
        if any(count % groups for count in experts):
            continue
        try:
            terms = _terms(model, device, engine, wider)
        except ValueError:
            continue
        if terms[0].value_bytes >= sum(row.value_bytes for row in terms[1:]):
            return f"it fits with deployment.ffn.devices={devices}"
    return f"no number of FFN devices up to {MOST_DEVICES} that divides the model holds it"

"""Attention/FFN disaggregation: a replica whose feed-forward parts run on devices of their own.

Each of the replica's data-parallel ranks is an attention instance of `tensor_parallel` devices. In every layer its
devices send each their share of the instance's activations, `hidden x bytes / tensor_parallel` a token, and each of F
FFN devices receives `1 / F` of the activations of all instances; the slower side counts. The FFN devices gather what
the others have received, run the part of the layer they hold, and scatter the sums; each sends `1 / F` of the outputs
back, which the devices of an instance gather among themselves.

FFN devices of several nodes gather and sum inside their node only: every node receives all tokens, and sends back its
part of the sums, which the instance adds up; so the bytes of both ways are those of one node times the nodes.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sim.deployment.conf import DeploymentConf, FfnConf
from sim.deployment.domains import Domains
from sim.deployment.engine import EngineSettings
from sim.deployment.exchange import ACTIVATION_BYTES, SCALE_BYTES, collective, collective_slots, library
from sim.deployment.lower import lower_layers
from sim.deployment.plan import CollectiveSlots, FfnPlan, PlanArrays, Way
from sim.hardware.check import nearest
from sim.hardware.collectives import CollectiveConstants, collective_constants
from sim.hardware.node import Node
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf, LinkConf
from sim.model.sides import attention_side, feedforward_part, feedforward_side, has_feedforward, mixer_part
from sim.model.spec import Layer, ModelSpec, MoE


DISPATCH_BYTES = {"bf16": ACTIVATION_BYTES, "fp8": 1.0 + SCALE_BYTES["fp8_block"]}
"""Of one number on its way to the FFN devices."""
MOST_DEVICES = 4096
MOST_MICRO_BATCHES = 64


def ffn_device(deployment: DeploymentConf, device: DeviceConf) -> DeviceConf:
    """The device of the feed-forward parts: their own, or that of the ranks."""
    given = deployment.ffn.hardware
    return load_device(given, "deployment.ffn.hardware") if given else device


def side_of_ranks(model: ModelSpec, deployment: DeploymentConf) -> ModelSpec:
    """What of the model the ranks hold: all of it, or what is left where FFN devices hold the rest."""
    return attention_side(model) if deployment.ffn.devices else model


def ffn_domains(model: ModelSpec, ffn: FfnConf) -> Domains:
    """How the FFN devices share a layer: whole experts on each, or a slice of everything."""
    experts = ffn.devices if ffn.expert_parallel and model.is_moe else 1
    return Domains(ffn.devices, 1, ffn.devices // experts, experts)


def check_ffn(model: ModelSpec, device: DeviceConf, deployment: DeploymentConf) -> None:
    """Raise `ValueError`, one sentence, for FFN devices that cannot be."""
    ffn = deployment.ffn
    for key, value, most in (
        ("devices", ffn.devices, MOST_DEVICES),
        ("micro_batches", ffn.micro_batches, MOST_MICRO_BATCHES),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"deployment.ffn.{key} must be between 1 and {most:,}, got {value}.")
    if ffn.dispatch_dtype not in DISPATCH_BYTES:
        raise ValueError(
            f"deployment.ffn.dispatch_dtype must be one of {', '.join(DISPATCH_BYTES)}, got {ffn.dispatch_dtype!r}"
            f"{nearest(ffn.dispatch_dtype, DISPATCH_BYTES)}."
        )
    if deployment.pipeline_parallel > 1:
        raise ValueError(
            "FFN devices cannot be simulated with pipeline stages, got deployment.ffn.devices="
            f"{ffn.devices} with deployment.pipeline_parallel={deployment.pipeline_parallel}; set the latter to 1, "
            "or choose a deployment without ffn."
        )
    plain = DeploymentConf()
    for key in ("expert_parallel", "all_to_all", "redundant_experts", "expert_placement"):
        if getattr(deployment, key) != getattr(plain, key):
            raise ValueError(
                f"deployment.{key} says nothing where the experts are on devices of their own: leave it out"
                f"{', deployment.ffn.expert_parallel is what counts' if key == 'expert_parallel' else ''}."
            )
    if not any(map(has_feedforward, model.layers)):
        raise ValueError(f"{model.name} has no feed-forward parts: leave out deployment.ffn.")
    _check_shares(model, ffn)
    Node(ffn_device(deployment, device)).check_link(ffn.devices, "deployment.ffn.devices")


def _check_shares(model: ModelSpec, ffn: FfnConf) -> None:
    """Raise `ValueError`, with the nearest sizes that work, where the devices do not divide the feed-forward parts."""

    def problem(devices: int) -> str:
        domains = ffn_domains(model, replace(ffn, devices=devices))
        for layer in dict.fromkeys(model.layers):
            if isinstance(layer.ffn, MoE) and layer.ffn.experts % domains.ep_ffn:
                return f"the {layer.ffn.experts} routed experts"
            try:
                layer.ffn.linears(model.hidden, devices)
                layer.ffn.routed(model.hidden, devices, domains.ep_ffn)
            except ValueError:
                return "the units of a feed-forward part"
        return ""

    found = problem(ffn.devices)
    if found:
        sizes = [size for size in range(1, 65) if not problem(size)]
        near = ", ".join(str(size) for size in sorted(sorted(sizes, key=lambda size: abs(size - ffn.devices))[:3]))
        raise ValueError(
            f"{model.name}: deployment.ffn.devices={ffn.devices} does not divide {found}; {near} do"
            f"{', or set deployment.ffn.expert_parallel=false' if 'experts' in found else ''}."
        )


def compile_ffn(
    model: ModelSpec, device: DeviceConf, runner: DeviceConf, settings: EngineSettings, deployment: DeploymentConf
) -> FfnPlan:
    """The two sides of a checked deployment. `runner`: `device` with the launches of its engine."""
    ffn, tensor = deployment.ffn, deployment.tensor_parallel
    own = ffn_device(deployment, device)
    domains, name = ffn_domains(model, ffn), library(settings.name)
    kv_bytes, launches = settings.kv_bytes_per_element, settings.profile.eager_launches
    apart = replace(own, kernel_launch_s=own.kernel_launch_s * launches)

    def attention(layers: tuple[Layer, ...], ends: bool) -> PlanArrays:
        arrays = lower_layers(
            model,
            layers,
            runner,
            Domains(tensor, 1, tensor, 1),
            first=ends,
            last=ends,
            kv_bytes=kv_bytes,
            engine=settings.name,
            rules=settings.profile.parallel,
        ).own
        return _bare(arrays)

    def feed(layers: tuple[Layer, ...]) -> PlanArrays:
        return lower_layers(
            model,
            layers,
            apart,
            domains,
            first=False,
            last=False,
            kv_bytes=kv_bytes,
            engine=settings.name,
            rules=settings.profile.parallel,
            expert_launches=settings.profile.expert_launches,
        ).own

    sent, outputs = model.hidden * DISPATCH_BYTES[ffn.dispatch_dtype], model.hidden * ACTIVATION_BYTES
    nodes = Node(own).nodes_for(ffn.devices)
    group = -(-ffn.devices // nodes)
    received = collective_constants(device, "all_gather", tensor, name)
    gathered = collective_constants(own, "all_gather", group, name)
    scattered = collective_constants(own, "reduce_scatter", group, name)
    exchange = [collective(gathered, 1.0, sent, 0.0), collective(scattered, 1.0, outputs, 0.0)]
    mixers: dict[tuple[Layer, bool], PlanArrays] = {}
    feeds: dict[Layer, PlanArrays] = {}
    layers: list[tuple[int, int | None]] = []
    for layer in model.layers:
        visits = has_feedforward(layer)
        key = mixer_part(layer), visits
        if key not in mixers:
            arrays = attention((key[0],), ends=False)
            gather = [collective(received, 1.0, outputs, 0.0)] if visits and tensor > 1 else []
            mixers[key] = replace(arrays, collective=_with(arrays.collective, gather))
        place = None
        if visits:
            part = feedforward_part(layer)
            if part not in feeds:
                arrays = _bare(feed((part,)))
                feeds[part] = replace(arrays, collective=collective_slots(exchange if group > 1 else []))
            place = list(feeds).index(part)
        layers.append((list(mixers).index(key), place))
    link, reach = _links(device, own, deployment)
    return FfnPlan(
        device=own,
        devices=ffn.devices,
        domains=domains,
        instances=deployment.data_parallel,
        micro_batches=ffn.micro_batches,
        ends=attention((), ends=True),
        mixers=tuple(mixers.values()),
        feeds=tuple(feeds.values()),
        layers=tuple(layers),
        there=_way(nodes * sent, tensor, ffn.devices, reach),
        back=_way(nodes * outputs, tensor, ffn.devices, reach),
        link=link,
        link_source=reach[0].source,
        launch_s=np.asarray(feed(feedforward_side(model).layers).device.launch_s, np.float64),
    )


def _bare(arrays: PlanArrays) -> PlanArrays:
    """Kernels and collectives alone: a whole step has launches and host time, not its layers."""
    nothing: dict[str, Any] = {"launch_s": np.zeros(3), "gap_s": np.zeros(3), "host_s": np.zeros(())}
    return replace(arrays, device=replace(arrays.device, **nothing))


def _with(slots: CollectiveSlots, rows: list[dict[str, Any]]) -> CollectiveSlots:
    """`slots` and some more."""
    names = CollectiveSlots.__dataclass_fields__
    used = np.flatnonzero(np.asarray(slots.count))
    return collective_slots([*({name: getattr(slots, name)[i] for name in names} for i in used), *rows])


def _way(bytes_per_token: float, tensor: int, devices: int, reach: tuple[CollectiveConstants, ...]) -> Way:
    """One device of each side sends or receives its share."""
    of_attention, of_ffn = reach
    return Way(
        bytes_per_token,
        collective_slots([collective(of_attention, 1.0, bytes_per_token / tensor, 0.0)]),
        collective_slots([collective(of_ffn, 1.0, bytes_per_token / devices, 0.0)]),
    )


def _links(
    device: DeviceConf, own: DeviceConf, deployment: DeploymentConf
) -> tuple[str, tuple[CollectiveConstants, CollectiveConstants]]:
    """What joins the two sides, in words, and a send over it from a device of each.

    Devices of one kind that all fit into one node or scale-up domain talk over its link, others over their NICs.
    """
    group = deployment.tensor_parallel * deployment.data_parallel + deployment.ffn.devices
    if own.name == device.name and group <= Node(device).island:
        Node(device).check_link(group, "deployment.ffn.devices")
        inside = collective_constants(device, "send_recv", group)
        return f"{Node(device).link_for(group).kind} of one node", (inside, inside)
    for role, side in (("attention", device), ("FFN", own)):
        if not side.nic.exists:
            raise ValueError(
                f"activations cannot get to the FFN devices: the {role} device {side.name} has no network; give its "
                "nic.kind and nic.bytes_per_s, or put both sides into one node (deployment.ffn.devices)."
            )
    kinds = " and ".join(dict.fromkeys(f"{side.nic.kind} of {side.name}" for side in (device, own)))
    return kinds, (_over_network(device), _over_network(own))


def _over_network(device: DeviceConf) -> CollectiveConstants:
    """A send from one device to one of another node."""
    alone = replace(device, devices_per_node=1, scale_up=LinkConf(), pcie=LinkConf())
    return collective_constants(alone, "send_recv", 2)


def ffn_assumptions(plan: FfnPlan, deployment: DeploymentConf) -> Iterator[tuple[str, str, str]]:
    """Rows (what, value, source) of a report."""
    several = f", {deployment.data_parallel} to a group of FFN devices, all in step" * (deployment.data_parallel > 1)
    yield "attention", f"{deployment.data_parallel} x {deployment.tensor_parallel} devices{several}", "deployment"
    kept = "whole" if plan.devices == 1 else "a slice of each part on each"
    if plan.domains.ep_ffn > 1:
        kept = "whole experts on each, a slice of shared and dense parts"
    yield "feed-forward parts", f"{plan.devices} x {plan.device.name}: {kept}", "deployment.ffn"
    shares = "equal shares of a step's tokens, each with the batch's mean, spread and longest of contexts"
    yield "micro-batches", f"{plan.micro_batches}: {shares}", "deployment.ffn.micro_batches"
    nodes = Node(plan.device).nodes_for(plan.devices)
    each = f", to and from each of {nodes} nodes" if nodes > 1 else ""
    sizes = (
        f"{plan.there.bytes_per_token:,.0f} bytes a token and layer there, {plan.back.bytes_per_token:,.0f} back{each}"
    )
    yield "activations to the FFN devices", f"{sizes}, over {plan.link}", plan.link_source

"""A deployment as a tree: pools, replicas on their nodes, pipeline stages, what a rank holds, whom it talks to."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.deployment.all_to_all import exchange_of
from sim.deployment.context import expert_rows
from sim.deployment.domains import Domains
from sim.deployment.exchange import exchange_group, library
from sim.deployment.plan import CollectiveSlots, FfnPlan, Plan, PlanArrays
from sim.deployment.topology import Topology
from sim.hardware.node import Node
from sim.memory.terms import FfnMemory, MemoryBudget, value_of
from sim.model.attention import MLA, Attention
from sim.model.feedforward import MoE
from sim.model.spec import FeedForward, Layer, ModelSpec
from sim.units import GIB


@dataclass
class Branch:
    """One line of the tree, the same as `facts` for a program, and what lies below it."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    below: list["Branch"] = field(default_factory=list)


def pool_branch(name: str, role: str, plan: Plan, budget: MemoryBudget, topology: Topology, first: int) -> Branch:
    """One pool; its ranks are the endpoints of `topology` from `first` on. A plan without pools has no `name`."""
    deployment, device = plan.deployment, plan.device
    each = plan.gpus // deployment.replicas
    devices = f"{each} {device.name}"
    if plan.ffn is not None:
        ranks = deployment.data_parallel * deployment.tensor_parallel
        devices = f"({ranks} {device.name} for attention + {plan.ffn.devices} {plan.ffn.device.name} for FFN)"
    head = f"{deployment.replicas} x {devices}, {plan.engine.name} {plan.engine.version}"
    facts = {
        "name": name,
        "role": role,
        "device": device.name,
        "engine": f"{plan.engine.name} {plan.engine.version}",
        "gpus": plan.gpus,
        "replicas": deployment.replicas,
        "tensor_parallel": deployment.tensor_parallel,
        "data_parallel": deployment.data_parallel,
        "prefill_context_parallel": deployment.prefill_context_parallel,
        "decode_context_parallel": deployment.decode_context_parallel,
        "pipeline_parallel": deployment.pipeline_parallel,
        "ffn_devices": deployment.ffn.devices,
        "fits": budget.fits,
        "num_gpu_blocks": budget.num_blocks,
    }
    branch = Branch(f"{f'{name} ({role}): ' if name else ''}{head}", facts)
    branch.below.append(_places(plan, topology, first))
    branch.below += [_stage(plan, budget, index) for index in range(deployment.pipeline_parallel)]
    if plan.ffn is not None and budget.ffn is not None:
        branch.below.append(_ffn(plan.model, plan.ffn, budget.ffn))
    if not budget.fits:
        branch.below.append(Branch(f"does not start: {budget.verdict}"))
    return branch


def _places(plan: Plan, topology: Topology, first: int) -> Branch:
    """Where the ranks stand: node by node, equal ones together."""
    count = plan.deployment.replicas * plan.deployment.data_parallel
    nodes = [topology.endpoints[first + index].nodes for index in range(count)]
    what = "replica" if plan.deployment.data_parallel == 1 else "data-parallel rank"
    touched = sorted({number for places in nodes for _, number in places})
    if count == 1:
        text = f"one {what} in node{'s' if len(touched) > 1 else ''} {_runs(touched)}"
    else:
        text = f"{count} {what}s in node{'s' if len(touched) > 1 else ''} {_runs(touched)}"
    return Branch(text, {"nodes": [[number for _, number in places] for places in nodes]})


def _stage(plan: Plan, budget: MemoryBudget, index: int) -> Branch:
    """One rank of a pipeline stage."""
    layers = plan.held.stages(plan.deployment.pipeline_parallel)
    first = sum(len(stage) for stage in layers[:index])
    own = layers[index]
    last = first + len(own) - 1
    name = f"stage {index + 1} of {len(layers)}, " if len(layers) > 1 else "attention of " if plan.ffn else ""
    stage = budget.stages[index]
    weights = stage.value("weights") / GIB
    blocks = budget.num_blocks if index == budget.worst else stage.num_blocks
    kv_bytes = max(stage.available_bytes, 0.0)
    branch = Branch(
        f"{name}layers {first} to {last}, {_each(plan.domains.ranks)}:",
        {"stage": index, "layers": [first, last], "ranks": plan.domains.ranks},
    )
    branch.below += [Branch(text) for text in _shards(plan, own)]
    branch.below += [Branch(text) for text in _communicators(plan, index)]
    branch.below.append(
        Branch(
            f"memory: {weights:.2f} GiB weights, {kv_bytes / GIB:.2f} GiB KV cache = {blocks:,} blocks of "
            f"{budget.block_size} tokens{_kept(plan.domains, budget.block_size)}",
            {"weights_bytes": stage.value("weights"), "kv_bytes": kv_bytes, "num_blocks": blocks},
        )
    )
    return branch


def _kept(domains: Domains, block_size: int) -> str:
    """How many of a block's tokens a rank keeps, where it keeps a part."""
    ranks = domains.decode_context
    return f", {block_size // ranks} of them on a rank" if ranks > 1 else ""


def _each(ranks: int) -> str:
    return "on one rank" if ranks == 1 else f"each of {ranks} ranks"


def _shards(plan: Plan, layers: Sequence[Layer]) -> Iterator[str]:
    """What of each kind of layer one rank holds."""
    domains = plan.domains
    kinds: dict[str, int] = {}
    for layer in layers:
        dense = domains.ranks if domains.gathers_dense else domains.tp_attn
        for text in (_mixer(layer, domains), _feed_forward(layer.ffn, domains, dense)):
            kinds[text] = kinds.get(text, 0) + 1
    kinds.pop("", None)
    for text, count in kinds.items():
        yield f"{text}, in {count} layers"


def _mixer(layer: Layer, domains: Domains) -> str:
    mixer, ranks, divided = layer.mixer, domains.tp_attn, domains.decode_context
    copies = f", each divided over {divided} ranks" if divided > 1 else ""
    if isinstance(mixer, Attention):
        kv = max(mixer.kv_heads // ranks, 1)
        if not copies and ranks > mixer.kv_heads:
            copies = f", each on {ranks // mixer.kv_heads} ranks"
        window = f", window {mixer.window:,}" if mixer.window else f", chunks of {mixer.chunk:,}" if mixer.chunk else ""
        heads = f"{mixer.heads // ranks} of {mixer.heads} heads, {kv} of {mixer.kv_heads} KV heads"
        return f"attention: {heads}{copies}{window}"
    if isinstance(mixer, MLA):
        whole = ", the latent KV whole on every rank" if ranks > 1 else ""
        whole = f", the latent KV divided over {divided} ranks" if divided > 1 else whole
        return f"latent attention: {mixer.heads // ranks} of {mixer.heads} heads{whole}"
    return f"{type(mixer).__name__} mixer: 1/{ranks} of it" if ranks > 1 else f"{type(mixer).__name__} mixer"


def _feed_forward(ffn: FeedForward, domains: Domains, dense: int) -> str:
    """`dense`: ranks that share dense parts; "" where there is nothing."""
    if isinstance(ffn, MoE):
        held = -(-(ffn.experts + domains.redundant) // domains.ep_ffn)
        units = ffn.inter // domains.tp_ffn
        copies = f" and {domains.redundant} copies" if domains.redundant else ""
        part = f"{held} whole of {ffn.experts} experts{copies}" if domains.ep_ffn > 1 else f"all {ffn.experts} experts"
        cut = f", {units:,} of {ffn.inter:,} units of each" if domains.tp_ffn > 1 else f", {ffn.inter:,} units each"
        shared = f", a shared one of {ffn.shared_inter:,} units" if ffn.shared_inter else ""
        return f"experts: {part}{cut}, {ffn.top_k} a token{shared}"
    return f"feed-forward: {ffn.inter // dense:,} of {ffn.inter:,} units" if ffn.inter else ""


def _ffn(model: ModelSpec, ffn: FfnPlan, memory: FfnMemory) -> Branch:
    """One FFN device."""
    each = "one device" if ffn.devices == 1 else f"each of {ffn.devices} devices"
    branch = Branch(
        f"FFN of {ffn.visits} layers, {each} ({ffn.device.name}):",
        {"ffn_devices": ffn.devices, "ffn_device": ffn.device.name, "micro_batches": ffn.micro_batches},
    )
    kinds = Counter(_feed_forward(layer.ffn, ffn.domains, ffn.devices) for layer in model.layers)
    branch.below += [Branch(f"{text}, in {count} layers") for text, count in kinds.items() if text]
    group = -(-ffn.devices // Node(ffn.device).nodes_for(ffn.devices))
    if group > 1:
        link = Node(ffn.device).link_for(group).kind
        text = f"communicator: {group} FFN devices over {link}, a gather and a scatter of tokens a layer"
        branch.below.append(Branch(text))
    count = f"{ffn.instances} attention instance{'s' if ffn.instances > 1 else ''}"
    sizes = f"{ffn.there.bytes_per_token:,.0f} bytes a token and layer there, {ffn.back.bytes_per_token:,.0f} back"
    branch.below.append(Branch(f"link: {count} over {ffn.link}, {sizes}, {ffn.micro_batches} micro-batches"))
    weights = value_of(memory.terms, "weights")
    branch.below.append(
        Branch(
            f"memory: {weights / GIB:.2f} GiB weights, {memory.free_bytes / GIB:.2f} GiB free",
            {"weights_bytes": weights, "free_bytes": memory.free_bytes},
        )
    )
    return branch


def _communicators(plan: Plan, index: int) -> Iterator[str]:
    """Whom a rank of a stage talks to."""
    domains, node = plan.domains, Node(plan.device)
    arrays = plan.stages[index]
    if domains.tp_attn > 1:
        link = node.link_for(domains.tp_attn).kind
        own = _sends(arrays.collective, _gathered(plan, index))
        yield f"communicator: {domains.tp_attn} tensor-parallel ranks over {link}, {own}"
    yield from _context_groups(plan, index)
    if plan.shared is not None:
        group = exchange_group(domains, plan.engine.profile.parallel)
        way = exchange_of(plan.deployment, plan.engine.profile.parallel)
        link = node.link_for(group).kind
        yield f"communicator: {group} ranks that exchange tokens ({way}) over {link}, {_sends(plan.shared.collective)}"
    if plan.hand_over is not None and index + 1 < plan.deployment.pipeline_parallel:
        moved = _per_token(plan.hand_over)
        yield f"communicator: the next stage, {moved:,.0f} bytes a token"


def _context_groups(plan: Plan, index: int) -> Iterator[str]:
    """Groups of context-parallel ranks: what each row of their collectives is, how many there are and their bytes."""
    domains, node = plan.domains, Node(plan.device)
    for size, what, word in (
        (domains.prefill_context, "prefill", "prefilled token"),
        (domains.decode_context, "decode", "row that decodes"),
    ):
        if size > 1:
            ranks = size * (domains.tp_attn if what == "prefill" else 1)
            text = f"communicator: {size} {what}-context-parallel ranks over {node.link_for(ranks).kind}"
            gathered = _gathered(plan, index) if what == "prefill" else (0.0, 0.0)
            experts = f", {gathered[0]:.0f} for experts, {gathered[1]:,.0f} bytes a token" if gathered[0] else ""
            yield f"{text}, {_moved(plan.stages[index], f'{what}s', word)}{experts}"


def _moved(arrays: PlanArrays, rows: str, word: str) -> str:
    """The collectives of context parallelism that have a row for each such token."""
    if arrays.context is None:
        return ""
    slots = arrays.context.moved
    count = np.asarray(slots.count) * np.asarray(getattr(slots, rows))
    if rows == "prefills":  # with queries that go round, these are of the other group
        count = count * (np.asarray(slots.decodes) == 0)
    sent = float((count * np.asarray(slots.bytes_per_token)).sum())
    return f"{float(count.sum()):.0f} collectives for attention, {sent:,.0f} bytes a {word}"


def _gathered(plan: Plan, index: int) -> tuple[float, float]:
    """Collectives of a stage that bring tokens to the experts of other prefill-context-parallel ranks; their bytes."""
    layers = Counter(plan.held.stages(plan.deployment.pipeline_parallel)[index])
    rows = expert_rows(plan.model, layers, plan.device, plan.domains, library(plan.engine.name))
    return sum(row["count"] for row in rows), sum(row["count"] * row["bytes_per_token"] for row in rows)


def _sends(slots: CollectiveSlots, apart: tuple[float, float] = (0.0, 0.0)) -> str:
    """`apart`: number and bytes of those that are of another group."""
    count, sent = float(np.sum(slots.count)) - apart[0], _per_token(slots) - apart[1]
    return f"{count:.0f} collectives a step, {sent:,.0f} bytes a token"


def _per_token(slots: CollectiveSlots) -> float:
    body = np.asarray(slots.count) * np.asarray(slots.bytes_per_token) * (np.asarray(slots.emitting) == 0)
    return float(body.sum())


def _runs(numbers: Sequence[int]) -> str:
    """`0-3, 6`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def tree_lines(branches: Sequence[Branch], indent: str = "") -> Iterator[str]:
    """The branches as lines with their twigs."""
    for number, branch in enumerate(branches):
        last = number == len(branches) - 1
        yield f"{indent}{'└─ ' if last else '├─ '}{branch.text}"
        yield from tree_lines(branch.below, indent + ("   " if last else "│  "))


def tree_fields(branch: Branch) -> dict[str, Any]:
    """A branch as plain values."""
    return {"text": branch.text, **branch.facts, "below": [tree_fields(each) for each in branch.below]}

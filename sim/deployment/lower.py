"""From a model on a device to plan arrays: like products, layers and kernels counted together into padded slots.

All arrays are numpy, float64, without a `config` axis. What one rank runs in one step:

- products: every matrix of every layer, grouped by shape and format; the LM head on emitting rows.
- elementwise kernels per layer: norms with their residual, rotary embedding, head norms, cache write, activation,
  quantisation of product inputs; one embedding lookup. Grouped by bytes per token and kind; more groups than slots are
  merged.
- collectives under tensor parallelism: one all-reduce after each mixer and feed-forward part and after the embedding,
  one gather of the logits.

With pipeline stages a rank has its stage's layers; the embedding is on the first stage, head and sampler on the last.
Between stages the activations are handed over, each rank of a tensor-parallel group sending its share.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.deployment.all_to_all import DIRECT, modes_of
from sim.deployment.context import context_arrays, expert_rows
from sim.deployment.direct import direct_slots
from sim.deployment.domains import Domains
from sim.deployment.exchange import ACTIVATION_BYTES, inner_slots, library, shared_slots
from sim.deployment.formats import format_code, format_of
from sim.deployment.plan import (
    ATTENTION_SLOTS,
    ELEMENTWISE_KINDS,
    ELEMENTWISE_SLOTS,
    GEMM_SLOTS,
    MOE_SLOTS,
    RECURRENT_SLOTS,
    UNLIMITED,
    AttentionSlots,
    CollectiveSlots,
    DeviceArrays,
    ElementwiseSlots,
    GemmSlots,
    MoeSlots,
    PlanArrays,
    RecurrentSlots,
)
from sim.deployment.rules import ContextRules, ParallelRules
from sim.deployment.slots import filled, kernel_facts
from sim.hardware.spec import DeviceConf
from sim.model.spec import MLA, Attention, GatedDelta, HeadShape, Layer, Linear, ModelSpec, MoE, Recurrent


def attention_family(device: DeviceConf) -> dict[str, Any]:
    """The attention kernel of `device`: name, `tile_rows`, `packed`, `wave`, source (`kernels.toml`)."""
    found: dict[str, Any] = kernel_facts()["family"][device.attention]
    return found


def attention_flops_per_s(device: DeviceConf) -> float:
    """FLOP/s that causal attention achieves: measured for some devices, else a share of the 16-bit ceiling."""
    form = format_of("bf16", device)
    if device.attention_efficiency:
        return device.attention_efficiency * device.peak_flops_per_s[form.computed]
    return float(kernel_facts()["attention_rate"]["share"]) * form.flops_per_s


Moved = tuple[str, float]
"""What an elementwise kernel does, see `ELEMENTWISE_KINDS`, and the bytes it moves per token."""
Slots = tuple[GemmSlots, AttentionSlots, RecurrentSlots, MoeSlots, ElementwiseSlots, CollectiveSlots]


class RankArrays(NamedTuple):
    """What one rank runs: its `own` part, on its own batch, and what the ranks of its replica run together.

    `shared` is priced by the tokens of all data-parallel ranks; None where there is one.
    """

    own: PlanArrays
    shared: PlanArrays | None


def lower(
    model: ModelSpec,
    device: DeviceConf,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    kv_bytes_per_element: float | None = None,
    host_s: float = 0.0,
    engine: str = "vllm",
    pipeline_parallel: int = 1,
    stage: int = 0,
) -> PlanArrays:
    """Plan arrays of one rank of a tensor-parallel group; see `lower_rank`."""
    domains = Domains(tensor_parallel, 1, tensor_parallel // expert_parallel, expert_parallel)
    return lower_rank(model, device, domains, kv_bytes_per_element, host_s, engine, pipeline_parallel, stage).own


def lower_rank(
    model: ModelSpec,
    device: DeviceConf,
    domains: Domains,
    kv_bytes_per_element: float | None = None,
    host_s: float = 0.0,
    engine: str = "vllm",
    pipeline_parallel: int = 1,
    stage: int = 0,
    rules: ParallelRules | None = None,
    exchange: str = "allgather_reducescatter",
    expert_launches: float = 0.0,
    context: ContextRules | None = None,
    query_tokens: int = 1,
) -> RankArrays:
    """Plan arrays of one rank.

    **Arguments:**

    - `domains`: ranks that share each part of a layer.
    - `kv_bytes_per_element`: of the cache; None: the model's own.
    - `host_s`: host seconds of every step that nothing hides, beyond the device's.
    - `engine`: whose all-reduce runs (vllm, sglang, trtllm; NCCL's for any other).
    - `pipeline_parallel`, `stage`: number of stages, and the one that this rank is in.
    - `rules`, `exchange`: what data-parallel ranks do, and how tokens get to the experts of others.
    - `expert_launches`: what the host launches for one layer's experts; 0: each of their kernels.
    - `context`: what context-parallel ranks do.
    - `query_tokens`: most tokens of a decode row, 1 + the drafts that it verifies.

    **Raises:** ValueError where a size does not divide the model, or the device has no rate for a format.
    """
    held = model.stages(pipeline_parallel)[stage]
    first, last = stage == 0, stage == pipeline_parallel - 1
    kv_bytes = model.kv_bytes_per_element if kv_bytes_per_element is None else kv_bytes_per_element
    return lower_layers(
        model,
        held,
        device,
        domains,
        first=first,
        last=last,
        kv_bytes=kv_bytes,
        host_s=host_s,
        engine=engine,
        rules=rules or ParallelRules(),
        exchange=exchange,
        expert_launches=expert_launches,
        context=context,
        query_tokens=query_tokens,
    )


def lower_layers(
    model: ModelSpec,
    held: Sequence[Layer],
    device: DeviceConf,
    domains: Domains,
    *,
    first: bool,
    last: bool,
    kv_bytes: float,
    host_s: float = 0.0,
    engine: str = "vllm",
    rules: ParallelRules,
    exchange: str = "allgather_reducescatter",
    expert_launches: float = 0.0,
    context: ContextRules | None = None,
    query_tokens: int = 1,
) -> RankArrays:
    """Plan arrays of one rank that holds these layers of `model`; `first`, `last`: with what comes before and after.

    The rest as in `lower_rank`.
    """
    layers = Counter(held)
    tensor = domains.tp_attn
    kernels = _mixer_kernels(model, layers, device, domains, kv_bytes, first, last)
    if not domains.gathers_dense:
        kernels.update(_dense_kernels(model, layers, device, domains.shards.dense))
    attention, attention_layers = _attention_slots(layers, device, tensor, kv_bytes)
    recurrent = _recurrent_slots(layers, device, tensor)
    gathered = expert_rows(model, layers, device, domains, library(engine))
    own = (
        _gemm_slots(_products(model, layers, domains, True, not domains.gathers_dense, first, last), device),
        attention,
        recurrent,
        _moe_slots(model, {} if domains.lockstep else layers, device, domains),
        _elementwise_slots(kernels),
        inner_slots(model, layers, device, domains, rules, library(engine), first, last, gathered),
    )
    split = context_arrays(model, layers, device, domains, kv_bytes, context or ContextRules(), library(engine), last)
    together = _together(model, layers, device, domains, rules, exchange, engine) if domains.lockstep else None
    counts = kernel_facts()["launches"]
    between = counts["attention"] * attention_layers + counts["recurrent"] * float(recurrent.count.sum())
    between += float(np.sum(split.moved.count))
    of_experts = expert_launches or counts["moe"]
    launched = sum(_launched(slots, of_experts) for slots in (own, together) if slots)
    launched += between + counts["sampler"] * last
    graph_s, kernel_s = device.graph_launch_s, device.kernel_launch_s
    submit_s = [launched * kernel_s, (len(held) + 1) * graph_s + between * kernel_s, graph_s]
    arrays = PlanArrays(
        *own,
        split,
        _device_arrays(model, device, submit_s, [kernel_s, graph_s, graph_s], host_s, last),
        _number(query_tokens),
    )
    if together is None:
        return RankArrays(arrays, None)
    nothing = [0.0, 0.0, 0.0]  # the rank's own part has launches, host and sampler
    rest = _device_arrays(model, device, nothing, nothing, -device.host_step_s, False)
    whole = context_arrays(model, {}, device, Domains(), kv_bytes, ContextRules(), library(engine), False)
    return RankArrays(arrays, PlanArrays(*together, whole, rest, _number(1.0)))


def _number(value: float) -> Any:
    return np.asarray(value, np.float64)


def _together(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    rules: ParallelRules,
    exchange: str,
    engine: str,
) -> Slots:
    """The slots of what data-parallel ranks run together: experts, perhaps dense parts, and the exchange of tokens."""
    dense = domains.gathers_dense
    return (
        _gemm_slots(_products(model, layers, domains, False, dense, False, False), device),
        _attention_slots({}, device, domains.tp_attn, 1.0)[0],
        _recurrent_slots({}, device, domains.tp_attn),
        _moe_slots(model, layers, device, domains),
        _elementwise_slots(_dense_kernels(model, layers, device, domains.shards.dense) if dense else {}),
        direct_slots(model, layers, device, domains, rules, modes_of(exchange)[0])
        if exchange in DIRECT
        else shared_slots(model, layers, device, domains, rules, exchange, library(engine)),
    )


def _launched(slots: Slots, of_experts: float) -> float:
    """What the host launches for a step, but for attention, state layers and the sampler."""
    gemm, _, _, moe, elementwise, collective = (float(np.sum(group.count)) for group in slots)
    return gemm + elementwise + of_experts * moe + collective


def _device_arrays(
    model: ModelSpec, device: DeviceConf, submit_s: list[float], gap_s: list[float], host_s: float, last: bool
) -> DeviceArrays:
    """Rates of the device; `last`: with a sampler."""
    counts = kernel_facts()["launches"]
    parts = 1 if device.kind == "gpu" else -(-kernel_facts()["units"]["least"] // device.compute_units)
    rates: dict[str, float | list[float]] = {
        "memory_bytes_per_s": device.memory_bytes_per_s * device.memory_efficiency,
        "cache_bytes": device.cache_bytes,
        "cache_bytes_per_s": device.cache_bytes_per_s,
        "compute_units": device.compute_units * parts,
        "unit_stream_bytes_per_s": device.unit_stream_bytes_per_s / parts,
        "kernel_floor_s": device.kernel_floor_s,
        "sampler_kernels": counts["sampler"] * last,
        "sampler_bytes_per_row": counts["sampler_bytes_per_logit"] * model.padded_vocab * last,
        "sampler_passes": counts["sampler_passes"],
        "launch_s": submit_s,
        "gap_s": gap_s,
        "host_s": device.host_step_s + host_s,
        "product_time": 1.0,
        "prefill_attention_time": 1.0,
        "decode_attention_time": 1.0,
        "expert_time": 1.0,
        "elementwise_time": 1.0,
    }
    arrays: dict[str, Any] = {name: np.asarray(value, np.float64) for name, value in rates.items()}
    return DeviceArrays(**arrays)


def _products(
    model: ModelSpec, layers: Mapping[Layer, int], domains: Domains, mixers: bool, dense: bool, first: bool, last: bool
) -> Counter[Linear]:
    """Matrix products of one rank with how often a step runs each, without routed experts.

    `mixers`, `dense`: those of attention and state layers, and of feed-forward parts; `first`, `last`: those at the
    ends of the model.
    """
    shards = domains.shards
    products: Counter[Linear] = Counter()
    for layer, count in layers.items():
        matrices = layer.mixers(model.hidden, shards.mixer) if mixers else ()
        matrices += layer.ffn.linears(model.hidden, shards.dense) if dense else ()
        for matrix in matrices:
            products[matrix] += count
    for matrix, here in zip(model.ends(), (first, last), strict=False):
        products[matrix] += here
    if last:
        products[model.lm_head(shards.mixer)] += 1
    return +products


def _gemm_slots(products: Mapping[Linear, int], device: DeviceConf) -> GemmSlots:
    groups: Counter[tuple] = Counter()
    for matrix, count in products.items():
        form = format_of(matrix.dtype, device)
        key = (matrix.n, matrix.k, matrix.bytes_per_param, form.input_bytes, form.flops_per_s)
        code = format_code(matrix.dtype, matrix.bytes_per_param)
        beside = matrix.name.startswith("shared_")
        groups[(*key, float(matrix.rows == "emitting"), float(code), float(beside))] += count
    names = ("n", "k", "weight_bytes_per_param", "input_bytes", "flops_per_s", "emitting", "format", "beside")
    rows = [dict(zip(names, key, strict=True)) | {"count": count} for key, count in groups.items()]
    neutral = {"n": 1, "k": 1, "weight_bytes_per_param": 2, "input_bytes": 2, "flops_per_s": 1e12, "emitting": 0}
    neutral |= {"format": 0, "beside": 0}
    return filled(GemmSlots, rows, GEMM_SLOTS, neutral, "weight shapes")


def _attention_slots(
    layers: Mapping[Layer, int], device: DeviceConf, tensor_parallel: int, kv_bytes: float
) -> tuple[AttentionSlots, float]:
    """The slots, and how many attention layers there are."""
    family = attention_family(device)
    groups: Counter[tuple[HeadShape, float, bool]] = Counter()
    total = 0.0
    for layer, count in layers.items():
        mixer = layer.mixer
        for index, shape in enumerate(mixer.shapes(tensor_parallel, kv_bytes)):
            latent, expansion = False, 0.0
            if isinstance(mixer, MLA) and index == 0:
                latent, expansion = True, 2.0 * mixer.kv_rank * shape.q_heads * (mixer.nope_dim + mixer.v_dim)
            groups[(shape, expansion, latent)] += count
            total += count
    rows = []
    rate = attention_flops_per_s(device)
    for (shape, expansion, latent), count in groups.items():
        rows.append(
            {
                "count": count,
                "q_heads": shape.q_heads,
                "kv_heads": shape.kv_heads,
                "qk_dim": shape.qk_dim,
                "v_dim": shape.v_dim,
                "prefill_dim": shape.prefill_dim,
                "kv_bytes_per_token": shape.kv_bytes_per_token,
                "context_flops": expansion,
                "window": UNLIMITED if shape.keys is None else shape.keys,
                "chunked": shape.chunked,
                "flops_per_s": rate,
                "tile_rows": family["tile_rows"],
                # latent attention expands keys per query head in prefill, and decodes in a kernel of its own
                "packed": family["packed"] and not latent,
                "wave": family["wave"],
                "joint": not latent,
            }
        )
    neutral = dict.fromkeys(AttentionSlots.__dataclass_fields__, 1.0)
    neutral |= {"count": 0.0, "window": UNLIMITED, "chunked": 0.0, "context_flops": 0.0, "flops_per_s": rate}
    return filled(AttentionSlots, rows, ATTENTION_SLOTS, neutral, "kinds of attention"), total


def _recurrent_slots(layers: Mapping[Layer, int], device: DeviceConf, tensor_parallel: int) -> RecurrentSlots:
    groups: Counter[tuple[float, ...]] = Counter()
    for layer, count in layers.items():
        mixer = layer.mixer
        if isinstance(mixer, Recurrent):
            size = mixer.cache(tensor_parallel, ACTIVATION_BYTES).state_bytes, mixer.flops_per_token(tensor_parallel)
            shape = mixer.state_elements(tensor_parallel), mixer.conv_channels(tensor_parallel)
            groups[(*size, *shape, isinstance(mixer, GatedDelta))] += count
    rate = format_of("bf16", device).flops_per_s
    names = ("state_bytes", "flops_per_token", "elements", "channels", "delta")
    rows = [dict(zip(names, key, strict=True)) | {"count": count, "flops_per_s": rate} for key, count in groups.items()]
    neutral = dict.fromkeys(names, 0) | {"flops_per_s": rate}
    return filled(RecurrentSlots, rows, RECURRENT_SLOTS, neutral, "kinds of state layers")


def _moe_slots(model: ModelSpec, layers: Mapping[Layer, int], device: DeviceConf, domains: Domains) -> MoeSlots:
    groups: Counter[Any] = Counter()
    for layer, count in layers.items():
        routed = layer.ffn.routed(model.hidden, domains.ranks, domains.ep_ffn, domains.redundant)
        if routed is not None:
            groups[routed] += count
    rows = []
    for routed, count in groups.items():
        names = ("experts", "local_experts", "top_k", "hidden", "inter", "matrices")
        rows.append(
            {name: getattr(routed, name) for name in names}
            | {
                "count": count,
                "weight_bytes_per_param": routed.bytes_per_param,
                "flops_per_s": format_of(routed.dtype, device).flops_per_s,
                "format": format_code(routed.dtype, routed.bytes_per_param),
            }
        )
    neutral = dict.fromkeys(MoeSlots.__dataclass_fields__, 1.0)
    neutral |= {"count": 0.0, "flops_per_s": 1e12, "format": 0.0}
    return filled(MoeSlots, rows, MOE_SLOTS, neutral, "kinds of expert layers")


def _mixer_kernels(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    kv_bytes: float,
    first: bool,
    last: bool,
) -> Counter[Moved]:
    """Elementwise kernels per step outside feed-forward parts, by what they do and the bytes each moves per token.

    Prefill-context-parallel ranks write the keys of all of them, decode-context-parallel ones a share of their own.
    """
    tensor_parallel, hidden = domains.tp_attn, model.hidden * ACTIVATION_BYTES
    written = 2.0 * domains.prefill_context / domains.decode_context
    kernels: Counter[Moved] = Counter()
    if first:
        kernels["embedding", 2.0 * hidden] += 1
    if last and model.final_norm:
        kernels["norm", 4.0 * hidden] += 1
    for layer, count in layers.items():
        kernels["norm", 4.0 * hidden] += count * layer.norms  # hidden state and residual, read and written
        for shape in layer.mixer.shapes(tensor_parallel, kv_bytes)[:1]:
            queries = shape.q_heads * shape.qk_dim if not isinstance(layer.mixer, MLA) else 0.0
            keys = shape.kv_heads * shape.qk_dim
            kernels["rotary", 2.0 * (queries + keys) * ACTIVATION_BYTES] += count
            kernels["cache_write", written * shape.kv_bytes_per_token] += count
            if isinstance(layer.mixer, Attention) and layer.mixer.qk_norm != "none":
                kernels["qk_norm", 2.0 * (queries + keys) * ACTIVATION_BYTES] += count
        if isinstance(layer.mixer, Recurrent):
            channels = layer.mixer.conv_channels(tensor_parallel)
            kernels["gate", 3.0 * channels * ACTIVATION_BYTES] += count  # gate and norm after the scan
        _add_quantisations(kernels, layer.mixers(model.hidden, tensor_parallel), count, device)
        if isinstance(layer.ffn, MoE):
            kernels["add", 3.0 * hidden] += count  # routed and shared outputs added
    return kernels


def _dense_kernels(model: ModelSpec, layers: Mapping[Layer, int], device: DeviceConf, ranks: int) -> Counter[Moved]:
    """Those of dense feed-forward parts and shared experts."""
    kernels: Counter[Moved] = Counter()
    for layer, count in layers.items():
        matrices = layer.ffn.linears(model.hidden, ranks)
        for matrix in matrices:
            if matrix.name in ("down", "shared_down"):  # activation: gate and up in, one out
                gated = layer.ffn.gated
                kernels["activation", (3.0 if gated else 2.0) * matrix.k * ACTIVATION_BYTES] += count
        _add_quantisations(kernels, matrices, count, device)
    return kernels


def _add_quantisations(kernels: Counter[Moved], matrices: tuple[Linear, ...], count: int, device: DeviceConf) -> None:
    """Count the kernels that quantise the inputs of `matrices`."""
    for matrix in matrices:
        form = format_of(matrix.dtype, device)
        if form.quantises_input:
            kernels["quantise", (ACTIVATION_BYTES + form.input_bytes) * matrix.k] += count


def _elementwise_slots(kernels: Mapping[Moved, float]) -> ElementwiseSlots:
    """Groups by kind and bytes per token; the closest of one kind are merged (weighted mean) until they fit the slots.

    Where there are as many kinds as slots, the closest of all: the group keeps the kind of more kernels.
    """
    groups = sorted((size, kind, float(count)) for (kind, size), count in kernels.items())
    while len(groups) > ELEMENTWISE_SLOTS:
        pairs = [(i, j) for j in range(len(groups)) for i in range(j)]
        own = [(i, j) for i, j in pairs if groups[i][1] == groups[j][1]] or pairs
        i, j = min(own, key=lambda pair: groups[pair[1]][0] / max(groups[pair[0]][0], 1.0))
        (a, kind, count_a), (b, other, count_b) = groups[i], groups.pop(j)
        size = (a * count_a + b * count_b) / (count_a + count_b)
        groups[i] = (size, kind if count_a >= count_b else other, count_a + count_b)
        groups.sort()
    names = ("bytes_per_token", "kind", "count")
    rows = [dict(zip(names, (size, ELEMENTWISE_KINDS.index(kind), count), strict=True)) for size, kind, count in groups]
    neutral = {"bytes_per_token": 0.0, "kind": 0.0}
    return filled(ElementwiseSlots, rows, ELEMENTWISE_SLOTS, neutral, "elementwise kernels")

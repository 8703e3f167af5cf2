"""From a model on a device to plan arrays: like products, layers and kernels counted together into padded slots.

All arrays are numpy, float64, without a `config` axis. What one rank runs in one step:

- products: every matrix of every layer, grouped by shape and format; the LM head on emitting rows.
- elementwise kernels per layer: norms with their residual, rotary embedding, head norms, cache write, activation,
  quantisation of product inputs; one embedding lookup. Grouped by bytes per token; more groups than slots are merged.
- collectives under tensor parallelism: one all-reduce after each mixer and feed-forward part and after the embedding,
  one gather of the logits.

With pipeline stages a rank has its stage's layers; the embedding is on the first stage, head and sampler on the last.
Between stages the activations are handed over, each rank of a tensor-parallel group sending its share.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from sim.deployment.formats import format_of
from sim.deployment.plan import (
    ATTENTION_SLOTS,
    COLLECTIVE_SLOTS,
    ELEMENTWISE_SLOTS,
    GEMM_SLOTS,
    MOE_SLOTS,
    PROTOCOLS,
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
from sim.hardware.collectives import LIBRARIES, CollectiveConstants, collective_constants
from sim.hardware.spec import DeviceConf
from sim.model.spec import MLA, Attention, HeadShape, Layer, Linear, Mamba, ModelSpec, MoE, Recurrent


ACTIVATION_BYTES = 2.0
TOKEN_ID_BYTES = 8.0


@cache
def _kernels() -> dict[str, Any]:
    return tomllib.loads((files("sim.deployment") / "kernels.toml").read_text())


def attention_family(device: DeviceConf) -> dict[str, Any]:
    """The attention kernel of `device`: name, `tile_rows`, `packed`, `wave`, source (`kernels.toml`)."""
    found: dict[str, Any] = _kernels()["family"][device.attention]
    return found


def attention_flops_per_s(device: DeviceConf) -> float:
    """FLOP/s that causal attention achieves: measured for some devices, else a share of the 16-bit ceiling."""
    form = format_of("bf16", device)
    if device.attention_efficiency:
        return device.attention_efficiency * device.peak_flops_per_s[form.computed]
    return float(_kernels()["attention_rate"]["share"]) * form.flops_per_s


def library(engine: str) -> str:
    """Whose collectives `engine` runs: its own where they were measured, else NCCL's."""
    return engine if engine in LIBRARIES else "nccl"


def _fill(kind: type[Any], rows: list[dict[str, Any]], slots: int, neutral: Mapping[str, Any], what: str) -> Any:
    """A slot group of `rows`, padded with `neutral` values and `count` 0."""
    if len(rows) > slots:
        raise ValueError(
            f"the model has {len(rows)} distinct {what} on one rank, more than the {slots} that fit a plan."
        )
    padded = rows + [{"count": 0.0} | dict(neutral)] * (slots - len(rows))
    return kind(**{name: np.array([row[name] for row in padded], np.float64) for name in kind.__dataclass_fields__})


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
    """Plan arrays of one rank.

    **Arguments:**

    - `tensor_parallel`, `expert_parallel`: ranks that share each matrix, and the experts.
    - `kv_bytes_per_element`: of the cache; None: the model's own.
    - `host_s`: host seconds of every step that nothing hides, beyond the device's.
    - `engine`: whose all-reduce runs (vllm, sglang, trtllm; NCCL's for any other).
    - `pipeline_parallel`, `stage`: number of stages, and the one that this rank is in.

    **Raises:** ValueError where a size does not divide the model, or the device has no rate for a format.
    """
    kv_bytes = model.kv_bytes_per_element if kv_bytes_per_element is None else kv_bytes_per_element
    held = model.stages(pipeline_parallel)[stage]
    layers = Counter(held)
    first, last = stage == 0, stage == pipeline_parallel - 1
    products = _products(model, layers, tensor_parallel, first, last)
    gemm = _gemm_slots(products, device)
    attention, attention_layers = _attention_slots(layers, device, tensor_parallel, kv_bytes)
    recurrent = _recurrent_slots(layers, device, tensor_parallel)
    moe = _moe_slots(model, layers, device, tensor_parallel, expert_parallel)
    kernels = _elementwise_kernels(model, layers, device, tensor_parallel, kv_bytes, first, last)
    elementwise = _elementwise_slots(kernels)
    collective = _collective_slots(model, layers, device, tensor_parallel, library(engine), first, last)

    counts = _kernels()["launches"]
    between = counts["attention"] * attention_layers + counts["recurrent"] * float(recurrent.count.sum())
    launched = (
        gemm.count.sum()
        + elementwise.count.sum()
        + counts["moe"] * moe.count.sum()
        + collective.count.sum()
        + between
        + counts["sampler"] * last
    )
    pieces = len(held) + 1
    graph_s, kernel_s = device.graph_launch_s, device.kernel_launch_s
    parts = 1 if device.kind == "gpu" else -(-_kernels()["units"]["least"] // device.compute_units)
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
        "launch_s": [launched * kernel_s, pieces * graph_s + between * kernel_s, graph_s],
        "gap_s": [kernel_s, graph_s, graph_s],
        "host_s": device.host_step_s + host_s,
    }
    arrays: dict[str, Any] = {name: np.asarray(value, np.float64) for name, value in rates.items()}
    slots = (gemm, attention, recurrent, moe, elementwise, collective)
    return PlanArrays(*slots, DeviceArrays(**arrays))


def _products(
    model: ModelSpec, layers: Mapping[Layer, int], tensor_parallel: int, first: bool, last: bool
) -> Counter[Linear]:
    """Every matrix product of one rank with how often a step runs it."""
    products: Counter[Linear] = Counter()
    for layer, count in layers.items():
        for matrix in layer.linears(model.hidden, tensor_parallel):
            products[matrix] += count
    for matrix, here in zip(model.ends(), (first, last), strict=False):
        products[matrix] += here
    if last:
        products[model.lm_head(tensor_parallel)] += 1
    return +products


def _gemm_slots(products: Mapping[Linear, int], device: DeviceConf) -> GemmSlots:
    groups: Counter[tuple] = Counter()
    for matrix, count in products.items():
        form = format_of(matrix.dtype, device)
        key = (matrix.n, matrix.k, matrix.bytes_per_param, form.input_bytes, form.flops_per_s)
        groups[(*key, float(matrix.rows == "emitting"))] += count
    names = ("n", "k", "weight_bytes_per_param", "input_bytes", "flops_per_s", "emitting")
    rows = [dict(zip(names, key, strict=True)) | {"count": count} for key, count in groups.items()]
    neutral = {"n": 1, "k": 1, "weight_bytes_per_param": 2, "input_bytes": 2, "flops_per_s": 1e12, "emitting": 0}
    return _fill(GemmSlots, rows, GEMM_SLOTS, neutral, "weight shapes")


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
    return _fill(AttentionSlots, rows, ATTENTION_SLOTS, neutral, "kinds of attention"), total


def _recurrent_slots(layers: Mapping[Layer, int], device: DeviceConf, tensor_parallel: int) -> RecurrentSlots:
    groups: Counter[tuple[float, float]] = Counter()
    for layer, count in layers.items():
        if isinstance(layer.mixer, Recurrent):
            state = layer.mixer.cache(tensor_parallel, ACTIVATION_BYTES).state_bytes
            groups[(state, layer.mixer.flops_per_token(tensor_parallel))] += count
    rate = format_of("bf16", device).flops_per_s
    rows = [
        {"count": count, "state_bytes": state, "flops_per_token": flops, "flops_per_s": rate}
        for (state, flops), count in groups.items()
    ]
    neutral = {"state_bytes": 0, "flops_per_token": 0, "flops_per_s": rate}
    return _fill(RecurrentSlots, rows, RECURRENT_SLOTS, neutral, "kinds of state layers")


def _moe_slots(
    model: ModelSpec, layers: Mapping[Layer, int], device: DeviceConf, tensor_parallel: int, expert_parallel: int
) -> MoeSlots:
    groups: Counter[Any] = Counter()
    for layer, count in layers.items():
        routed = layer.ffn.routed(model.hidden, tensor_parallel, expert_parallel)
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
            }
        )
    neutral = dict.fromkeys(MoeSlots.__dataclass_fields__, 1.0)
    neutral |= {"count": 0.0, "flops_per_s": 1e12}
    return _fill(MoeSlots, rows, MOE_SLOTS, neutral, "kinds of expert layers")


def _elementwise_kernels(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    tensor_parallel: int,
    kv_bytes: float,
    first: bool,
    last: bool,
) -> Counter[float]:
    """Kernels per step by the bytes each moves per token."""
    hidden = model.hidden * ACTIVATION_BYTES
    kernels: Counter[float] = Counter()
    if first:
        kernels[2.0 * hidden] += 1  # embedding lookup
    if last and model.final_norm:
        kernels[4.0 * hidden] += 1
    for layer, count in layers.items():
        kernels[4.0 * hidden] += count * layer.norms  # hidden state and residual, read and written
        for shape in layer.mixer.shapes(tensor_parallel, kv_bytes)[:1]:
            queries = shape.q_heads * shape.qk_dim if not isinstance(layer.mixer, MLA) else 0.0
            keys = shape.kv_heads * shape.qk_dim
            kernels[2.0 * (queries + keys) * ACTIVATION_BYTES] += count  # rotary embedding
            kernels[2.0 * shape.kv_bytes_per_token] += count  # cache write
            if isinstance(layer.mixer, Attention) and layer.mixer.qk_norm != "none":
                kernels[2.0 * (queries + keys) * ACTIVATION_BYTES] += count
        if isinstance(layer.mixer, Recurrent):
            channels = layer.mixer.conv_channels(tensor_parallel)
            kernels[3.0 * channels * ACTIVATION_BYTES] += count  # gate and norm after the scan
        matrices = layer.linears(model.hidden, tensor_parallel)
        for matrix in matrices:
            if matrix.name in ("down", "shared_down"):  # activation: gate and up in, one out
                gated = layer.ffn.gated
                kernels[(3.0 if gated else 2.0) * matrix.k * ACTIVATION_BYTES] += count
            form = format_of(matrix.dtype, device)
            if form.quantises_input:
                kernels[(ACTIVATION_BYTES + form.input_bytes) * matrix.k] += count
        if isinstance(layer.ffn, MoE):
            kernels[3.0 * hidden] += count  # routed and shared outputs added
    return kernels


def _elementwise_slots(kernels: Mapping[float, float]) -> ElementwiseSlots:
    """Groups by bytes per token; the two closest are merged (weighted mean) until they fit the slots."""
    groups = sorted((size, float(count)) for size, count in kernels.items())
    while len(groups) > ELEMENTWISE_SLOTS:
        ratios = [groups[i + 1][0] / max(groups[i][0], 1.0) for i in range(len(groups) - 1)]
        at = ratios.index(min(ratios))
        (a, count_a), (b, count_b) = groups[at : at + 2]
        groups[at : at + 2] = [((a * count_a + b * count_b) / (count_a + count_b), count_a + count_b)]
    rows = [{"count": count, "bytes_per_token": size} for size, count in groups]
    return _fill(ElementwiseSlots, rows, ELEMENTWISE_SLOTS, {"bytes_per_token": 0.0}, "elementwise kernels")


def _collective_slots(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    tensor_parallel: int,
    library: str,
    first: bool,
    last: bool,
) -> CollectiveSlots:
    """All-reduces of the hidden state, and the gather of the logits; none on a single rank."""
    rows: list[dict[str, Any]] = []
    if tensor_parallel > 1:
        hidden = model.hidden * ACTIVATION_BYTES
        sums: Counter[float] = Counter({hidden: int(first)})
        for layer, count in layers.items():
            sums[hidden] += count * (1 + any(x.name in ("down", "router") for x in layer.linears(model.hidden, 1)))
            if isinstance(layer.mixer, Mamba):  # B, C and dt are partial sums
                sums[(layer.mixer.dt_rank + 2 * layer.mixer.state) * ACTIVATION_BYTES] += count
        constants = collective_constants(device, "all_reduce", tensor_parallel, library)
        rows += [_collective(constants, count, size, 0.0) for size, count in sums.items()]
        if last:
            gather = collective_constants(device, "all_gather", tensor_parallel, library)
            rows.append(_collective(gather, 1.0, model.padded_vocab * ACTIVATION_BYTES, 1.0))
    return _filled(rows)


def hand_over(model: ModelSpec, device: DeviceConf, tensor_parallel: int = 1) -> CollectiveSlots:
    """From one pipeline stage to the next: hidden states and residual of every token.

    Each rank sends its `1 / tensor_parallel` of them to its neighbour of the next stage, where they are gathered.
    """
    tensors = float(_kernels()["hand_over"]["tensors"])
    size = model.hidden * ACTIVATION_BYTES
    sent = collective_constants(device, "send_recv", tensor_parallel + 1)
    rows = [_collective(sent, tensors, size / tensor_parallel, 0.0)]
    if tensor_parallel > 1:
        rows.append(_collective(collective_constants(device, "all_gather", tensor_parallel), tensors, size, 0.0))
    return _filled(rows)


def tokens_back(device: DeviceConf, ranks: int) -> CollectiveSlots:
    """From the last of `ranks` ranks to the first: one sampled token id."""
    return _filled([_collective(collective_constants(device, "send_recv", ranks), 1.0, TOKEN_ID_BYTES, 0.0)])


def _filled(rows: list[dict[str, Any]]) -> CollectiveSlots:
    nothing = np.zeros(PROTOCOLS)
    neutral = {"bytes_per_token": 0, "factor": 0, "emitting": 0, "a_s": nothing, "bytes_per_s": nothing}
    found: CollectiveSlots = _fill(CollectiveSlots, rows, COLLECTIVE_SLOTS, neutral, "collectives")
    return found


def _collective(
    constants: CollectiveConstants, count: float, bytes_per_token: float, emitting: float
) -> dict[str, Any]:
    return {
        "count": count,
        "bytes_per_token": bytes_per_token,
        "factor": constants.factor,
        "a_s": constants.a_s,
        "bytes_per_s": constants.bytes_per_s,
        "emitting": emitting,
    }

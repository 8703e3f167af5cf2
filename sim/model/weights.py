"""Weight bytes of one rank, and whether a parallel shape divides a model, by the rules of vLLM."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.model.attention import MLA, Attention
from sim.model.feedforward import MoE
from sim.model.linear import DTYPE_BYTES, Linear, RoutedExperts, kv_share, share
from sim.model.schemes import MXFP4
from sim.model.shards import Shards
from sim.units import MIB


if TYPE_CHECKING:
    from sim.model.spec import Layer, ModelSpec


def divides(model: "ModelSpec", shards: Shards) -> str | None:
    """None if the ranks divide the model; else a sentence saying what they do not divide.

    In the order in which vLLM fails: attention heads, padded vocabulary, KV heads, and the units of each part.
    """
    layers = tuple(dict.fromkeys((*model.layers, *model.draft_layers)))
    tensor_parallel = shards.mixer
    try:
        for layer in layers:
            if isinstance(layer.mixer, Attention | MLA):
                share(layer.mixer.heads, "attention heads", tensor_parallel)
        vocabulary = f"rows of the padded vocabulary ({model.vocab} before padding)"
        share(model.padded_vocab, vocabulary, tensor_parallel)
        for layer in layers:
            if isinstance(layer.mixer, Attention):
                kv_share(layer.mixer.kv_heads, tensor_parallel)
            layer.linears(model.hidden, tensor_parallel, shards.dense)
            layer.ffn.routed(model.hidden, shards.experts, shards.expert_groups, shards.redundant)
    except ValueError as error:
        return str(error)
    return None


def check(model: "ModelSpec", shards: Shards, pipeline_parallel: int) -> None:
    """ValueError naming what does not divide and the sizes that would."""
    expert_parallel = shards.expert_groups
    for key, size in (
        ("tensor_parallel", shards.mixer),
        ("pipeline_parallel", pipeline_parallel),
        ("expert_parallel", expert_parallel),
    ):
        if size < 1:
            raise ValueError(f"deployment.{key} must be at least 1, got {size}.")
    problem = divides(model, shards)
    if problem is not None:
        sizes = ", ".join(str(size) for size in model.tensor_parallel_sizes(16))
        raise ValueError(f"{model.name}: {problem.removesuffix('.')} (up to 16, these divide it: {sizes}).")
    experts = max((layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, MoE)), default=0)
    if expert_parallel > 1 and expert_parallel > experts:
        raise ValueError(
            f"{model.name}: expert parallel size {expert_parallel} is more than its {experts} routed experts; "
            "change deployment.expert_parallel."
        )
    model.stages(pipeline_parallel)


def allocated(size_bytes: float) -> float:
    """Bytes the CUDA caching allocator counts for one tensor.

    Tensors of 10 MiB or more get a segment rounded up to 2 MiB, of which a rest of at most 1 MiB
    is not split off; smaller ones share segments and are counted to 512 bytes.
    """
    size = -(-size_bytes // 512) * 512
    if size < 10 * MIB:
        return size
    segment = -(-size // (2 * MIB)) * 2 * MIB
    return segment if segment - size <= MIB else size


def tensors(
    model: "ModelSpec", shards: Shards, pipeline_parallel: int, draft: bool, loaded: bool
) -> Iterator[list[float]]:
    """Sizes in bytes of all tensors of one rank, a list per pipeline stage; `loaded`: with what an engine adds to them.

    The embedding (and learned positions, and a vision tower) are on the first stage, the head, the last norm and the
    draft layers on the last; a tied head is stored once where both are on one stage, and again on the last otherwise.
    """
    stages = model.stages(pipeline_parallel)
    width = DTYPE_BYTES[model.dtype]
    norm = model.hidden * (1 + model.norm_bias) * width
    for index, layers in enumerate(stages):
        first, last = index == 0, index == len(stages) - 1
        sizes: list[float] = []
        counts: dict[Layer, int] = {}
        for layer in (*layers, *(model.draft_layers if draft and last else ())):
            counts[layer] = counts.get(layer, 0) + 1
        for layer, count in counts.items():
            sizes += list(_layer_tensors(layer, model, shards, loaded)) * count
        if first:
            rows = share(model.padded_vocab, "rows of the padded vocabulary", shards.mixer)
            sizes.append(rows * (model.embedding_dim or model.hidden) * width)
            sizes.append(model.positions * model.hidden * width)
            sizes += [norm] * model.embedding_norm + [x.weight_bytes for x in model.ends()[:1]]
        if last:
            sizes += [norm] * model.final_norm + [x.weight_bytes for x in model.ends()[1:]]
            if not (model.tied and first):
                sizes += _matrix(model.lm_head(shards.mixer))
        yield [size for size in sizes if size]


def _layer_tensors(layer: "Layer", model: "ModelSpec", shards: Shards, loaded: bool) -> Iterator[float]:
    for matrix in layer.linears(model.hidden, shards.mixer, shards.dense):
        yield from _matrix(matrix)
        if loaded and matrix.name == "kv_b" and isinstance(layer.mixer, MLA):
            # decode multiplies with its two halves, kept apart in 16 bits
            yield 2.0 * matrix.n * matrix.k
    for vector in layer.vectors(model.hidden, shards.mixer):
        yield vector.weight_bytes
    routed = layer.ffn.routed(model.hidden, shards.experts, shards.expert_groups, shards.redundant)
    if routed is not None:
        yield from _experts(routed, loaded)


def layer_bytes(model: "ModelSpec", shards: Shards) -> float:
    """Bytes after loading of all layers of one rank, without embedding and head."""
    sizes = (size for layer in model.layers for size in _layer_tensors(layer, model, shards, loaded=True))
    return sum(allocated(size) for size in sizes if size)


def _matrix(matrix: Linear) -> list[float]:
    """Elements, scales and bias are separate tensors."""
    elements = matrix.n * matrix.k * DTYPE_BYTES[matrix.dtype]
    rest = matrix.n * matrix.k * matrix.bytes_per_param - elements
    return [elements, rest, 2.0 * matrix.n if matrix.bias else 0.0]


def _experts(routed: RoutedExperts, loaded: bool) -> list[float]:
    """All experts of a layer are two tensors, (gate and) up and down, with their scales and biases."""
    element, scale = DTYPE_BYTES[routed.dtype], routed.bytes_per_param - DTYPE_BYTES[routed.dtype]
    inter, wide, deep = routed.inter, routed.hidden, routed.inter
    if loaded and routed.bytes_per_param == MXFP4.bytes_per_param:
        # kernels for MXFP4 want units in 64s and packed rows of 256 inputs
        inter, wide, deep = _up_to(inter, 64), _up_to(routed.hidden, 256), _up_to(inter, 256)
    up = (routed.matrices - 1) * routed.local_experts * inter
    down = routed.local_experts * routed.hidden
    sizes = [up * wide * element, up * routed.hidden * scale, down * deep * element, down * inter * scale]
    if routed.bias:
        sizes += [2.0 * up, 2.0 * down]
    return sizes


def _up_to(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def parameter_bytes(
    model: "ModelSpec", shards: Shards, pipeline_parallel: int, draft: bool = False
) -> tuple[float, ...]:
    """Stored bytes of the weights of one rank, per pipeline stage."""
    check(model, shards, pipeline_parallel)
    stages = tensors(model, shards, pipeline_parallel, draft, loaded=False)
    return tuple(sum(sizes) for sizes in stages)


def weight_bytes(model: "ModelSpec", shards: Shards, pipeline_parallel: int, draft: bool = False) -> tuple[float, ...]:
    """Bytes an engine reports after loading: every tensor as allocated, the rope tables of every stage, the tower."""
    check(model, shards, pipeline_parallel)
    tables = [table.rows * table.dim * DTYPE_BYTES[model.dtype] for table in model.ropes]
    stages = tensors(model, shards, pipeline_parallel, draft, loaded=True)
    tower = model.tower_params * DTYPE_BYTES[model.dtype] / shards.mixer
    return tuple(
        sum(allocated(size) for size in [*sizes, *tables]) + (tower if index == 0 else 0.0)
        for index, sizes in enumerate(stages)
    )

"""Weight bytes of one rank, and whether a parallel shape divides a model, by the rules of vLLM."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.model.attention import MLA, Attention
from sim.model.feedforward import MoE
from sim.model.linear import DTYPE_BYTES, Linear, RoutedExperts, kv_share, share
from sim.units import MIB


if TYPE_CHECKING:
    from sim.model.spec import Layer, ModelSpec


def divides(model: "ModelSpec", tensor_parallel: int) -> str | None:
    """None if `tensor_parallel` divides heads, KV heads, units and padded vocabulary; else a sentence saying which."""
    try:
        for layer in dict.fromkeys((*model.layers, *model.draft_layers)):
            if isinstance(layer.mixer, Attention | MLA):
                share(layer.mixer.heads, "attention heads", tensor_parallel)
            if isinstance(layer.mixer, Attention):
                kv_share(layer.mixer.kv_heads, tensor_parallel)
            layer.linears(model.hidden, tensor_parallel)
        vocabulary = f"rows of the padded vocabulary ({model.vocab} before padding)"
        share(model.padded_vocab, vocabulary, tensor_parallel)
    except ValueError as error:
        return str(error)
    return None


def check(model: "ModelSpec", tensor_parallel: int, pipeline_parallel: int, expert_parallel: int) -> None:
    """ValueError naming what does not divide and the sizes that would."""
    for key, size in (
        ("tensor_parallel", tensor_parallel),
        ("pipeline_parallel", pipeline_parallel),
        ("expert_parallel", expert_parallel),
    ):
        if size < 1:
            raise ValueError(f"deployment.{key} must be at least 1, got {size}.")
    problem = divides(model, tensor_parallel)
    if problem is None and expert_parallel == 1:
        try:
            for layer in dict.fromkeys(model.layers):
                layer.ffn.routed(model.hidden, tensor_parallel)
        except ValueError as error:
            problem = str(error)
    if problem is not None:
        sizes = ", ".join(str(size) for size in model.tensor_parallel_sizes(16))
        raise ValueError(f"{model.name}: {problem.removesuffix('.')} (sizes that divide it: {sizes}).")
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
    model: "ModelSpec", tensor_parallel: int, pipeline_parallel: int, expert_parallel: int, draft: bool
) -> Iterator[list[float]]:
    """Sizes in bytes of all tensors of one rank, a list per pipeline stage.

    The embedding (and learned positions) are on the first stage, the head, the last norm and the draft layers
    on the last; a tied head is stored once where both are on one stage, and again on the last where they are not.
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
            sizes += list(_layer_tensors(layer, model.hidden, tensor_parallel, expert_parallel)) * count
        if first:
            rows = share(model.padded_vocab, "rows of the padded vocabulary", tensor_parallel)
            sizes.append(rows * (model.embedding_dim or model.hidden) * width)
            sizes.append(model.positions * model.hidden * width)
            sizes += [norm] * model.embedding_norm + [x.weight_bytes for x in model.ends()[:1]]
        if last:
            sizes += [norm] * model.final_norm + [x.weight_bytes for x in model.ends()[1:]]
            if not (model.tied and first):
                sizes += _matrix(model.lm_head(tensor_parallel))
        yield [size for size in sizes if size]


def _layer_tensors(layer: "Layer", hidden: int, tensor_parallel: int, expert_parallel: int) -> Iterator[float]:
    for matrix in layer.linears(hidden, tensor_parallel):
        yield from _matrix(matrix)
    for vector in layer.vectors(hidden, tensor_parallel):
        yield vector.weight_bytes
    routed = layer.ffn.routed(hidden, tensor_parallel, expert_parallel)
    if routed is not None:
        yield from _experts(routed)


def _matrix(matrix: Linear) -> list[float]:
    """Elements, scales and bias are separate tensors."""
    elements = matrix.n * matrix.k * DTYPE_BYTES[matrix.dtype]
    rest = matrix.n * matrix.k * matrix.bytes_per_param - elements
    return [elements, rest, 2.0 * matrix.n if matrix.bias else 0.0]


def _experts(routed: RoutedExperts) -> list[float]:
    """All experts of a layer are two tensors, (gate and) up and down, with their scales and biases."""
    units = routed.local_experts * routed.inter
    element, scale = DTYPE_BYTES[routed.dtype], routed.bytes_per_param - DTYPE_BYTES[routed.dtype]
    up, down = (routed.matrices - 1) * units * routed.hidden, units * routed.hidden
    sizes = [up * element, up * scale, down * element, down * scale]
    if routed.bias:
        sizes += [2.0 * (routed.matrices - 1) * units, 2.0 * routed.local_experts * routed.hidden]
    return sizes


def parameter_bytes(
    model: "ModelSpec", tensor_parallel: int, pipeline_parallel: int, expert_parallel: int, draft: bool
) -> tuple[float, ...]:
    """Stored bytes of the weights of one rank, per pipeline stage."""
    check(model, tensor_parallel, pipeline_parallel, expert_parallel)
    return tuple(sum(sizes) for sizes in tensors(model, tensor_parallel, pipeline_parallel, expert_parallel, draft))


def weight_bytes(
    model: "ModelSpec", tensor_parallel: int, pipeline_parallel: int, expert_parallel: int, draft: bool
) -> tuple[float, ...]:
    """Bytes an engine reports after loading: every tensor as allocated, and the rope tables every stage keeps."""
    check(model, tensor_parallel, pipeline_parallel, expert_parallel)
    tables = [table.rows * table.dim * DTYPE_BYTES[model.dtype] for table in model.ropes]
    stages = tensors(model, tensor_parallel, pipeline_parallel, expert_parallel, draft)
    return tuple(sum(allocated(size) for size in [*sizes, *tables]) for sizes in stages)

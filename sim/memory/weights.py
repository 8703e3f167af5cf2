"""What vLLM holds of a model's weights after loading, beyond the tensors of the checkpoint."""

from sim.model.attention import MLA
from sim.model.feedforward import MoE
from sim.model.linear import share
from sim.model.spec import Layer, ModelSpec


def loaded_bytes(model: ModelSpec, tensor_parallel: int, pipeline_parallel: int, expert_parallel: int) -> list[float]:
    """Bytes per rank, one number per pipeline stage: the checkpoint's tensors and what loading adds to them.

    - Latent attention keeps its expansion matrix a second time, split and in 16 bits, to decode in the latent:
      `2 heads kv_rank (nope + v)` bytes per layer.
    - MXFP4 experts are padded to multiples of 256 along the hidden dimension (elements, not scales).
    """
    stages = model.stages(pipeline_parallel)
    stored = model.weight_bytes(tensor_parallel, pipeline_parallel, expert_parallel)
    return [
        size + sum(_added(model, layer, tensor_parallel, expert_parallel) for layer in layers)
        for size, layers in zip(stored, stages, strict=True)
    ]


def _added(model: ModelSpec, layer: Layer, tp: int, ep: int) -> float:
    added = 0.0
    if isinstance(layer.mixer, MLA):
        heads = share(layer.mixer.heads, "attention heads", tp)
        added += 2.0 * heads * layer.mixer.kv_rank * (layer.mixer.nope_dim + layer.mixer.v_dim)
    if isinstance(layer.ffn, MoE) and model.quantisation == "mxfp4":
        routed = layer.ffn.routed(model.hidden, tp, ep)
        padded = -(-model.hidden // 256) * 256
        added += 0.5 * routed.local_experts * routed.matrices * routed.inter * (padded - model.hidden)
    return added

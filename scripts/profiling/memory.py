"""The terms of the KV budget that one rank can show: weights, the framework's peak, and what is outside it.

Dummy weights of every layer are allocated, and one batch goes through them layer by layer, as an engine's profiling
run does; collectives are left out.
"""

import gc
from typing import Any

from scripts.profiling.kernels import Bench
from scripts.profiling.shapes import Shapes


GIB = 2**30


def memory_terms(
    torch: Any, device: str, dtype: str, shapes: Shapes, tokens: int, rows: int, utilization: float
) -> dict[str, Any]:
    """Bytes of one rank for a batch of `tokens` tokens of which `rows` emit: `weights`, `torch_peak`, `non_torch`.

    `available`: `utilization` of the device's memory less the three. On a CPU only the weights are known; the rest is
    None.
    """
    gpu = device == "cuda"
    if gpu:
        torch.cuda.init()
        torch.cuda.synchronize()
        outside = used_outside(torch)
    bench = Bench(torch, device, dtype, 1)
    layers, ends = dummy_weights(torch, bench, shapes)
    weights = sum(size_of(tensor) for tensors in layers for tensor in tensors.values()) + sum(map(size_of, ends))
    found: dict[str, Any] = {"weights_bytes": weights, "torch_peak_bytes": None, "non_torch_bytes": None}
    found |= {"total_bytes": None, "available_bytes": None}
    if gpu:
        torch.cuda.synchronize()
        found["weights_bytes"] = weights = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    forward(torch, bench, shapes, layers, ends, tokens, rows)
    if gpu:
        torch.cuda.synchronize()
        found["torch_peak_bytes"] = torch.cuda.max_memory_allocated() - weights
        gc.collect()
        torch.cuda.empty_cache()
        found["non_torch_bytes"] = used_outside(torch) - outside
        found["total_bytes"] = torch.cuda.mem_get_info()[1]
        taken = weights + found["torch_peak_bytes"] + found["non_torch_bytes"]
        found["available_bytes"] = int(found["total_bytes"] * utilization) - taken
    return found


def used_outside(torch: Any) -> int:
    """Bytes of the device in use that the framework has not reserved."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


def size_of(tensor: Any) -> int:
    """Bytes of a tensor."""
    return int(tensor.numel() * tensor.element_size())


def dummy_weights(torch: Any, bench: Bench, shapes: Shapes) -> tuple[list[dict[str, Any]], list[Any]]:
    """Tensors of every layer by name, and those at the ends: embedding, last norm, head."""

    def empty(*shape: int) -> Any:
        return torch.empty(*shape, dtype=bench.dtype, device=bench.device)

    dense = [product for product in shapes.products if not product.op.startswith(("router", "shared_"))]
    routed = [product for product in shapes.products if product.op not in ("gate_up_proj", "down_proj", "fc1", "fc2")]
    layers = []
    for index in range(shapes.layers):
        with_experts = index >= shapes.dense
        tensors = {product.op: empty(product.n, product.k) for product in (routed if with_experts else dense)}
        tensors["norms"] = empty(2, shapes.hidden)
        if with_experts and shapes.experts:
            inter, held = shapes.experts.inter // shapes.experts.tp, shapes.experts.local
            tensors["experts_up"] = empty(held, (shapes.experts.matrices - 1) * inter, shapes.hidden)
            tensors["experts_down"] = empty(held, shapes.hidden, inter)
        layers.append(tensors)
    ends = [empty(shapes.vocab, shapes.hidden), empty(shapes.hidden)]
    return layers, ends if shapes.tied else [*ends, empty(shapes.vocab, shapes.hidden)]


def forward(
    torch: Any, bench: Bench, shapes: Shapes, layers: list[dict[str, Any]], ends: list[Any], tokens: int, rows: int
) -> None:
    """One batch through every layer and the head: what is alive together is what an eager forward pass keeps alive."""
    linear = torch.nn.functional.linear
    with torch.inference_mode():
        ids = torch.zeros(tokens, dtype=torch.int64, device=bench.device)
        x = torch.nn.functional.embedding(ids, ends[0])
        residual = torch.zeros_like(x)
        for tensors in layers:
            residual = residual + x
            x = torch.nn.functional.rms_norm(residual, (shapes.hidden,), tensors["norms"][0])
            if "qkv_proj" in tensors:
                x = mixed_heads(torch, linear(x, tensors["qkv_proj"]), tensors["o_proj"])
            residual = residual + x
            x = torch.nn.functional.rms_norm(residual, (shapes.hidden,), tensors["norms"][1])
            x = fed_forward(torch, x, tensors, shapes)
        x = torch.nn.functional.rms_norm(residual + x, (shapes.hidden,), ends[1])
        logits = linear(x[: min(rows, tokens)], ends[-1] if not shapes.tied else ends[0])
        bench.sample(logits)


def mixed_heads(torch: Any, qkv: Any, out: Any) -> Any:
    """The values in the place of attention's result: one tensor of the queries' width, and its projection."""
    return torch.nn.functional.linear(qkv[:, : out.shape[1]].contiguous(), out)


def fed_forward(torch: Any, x: Any, tensors: dict[str, Any], shapes: Shapes) -> Any:
    """The dense or shared part of a layer, and one pass through the experts' largest buffers."""
    linear, functional = torch.nn.functional.linear, torch.nn.functional
    found = x
    for prefix in ("", "shared_"):
        up = tensors.get(f"{prefix}gate_up_proj", tensors.get(f"{prefix}fc1"))
        if up is None:
            continue
        wide = linear(x, up)
        if f"{prefix}gate_up_proj" in tensors:
            gate, wide = wide.chunk(2, dim=-1)
            wide = functional.silu(gate) * wide
        found = linear(wide, tensors.get(f"{prefix}down_proj", tensors.get(f"{prefix}fc2")))
    if "experts_up" in tensors and shapes.experts:
        # buffers of every token's visits, as fused kernels keep them: the wide product, and its halves or the output
        visits = x.shape[0] * shapes.experts.top_k
        wide = x.new_empty(visits, max(tensors["experts_up"].shape[1], shapes.hidden))
        deep = x.new_empty(visits, max(tensors["experts_down"].shape[2], shapes.hidden))
        found = found + wide[: x.shape[0], : shapes.hidden] + deep[: x.shape[0], : shapes.hidden]
    return found

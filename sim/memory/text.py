"""The memory sum as lines of text, in the words of vLLM's start-up log, and as plain values for JSON."""

from typing import Any

from sim.memory.terms import MemoryBudget
from sim.units import GIB


NAMES = {
    "requested": "requested memory",
    "weights": "- weights",
    "drafter": "- drafter",
    "peak_activation": "- peak activation",
    "non_torch": "- non-torch",
    "cuda_graphs": "- CUDA graphs",
    "states": "- states of recurrent layers",
    "before_loading": "- in use before loading",
    "runtime": "- runtime",
    "kept_free": "- kept free",
}


def to_text(budget: MemoryBudget) -> str:
    """The whole block: the engine's log lines, our terms with their range and source, verdict, risk, notes."""
    lines = [
        f"Model loading took {(budget.stage.value('weights') + budget.stage.value('drafter')) / GIB:.2f} GiB",
        f"Available KV cache memory: {budget.available_bytes / GIB:.2f} GiB",
        f"GPU KV cache size: {budget.tokens:,} tokens",
        f"Maximum concurrency for {budget.max_model_len:,} tokens per request: {budget.max_concurrency:.2f}x",
        "",
        f"{budget.model} on {budget.device}, {budget.engine} {budget.version}, "
        f"tensor parallel {budget.tensor_parallel}, pipeline parallel {budget.pipeline_parallel}"
        + (f" (stage {budget.worst + 1} decides)" if budget.pipeline_parallel > 1 else ""),
    ]
    sources: list[str] = []
    for row in budget.terms:
        if row.source not in sources:
            sources.append(row.source)
        half = (row.high_bytes - row.low_bytes) / 2 / GIB
        doubt = f"+-{half:.2f}" if half >= 0.005 else ""
        name = NAMES.get(row.name, row.name) if row.counted else f"  {row.name.replace('_', ' ')} (outside)"
        mark = sources.index(row.source) + 1
        lines.append(f"  {name:<26}{row.value_bytes / GIB:8.2f} GiB  {doubt:<7} {row.formula} [{mark}]")
    lines += [
        f"  {'= for the KV cache':<26}{budget.available_bytes / GIB:8.2f} GiB",
        f"  {'per block':<26}{budget.bytes_per_block:,} bytes, {budget.block_size} tokens; {_groups(budget)}",
        f"  {'blocks':<26}{budget.num_blocks:,} ({budget.blocks_low:,} to {budget.blocks_high:,})",
        "",
        budget.verdict,
    ]
    lines += [budget.risk] if budget.fits else []
    lines += [f"note: {note}" for note in budget.notes]
    lines += [f"[{mark}] {source}" for mark, source in enumerate(sources, 1)]
    return "\n".join(lines)


def _groups(budget: MemoryBudget) -> str:
    counts: dict[str, int] = {}
    for group in budget.layout.groups:
        window = f" {group.window:,}" if group.window else ""
        name = f"{group.layers} {group.kind}{window} layers"
        counts[name] = counts.get(name, 0) + 1
    return "groups: " + ", ".join(f"{count} of {name}" for name, count in counts.items())


def to_json(budget: MemoryBudget) -> dict[str, Any]:
    """Plain values: the result's fields, `terms` of the deciding stage, `groups`, and `stages` in short."""
    return {
        "engine": budget.engine,
        "version": budget.version,
        "model": budget.model,
        "device": budget.device,
        "tensor_parallel": budget.tensor_parallel,
        "pipeline_parallel": budget.pipeline_parallel,
        "gpu_memory_utilization": budget.utilization,
        "max_model_len": budget.max_model_len,
        "total_bytes": int(budget.total_bytes),
        "terms": [
            {
                "name": row.name,
                "bytes": round(row.value_bytes),
                "low_bytes": round(row.low_bytes),
                "high_bytes": round(row.high_bytes),
                "counted": row.counted,
                "formula": row.formula,
                "source": row.source,
            }
            for row in budget.terms
        ],
        "available_bytes": round(budget.available_bytes),
        "bytes_per_block": budget.bytes_per_block,
        "block_size": budget.block_size,
        "groups": [
            {
                "kind": g.kind,
                "layers": g.layers,
                "block_size": g.block_size,
                "window": g.window,
                "page_bytes": g.page_bytes,
            }
            for g in budget.layout.groups
        ],
        "num_blocks": budget.num_blocks,
        "blocks_low": budget.blocks_low,
        "blocks_high": budget.blocks_high,
        "kv_cache_size_tokens": budget.tokens,
        "max_concurrency": budget.max_concurrency,
        "stages": [
            {"stage": s.stage, "available_bytes": round(s.available_bytes), "num_blocks": s.num_blocks}
            for s in budget.stages
        ],
        "deciding_stage": budget.worst,
        "fits": budget.fits,
        "verdict": budget.verdict,
        "longest_model_len": budget.longest_model_len,
        "smallest_tensor_parallel": budget.smallest_tensor_parallel,
        "oom_risk": budget.oom_risk,
        "margin_bytes": round(budget.margin_bytes),
        "risk": budget.risk,
        "notes": list(budget.notes),
    }

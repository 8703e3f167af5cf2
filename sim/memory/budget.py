"""How many KV blocks a deployment has, by its engine's own rule, and what would fit if it does not."""

from dataclasses import replace

from sim.deployment.attention_ffn import ffn_device
from sim.deployment.conf import DeploymentConf, FfnConf
from sim.deployment.domains import check_domains, domains_of
from sim.deployment.engine import EngineSettings
from sim.hardware.spec import DeviceConf
from sim.memory.advice import advice, most_utilization
from sim.memory.drafter import draft_layers, draft_terms
from sim.memory.ffn import ffn_memory
from sim.memory.groups import CacheLayout, RequestShape, largest_length, layer_caches, layout
from sim.memory.sglang import sglang_margin, sglang_terms
from sim.memory.terms import MemoryBudget, StageBudget, Term
from sim.memory.trtllm import trtllm_margin, trtllm_terms
from sim.memory.vllm import vllm_margin, vllm_terms
from sim.model.sides import attention_side
from sim.model.spec import ModelSpec
from sim.units import GIB


LEAST_BLOCKS = 2
"""Blocks that each group of layers needs: the engine keeps one for itself (vLLM's null block)."""

_TERMS = {"vllm": vllm_terms, "sglang": sglang_terms, "trtllm": trtllm_terms}
_MARGINS = {"vllm": vllm_margin, "sglang": sglang_margin, "trtllm": trtllm_margin}


def memory_budget(
    model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf
) -> MemoryBudget:
    """The memory sum of one rank, and the KV blocks it leaves.

    Per pipeline stage: the engine's terms, what is left, `floor(left / bytes per block)` blocks; the worst stage
    decides. `kv_cache_memory_bytes` replaces what is left, `num_gpu_blocks_override` the blocks (not the check
    at start-up). What does not fit is no error: `fits` is false and `verdict` says what would. ValueError for a model
    that the parallel shape does not divide, a cache that the version refuses, or an unknown memory rule.

    Where feed-forward parts have devices of their own, the sum is that of an attention rank, without them, and the
    devices must hold the rest (`ffn`).
    """
    if deployment.ffn.devices:
        return _with_ffn(model, device, engine, deployment)
    budget = _budget(model, device, engine, deployment)
    if budget.fits or budget.verdict.endswith("."):
        return budget
    most = most_utilization(engine, device)
    if engine.kv_cache_memory_bytes is None and 0 < most < engine.gpu_memory_utilization:
        lower = memory_budget(model, device, replace(engine, gpu_memory_utilization=most), deployment)
        with_it = f"it fits with engine.gpu_memory_utilization={most:g}."
        return replace(
            budget,
            verdict=f"{budget.verdict}; {with_it if lower.fits else f'with {most:g} it {lower.verdict}'}",
            longest_model_len=lower.longest_model_len,
            smallest_tensor_parallel=lower.smallest_tensor_parallel,
        )

    def trial(settings: EngineSettings, shape: DeploymentConf) -> MemoryBudget:
        return _budget(model, device, settings, shape)

    longest = largest_length(lambda m: _starts(budget, _shape(engine, budget.layout, m)), engine.max_model_len)
    found = advice(budget, longest, model, device, engine, deployment, trial)
    return replace(
        budget,
        verdict=f"{budget.verdict}; {found.text}.",
        longest_model_len=found.longest_model_len,
        smallest_tensor_parallel=found.smallest_tensor_parallel,
    )


def _with_ffn(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> MemoryBudget:
    """The sum of an attention rank, and that of an FFN device, which has to fit too."""
    attention = memory_budget(attention_side(model), device, engine, replace(deployment, ffn=FfnConf()))
    ffn = ffn_memory(model, ffn_device(deployment, device), engine, deployment)
    if not attention.fits:
        return replace(attention, ffn=ffn, verdict=f"attention devices: {attention.verdict}")
    if not ffn.fits:
        return replace(attention, ffn=ffn, fits=False, verdict=ffn.verdict)
    return replace(attention, ffn=ffn)


def request_shape(engine: EngineSettings, cache: CacheLayout) -> RequestShape:
    """The longest request of these settings, as the block count of `cache` sees it."""
    return _shape(engine, cache, engine.max_model_len)


def _shape(engine: EngineSettings, cache: CacheLayout, length: int) -> RequestShape:
    states_reused = engine.prefix_caching and cache.rule != "0.10.2"
    return RequestShape(length, engine.max_num_batched_tokens, engine.batches_in_flight, 2 if states_reused else 1)


def cache_layout(
    model: ModelSpec, engine: EngineSettings, tensor_parallel: int, layers: tuple, key_ranks: int = 1
) -> CacheLayout:
    """KV-cache groups of one rank's layers, where each of `key_ranks` ranks keeps an equal part of a block's tokens."""
    kept = layer_caches(layer.mixer.cache(tensor_parallel, engine.kv_bytes_per_element) for layer in layers)
    if key_ranks > 1:
        kept = tuple(replace(layer, bytes_per_token=layer.bytes_per_token / key_ranks) for layer in kept)
    if engine.profile.memory_rule != "vllm":  # states have a pool of their own there, a term of the sum
        kept = tuple(layer for layer in kept if layer.bytes_per_token) or kept
    rule = engine.profile.groups_rule
    chunked = any(layer.kind == "chunk" for layer in kept)
    hybrid = engine.hybrid_kv_cache
    if hybrid is None:
        hybrid = engine.profile.memory_rule == "vllm" and (engine.profile.hybrid_chunked or not chunked)
    states_reused = engine.prefix_caching and rule != "0.10.2"
    length = None if states_reused else engine.max_model_len
    return layout(rule, kept, engine.block_size, hybrid=hybrid, max_model_len=length)


def _budget(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> MemoryBudget:
    tp, pp = deployment.tensor_parallel, deployment.pipeline_parallel
    domains = domains_of(model, deployment, engine.profile)
    check_domains(model, domains, pp)
    rule = engine.profile.memory_rule
    if rule not in _TERMS:
        raise ValueError(
            f"the memory rule must be one of {', '.join(_TERMS)}, got {rule!r}: change engine.profile.memory_rule"
        )
    stages = []
    for index, layers in enumerate(model.stages(pp)):
        terms = _TERMS[rule](model, device, engine, deployment, index)
        if index == pp - 1:
            terms, layers = (*terms, *draft_terms(engine, domains.shards)), (*layers, *draft_layers(engine))
        cache = cache_layout(model, engine, tp, layers, deployment.decode_context_parallel)
        left = _left(terms) if engine.kv_cache_memory_bytes is None else engine.kv_cache_memory_bytes
        stages.append(StageBudget(index, terms, left, cache, cache.num_blocks(left)))
    worst = min(range(pp), key=lambda index: stages[index].num_blocks)
    stage = stages[worst]
    shape = request_shape(engine, stage.layout)
    blocks = engine.num_gpu_blocks_override or stage.num_blocks
    given = engine.num_gpu_blocks_override is not None or engine.kv_cache_memory_bytes is not None
    spread = 0.0 if given else stage.spread_bytes
    low, high = (stage.layout.num_blocks(left + sign * spread) for left in [stage.available_bytes] for sign in (-1, 1))
    if engine.num_gpu_blocks_override is not None:
        low = high = blocks
    risk, margin, why = _risk(stage, device, engine, model)
    budget = MemoryBudget(
        engine=engine.name,
        version=engine.version,
        model=model.name,
        device=device.name,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len,
        total_bytes=device.memory_bytes,
        stages=tuple(stages),
        worst=worst,
        num_blocks=blocks,
        blocks_low=low,
        blocks_high=high,
        block_size=stage.layout.block_size,
        tokens=stage.layout.tokens(blocks, shape),
        max_concurrency=stage.layout.concurrency(blocks, shape),
        fits=False,
        verdict="",
        oom_risk=risk,
        margin_bytes=margin,
        risk=why,
        notes=_notes(model, device, engine),
    )
    return _judged(budget, device, engine, shape)


def _left(terms: tuple[Term, ...]) -> float:
    """The first row less the others that count."""
    return terms[0].value_bytes - sum(row.value_bytes for row in terms[1:] if row.counted)


def _starts(budget: MemoryBudget, shape: RequestShape) -> bool:
    """Whether every stage has memory for one request of the full length, by the check of the version."""
    return all(stage.layout.needed_bytes(shape) <= stage.available_bytes for stage in budget.stages)


def _judged(budget: MemoryBudget, device: DeviceConf, engine: EngineSettings, shape: RequestShape) -> MemoryBudget:
    """The budget with `fits` and its verdict: whole (it ends in a full stop), or the first part, which wants advice."""
    verdict = _misfit(budget, device, engine, shape)
    if verdict:
        return replace(budget, verdict=verdict)
    verdict = (
        f"fits: {budget.num_blocks:,} blocks of {budget.block_size} tokens, "
        f"{budget.max_concurrency:.2f} requests of {engine.max_model_len:,} tokens at once."
    )
    return replace(budget, fits=True, verdict=verdict)


def _misfit(budget: MemoryBudget, device: DeviceConf, engine: EngineSettings, shape: RequestShape) -> str:
    """Why the engine does not start; empty if it does."""
    stage, vllm = budget.stage, engine.profile.memory_rule == "vllm"
    left, groups = stage.available_bytes, len(stage.layout.groups)
    least = LEAST_BLOCKS * groups
    free = device.memory_bytes - (engine.profile.memory.get("context_bytes", 0.0) if vllm else 0.0)
    requested = stage.terms[0].value_bytes
    verdict = ""
    if engine.kv_cache_memory_bytes is not None:
        verdict = _misfit_of_bytes(budget, device, engine, shape)
    elif vllm and requested > free:
        verdict = (
            f"does not fit: gpu_memory_utilization {engine.gpu_memory_utilization:g} asks for {requested / GIB:.2f} "
            f"GiB, but about {free / GIB:.2f} GiB are free on an idle device"
        )
    elif left <= 0 or stage.num_blocks < 1:
        verdict = (
            f"does not fit: weights and the rest of the sum need {(requested - left) / GIB:.2f} GiB of {device.name}, "
            f"which has {requested / GIB:.2f} GiB for them and the KV cache"
        )
    elif vllm and not _starts(budget, shape):
        needed = stage.layout.needed_bytes(shape)
        verdict = (
            f"does not fit: one request of max_model_len {engine.max_model_len:,} tokens needs {needed / GIB:.2f} GiB "
            f"of KV cache, {left / GIB:.2f} GiB are available"
        )
    if not verdict and engine.num_gpu_blocks_override is not None:
        return _misfit_of_blocks(budget, device, engine, least)
    if not verdict and stage.num_blocks < least:
        verdict = (
            f"does not fit: the sum leaves {stage.num_blocks:,} KV blocks of {budget.block_size} tokens, at least "
            f"{least:,} are needed (two for each group of layers, as the engine keeps one for itself)"
        )
    return verdict


def _misfit_of_bytes(budget: MemoryBudget, device: DeviceConf, engine: EngineSettings, shape: RequestShape) -> str:
    """Why `kv_cache_memory_bytes` is too little or more than the device has; empty if neither."""
    given = engine.kv_cache_memory_bytes or 0.0
    layouts = [stage.layout for stage in budget.stages]
    least = max(LEAST_BLOCKS * len(layout.groups) * layout.bytes_per_block for layout in layouts)
    if given < least:
        return (
            f"does not fit: engine.kv_cache_memory_bytes={given:.0f} holds {budget.num_blocks:,} KV blocks, of which "
            f"the engine keeps one for itself; raise it to at least {least:,} bytes, or leave it out."
        )
    room = device.memory_bytes - max(stage.value("weights") for stage in budget.stages)
    if given > room:
        return (
            f"does not fit: engine.kv_cache_memory_bytes={given:.0f} is more than the {max(room, 0.0):.0f} bytes that "
            f"the weights leave of {device.name}; lower it, or leave it out."
        )
    needed = max(layout.needed_bytes(shape) for layout in layouts)
    if engine.profile.memory_rule == "vllm" and given < needed:
        return (
            f"does not fit: one request of max_model_len {engine.max_model_len:,} tokens needs {needed:.0f} bytes of "
            f"KV cache, more than engine.kv_cache_memory_bytes={given:.0f}"
        )
    return ""


def _misfit_of_blocks(budget: MemoryBudget, device: DeviceConf, engine: EngineSettings, least: int) -> str:
    """Why `num_gpu_blocks_override` is too little or more than the device has; empty if neither."""
    given = engine.num_gpu_blocks_override or 0
    if given < least:
        groups = len(budget.layout.groups)
        why = f", two for each of {groups} groups of layers" if groups > 1 else ""
        return (
            f"does not fit: engine.num_gpu_blocks_override={given} is too few KV blocks, of which the engine keeps one "
            f"for itself; set it to at least {least}{why}, or leave it out."
        )
    most = min(
        int((device.memory_bytes - stage.value("weights")) // stage.layout.bytes_per_block) for stage in budget.stages
    )
    if given > most:
        return (
            f"does not fit: engine.num_gpu_blocks_override={given} is more than the {max(most, 0):,} KV blocks that "
            f"the weights leave room for on {device.name}; lower it, or leave it out."
        )
    return ""


def _risk(stage: StageBudget, device: DeviceConf, engine: EngineSettings, model: ModelSpec) -> tuple[str, float, str]:
    """Whether what is outside the sum can exhaust the device after the cache is sized: level, margin, sentence."""
    margin = _MARGINS[engine.profile.memory_rule](stage.terms, device, engine, model)
    if engine.num_gpu_blocks_override is not None:
        margin += _left(stage.terms) - engine.num_gpu_blocks_override * stage.layout.bytes_per_block
    elif engine.kv_cache_memory_bytes is not None:
        margin += _left(stage.terms) - engine.kv_cache_memory_bytes
    wanted = engine.profile.memory.get("slack_wanted_bytes", 0.0)
    if not wanted:
        return "low", margin, f"{margin / GIB:.2f} GiB stay outside the sum; this engine's need of them is not known."
    doubt = sum((row.high_bytes - row.low_bytes) / 2 for row in stage.terms if not row.counted)
    level = "likely" if margin < wanted else "possible" if margin - doubt < wanted else "low"
    outside = "graphs and a full batch's logits" if doubt else "a full batch's logits"
    return (
        level,
        margin,
        f"risk of running out of memory after the KV cache is sized: {level} (beside {outside}, about "
        f"{margin / GIB:.2f} GiB of the device stay free; warm-up wants {wanted / GIB:.2f} GiB).",
    )


def _notes(model: ModelSpec, device: DeviceConf, engine: EngineSettings) -> tuple[str, ...]:
    notes = [*engine.notes, *model.notes]
    if device.memory_bytes_estimated:
        notes.append(f"the memory {device.name} reports is estimated from its nominal size")
    return tuple(notes)

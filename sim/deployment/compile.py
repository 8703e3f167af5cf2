"""From what a user asked for to a checked plan: engine settings, plan arrays, and what had to be assumed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sim.deployment.all_to_all import AUTO, DIRECT, exchange_of, modes_of
from sim.deployment.attention_ffn import check_ffn, compile_ffn, ffn_assumptions, side_of_ranks
from sim.deployment.check import check_deployment
from sim.deployment.conf import DeploymentConf
from sim.deployment.context import context_assumptions
from sim.deployment.direct import direct_exchanges, exchange_rule
from sim.deployment.domains import Domains, domains_of
from sim.deployment.drafting import check_drafting, compile_draft, draft_assumptions, drafts_not_modelled
from sim.deployment.engine import EngineConf, EngineSettings
from sim.deployment.exchange import exchange_group, hand_over, library, tokens_back
from sim.deployment.formats import format_of
from sim.deployment.lower import attention_family, lower_rank
from sim.deployment.plan import FfnPlan, Plan, PlanArrays
from sim.deployment.rules import ParallelRules
from sim.deployment.settings import resolve_engine
from sim.deployment.speculation import NONE
from sim.hardware.collectives import collective_constants
from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY, ONE_SIDED
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf
from sim.model.spec import MLA, Attention, ModelSpec, Recurrent


LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization")


def compile_plan(
    model: ModelSpec, device: DeviceConf, engine_conf: EngineConf, deployment_conf: DeploymentConf
) -> Plan:
    """Check a deployment and compile it.

    **Raises:** ValueError, one sentence, for sizes below 1 or that do not divide the model, more ranks than one
    scale-up domain or node holds, pipeline stages with a scheduler other than vLLM's, a format the device cannot
    compute, engine settings out of range.
    """
    _check_shape(model, device, engine_conf, deployment_conf)
    ranks, stages = deployment_conf.tensor_parallel, deployment_conf.pipeline_parallel
    held = side_of_ranks(model, deployment_conf)
    settings = resolve_engine(engine_conf, held, device, deployment_conf)
    rules = settings.profile.parallel
    domains = domains_of(held, deployment_conf, settings.profile)
    waits_s = settings.profile.host_step_s if settings.batches_in_flight == 1 else 0.0
    kv_bytes, name = settings.kv_bytes_per_element, settings.name
    exchange = exchange_of(deployment_conf, rules)
    runner = replace(device, kernel_launch_s=device.kernel_launch_s * settings.profile.eager_launches)
    of_experts, context = settings.profile.expert_launches, settings.profile.context
    queries = 1 if settings.speculation is None else settings.speculation.query_tokens
    lowered = [
        lower_rank(
            held, runner, domains, kv_bytes, waits_s, name, stages, stage, rules, exchange, of_experts, context, queries
        )
        for stage in range(stages)
    ]
    apart = deployment_conf.ffn.devices > 0
    ffn = compile_ffn(model, device, runner, settings, deployment_conf) if apart else None
    each = deployment_conf.data_parallel * deployment_conf.rank_devices + deployment_conf.ffn.devices
    return Plan(
        model=model,
        device=device,
        engine=settings,
        deployment=deployment_conf,
        stages=tuple(_in_pieces(rank.own, settings.profile.pieces_s / stages) for rank in lowered),
        gpus=deployment_conf.replicas * each,
        assumptions=tuple(_assumptions(model, device, settings, deployment_conf, domains, ffn)),
        not_modelled=tuple(_not_modelled(model, device, settings, deployment_conf)),
        hand_over=hand_over(model, device, ranks) if stages > 1 else None,
        tokens_back=tokens_back(device, ranks * (stages - 1) + 1) if stages > 1 else None,
        domains=domains,
        shared=lowered[0].shared,
        exchange=exchange_rule(held, Counter(held.layers), device, domains, rules, exchange),
        ffn=ffn,
        draft=compile_draft(runner, settings, domains),
    )


def _in_pieces(arrays: PlanArrays, pieces_s: float) -> PlanArrays:
    """`arrays` with the gap of eager steps and of those of several graphs longer by `pieces_s`."""
    device = arrays.device
    return replace(arrays, device=replace(device, gap_s=device.gap_s + pieces_s * np.array([1.0, 1.0, 0.0])))


def bounded(plan: Plan, seqs: int) -> Plan:
    """The plan with at most `seqs` requests at once, where its cache allows fewer than its settings."""
    engine = plan.engine
    if seqs == engine.max_num_seqs:
        return plan
    given = engine.origin.get("max_num_seqs", "engine configuration")
    why = f"{given}: {engine.max_num_seqs:,}, of which the KV cache allows {seqs:,}"
    rows = (("max_num_seqs", f"{seqs:g}", why) if row[0] == "max_num_seqs" else row for row in plan.assumptions)
    return replace(plan, engine=replace(engine, max_num_seqs=seqs), assumptions=tuple(rows))


def _check_shape(model: ModelSpec, device: DeviceConf, engine: EngineConf, deployment: DeploymentConf) -> None:
    check_deployment(deployment, device)
    check_drafting(engine.speculation.method != NONE, model, deployment)
    if deployment.ffn.devices:
        check_ffn(model, device, deployment)
        _check_island(device, deployment)
        return
    if deployment.pipeline_parallel > 1 and engine.scheduler != "vllm":
        raise ValueError(
            "pipeline stages can be simulated with the scheduler of vllm only, got deployment.pipeline_parallel="
            f"{deployment.pipeline_parallel} with engine.scheduler={engine.scheduler}; set it to 1."
        )
    if deployment.data_parallel > 1 and model.is_moe and deployment.pipeline_parallel > 1:
        raise ValueError(
            "data-parallel ranks that share experts cannot be simulated with pipeline stages, got "
            f"deployment.data_parallel={deployment.data_parallel} with deployment.pipeline_parallel="
            f"{deployment.pipeline_parallel}; set one of them to 1."
        )
    Node(device).check_link(deployment.tensor_parallel * deployment.pipeline_parallel, "deployment.pipeline_parallel")
    if model.is_moe:
        Node(device).check_link(deployment.tensor_parallel * deployment.data_parallel, "deployment.data_parallel")
    _check_island(device, deployment)
    if deployment.all_to_all != "auto" and (deployment.data_parallel == 1 or not model.is_moe):
        raise ValueError(
            f"deployment.all_to_all={deployment.all_to_all} has no effect without data-parallel ranks that share "
            "experts: leave it out, or set deployment.data_parallel."
        )
    if deployment.all_to_all in DIRECT:
        _check_direct(device, deployment)
    for key, default in (("redundant_experts", 0), ("expert_placement", "linear")):
        if getattr(deployment, key) != default and not model.is_moe:
            raise ValueError(f"deployment.{key} is set, but {model.name} has no experts; leave it out.")
    if deployment.expert_parallel and not model.is_moe:
        raise ValueError(f"deployment.expert_parallel is set, but {model.name} has no experts; set it to false.")


def _check_direct(device: DeviceConf, deployment: DeploymentConf) -> None:
    way, ranks = deployment.all_to_all, deployment.tensor_parallel * deployment.data_parallel
    if not deployment.expert_parallel:
        raise ValueError(
            f"deployment.all_to_all={way} sends tokens to whole experts: set deployment.expert_parallel=true, or leave "
            "all_to_all out."
        )
    if way == ONE_SIDED and ranks > Node(device).domain:
        raise ValueError(
            f"deployment.all_to_all={way} reaches the {Node(device).domain:g} {device.name} of one scale-up domain, "
            f"not {ranks} ranks: lower deployment.data_parallel, or choose {LOW_LATENCY}."
        )


def _check_island(device: DeviceConf, deployment: DeploymentConf) -> None:
    island = Node(device).island
    if deployment.tensor_parallel > island:
        raise ValueError(
            f"deployment.tensor_parallel={deployment.tensor_parallel} needs more {device.name} than the {island:.0f} "
            "that one node or scale-up domain holds; lower it, or raise hardware.devices_per_node."
        )


def _assumptions(
    model: ModelSpec,
    device: DeviceConf,
    settings: EngineSettings,
    deployment: DeploymentConf,
    domains: Domains,
    ffn: FfnPlan | None,
) -> Iterator[tuple[str, str, str]]:
    """Rows (what, value, source)."""

    def source(key: str, part: str = "") -> str:
        return device.sources.get(f"{key}.{part}", device.sources.get(key, "device file, no source given"))

    achieved = device.memory_bytes_per_s * device.memory_efficiency
    yield "memory stream rate", f"{achieved / 1e12:.2f} TB/s", source("memory_efficiency")
    for stored in sorted(_stored(model)):
        form = format_of(stored, device)
        rate = f"{form.flops_per_s / 1e12:.0f} TFLOP/s in {form.computed}"
        yield f"{stored} products", rate, source("matmul_efficiency", form.computed)
        if stored not in (form.computed, "fp32", "bf16", "fp16"):
            why = "weight-only format" if stored == "int4" else f"{device.name} has no {stored} peak"
            yield f"{stored} weights", f"dequantised to {form.computed} inside each product", why
    if any(isinstance(layer.mixer, Attention | MLA) for layer in model.layers):
        family = attention_family(device)
        yield "attention kernel", family["name"], family["source"]
    if device.memory_bytes_estimated:
        yield "device memory", f"{device.memory_bytes / 2**30:.2f} GiB", source("memory_bytes")
    if domains.ep_ffn > 1 and not domains.lockstep:
        how = f"experts on {domains.ep_ffn} ranks, summed by all-reduce"
        yield "expert parallelism", how, "vLLM without data parallelism"
    if ffn is not None:
        yield from ffn_assumptions(ffn, deployment)
    elif deployment.data_parallel > 1:
        yield from _parallel_assumptions(model, device, settings, deployment, domains)
    if deployment.tensor_parallel > 1:
        found = collective_constants(device, "all_reduce", deployment.tensor_parallel, library(settings.name))
        yield "all-reduce", "estimated" if found.estimated else "measured constants", found.source
    yield from context_assumptions(device, settings, domains)
    if settings.speculation is not None:
        yield from draft_assumptions(settings.speculation)
    if deployment.pipeline_parallel > 1:
        yield from _stage_assumptions(model, device, settings, deployment)
    if settings.profile.api_pickup_s or settings.profile.api_door_s:
        door_s, why = settings.profile.api_door_s, settings.profile.sources.get("api_pickup_s", "engine profile")
        door = f"{1e3 * door_s:.1f} ms a request, one at a time, then " if door_s else ""
        yield "API server", f"{door}{1e3 * settings.profile.api_pickup_s:.1f} ms to the engine's queue", why
    if settings.profile.pieces_s:
        why = settings.profile.sources.get("pieces_s", "engine profile")
        yield "lost between pieces of a step", f"{1e3 * settings.profile.pieces_s:.1f} ms, not in one full graph", why
    if settings.profile.host_step_s:
        why = settings.profile.sources.get("host_step_s", "engine profile")
        hidden = " at least, hidden behind the step before" if settings.batches_in_flight > 1 else ""
        yield "host time per step", f"{1e3 * settings.profile.host_step_s:.1f} ms{hidden}", why
    for key in LIMITS:
        yield key, f"{getattr(settings, key):g}", settings.origin.get(key, "engine configuration")
    if "over_length" in settings.profile.sources:
        yield "output that would pass max_model_len", "ends there", settings.profile.sources["over_length"]
    for note in settings.notes:
        yield "engine", note, "engine profile"
    for note in model.notes:
        yield "model", note, model.source or "model configuration"


def _parallel_assumptions(
    model: ModelSpec, device: DeviceConf, settings: EngineSettings, deployment: DeploymentConf, domains: Domains
) -> Iterator[tuple[str, str, str]]:
    rules = settings.profile.parallel
    source = settings.profile.sources.get("parallel", "engine profile")
    yield "data-parallel ranks", f"{deployment.data_parallel} a replica, requests by {rules.balance}", source
    if not domains.lockstep:
        yield "steps of data-parallel ranks", "each for itself: no experts to share", "vLLM for dense models"
        return
    padding = "always" if rules.pads_eager else "where it runs in a graph"
    yield "steps of data-parallel ranks", f"all together, padded to the largest {padding}", source
    kept = "whole ones" if domains.ep_ffn > 1 else "a slice of each"
    way = exchange_of(deployment, rules)
    yield "experts", f"over {domains.ranks} devices, {kept}, tokens by {way}", source
    if way in DIRECT:
        yield from _direct_assumptions(model, device, domains, rules, way)
        return
    group = exchange_group(domains, rules)
    for op in ("all_gather", "all_reduce" if way == "naive" else "reduce_scatter"):
        found = collective_constants(device, op, group, library(settings.name))
        known = "estimated" if found.estimated else "measured constants"
        yield f"{op.replace('_', '-')} of {group}", known, found.source


def _direct_assumptions(
    model: ModelSpec, device: DeviceConf, domains: Domains, rules: ParallelRules, way: str
) -> Iterator[tuple[str, str, str]]:
    for mode in dict.fromkeys(modes_of(way)):
        when = {AUTO: " with a prefill" if mode == HIGH_THROUGHPUT else " without prefills"}.get(way, "")
        for op, _, _, found in direct_exchanges(model, Counter(model.layers), device, domains, rules, mode):
            known = "estimated" if found.estimated else "measured"
            error = f"{known}, {100 * found.rel_error:.0f} % error to expect"
            yield f"{mode} {op} of {domains.ranks}{when}", error, found.source
    yield "routing", "each token to random experts, evenly", "assumed: routing depends on the text"
    how = "each rank's own; tensor-parallel devices divide its tokens before the experts"
    yield "dense parts and shared experts", how, "engines with DeepEP (SGLang with --moe-dense-tp-size 1)"


def _stage_assumptions(
    model: ModelSpec, device: DeviceConf, settings: EngineSettings, deployment: DeploymentConf
) -> Iterator[tuple[str, str, str]]:
    counts = [len(layers) for layers in model.stages(deployment.pipeline_parallel)]
    yield "pipeline stages", f"{' + '.join(map(str, counts))} layers, embedding first, head and sampler last", "vLLM"
    found = collective_constants(device, "send_recv", deployment.tensor_parallel + 1)
    yield "hand-over between stages", "estimated" if found.estimated else "measured constants", found.source
    depth = settings.batches_in_flight
    if settings.async_scheduling and not settings.profile.async_stages_overlap:
        source = settings.profile.sources.get("async_stages_overlap", "engine profile")
        how = f"{depth}, one at a time: the first stage waits for the tokens that the last one samples"
    else:
        source = settings.origin.get("async_scheduling", "engine profile")
        how = f"{depth}; {'scheduled ahead' if settings.async_scheduling else 'synchronous'}, stages overlap"
    yield "batches in the pipeline", how, source


def _stored(model: ModelSpec) -> set[str]:
    formats = {matrix.dtype for layer in model.layers for matrix in layer.linears(model.hidden, 1)}
    routed = (layer.ffn.routed(model.hidden, 1) for layer in model.layers)
    return formats | {part.dtype for part in routed if part is not None} | {model.lm_head(1).dtype}


def _not_modelled(
    model: ModelSpec, device: DeviceConf, settings: EngineSettings, deployment: DeploymentConf
) -> Iterator[str]:
    yield "warm-up of a freshly started engine (the first requests of a real run are slower)"
    yield "HTTP, tokenising and detokenising beyond the engine profile's pick-up time"
    yield "power and energy (the device's tdp_w and idle_w are facts only)"
    yield "penalties, guided decoding and log-probabilities in the sampler"
    if settings.speculation is not None:
        yield from drafts_not_modelled(settings.speculation, model)
    elif model.draft_layers:
        yield "draft layers: they are not run without speculative decoding (speculation=mtp)"
    if any(isinstance(layer.mixer, Recurrent) for layer in model.layers):
        yield "state layers' scan at its own rate: a quarter of the matrix ceiling is assumed"
        if settings.prefix_caching:
            yield "reuse of prefixes by a model with recurrent states: every prompt is computed"
    if deployment.decode_context_parallel > 1:
        yield "kernels that merge the parts of an output, and one token more or less on a rank that divides a KV cache"
    if deployment.prefill_context_parallel > 1:
        yield "rank-local padding of prefill pieces, and keys of other ranks that arrive while attention runs (a ring)"
    if deployment.tensor_parallel * deployment.prefill_context_parallel > 1 or deployment.data_parallel > 1:
        yield "overlap of collectives with compute"
    apart = deployment.ffn.devices > 0
    if apart:
        yield "shares of the links and of FFN hosts that activations take from KV transfers, and a lost FFN device"
    if deployment.data_parallel > 1 and model.is_moe and not apart:
        if HIGH_THROUGHPUT in modes_of(deployment.all_to_all):
            yield "routing limited to groups of experts, which sends fewer copies"
        if LOW_LATENCY in modes_of(deployment.all_to_all):
            yield "low-latency buffers: batches of more tokens than they hold go in one piece, not in several"
    if apart or (deployment.data_parallel > 1 and model.is_moe):
        yield "steps without work that data-parallel ranks run before they agree that nothing is left"
    if deployment.pipeline_parallel > 1:
        yield "a pipeline stage that waits until the next one can receive, and host work between stages"
    if device.kind != "gpu":
        yield f"tiles and launches of a {device.kind}: it is priced as a GPU of the same rates"

"""Context parallelism: ranks that divide the tokens of a prefill, and ranks that divide the tokens of the KV cache.

**Prefill** (vLLM `-pcp`, SGLang `--attn-cp-size`): `c` times as many devices. Each prompt's chunk is cut into `2 c`
pieces, and rank r takes pieces r and `2 c - 1 - r`, so that causal attention is even. In every layer the ranks gather
the keys and values of all tokens, and each keeps them all; routed experts are divided over all ranks, which gather
their tokens and scatter the sums. After the last layer the hidden states are gathered. Rows that decode run on every
rank. Source: vllm-project/vllm#46570 (2026-06), SGLang's guide to prefill context parallelism.

**Decode** (vLLM `-dcp`, SGLang `--dcp-size`): `d` of the tensor-parallel ranks, which would each keep a copy of a KV
head, keep every d-th token instead. To decode, they gather the queries of their heads, each attends to its tokens, and
the parts of the outputs are merged by their log-sum-exp. Latent attention gathers what a prefill chunk has before it;
with other kinds the queries of every token go round. Source: vllm-project/vllm#23734 and #24864 (2025-09).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains
from sim.deployment.engine import EngineSettings
from sim.deployment.exchange import ACTIVATION_BYTES, collective, library, unused_collective
from sim.deployment.plan import CONTEXT_SLOTS, ContextArrays, ContextSlots
from sim.deployment.rules import ContextRules
from sim.deployment.slots import filled
from sim.hardware.collectives import collective_constants
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf
from sim.model.spec import MLA, Attention, Layer, ModelSpec, MoE, Recurrent


LOG_SUM_EXP_BYTES = 4.0
NEVER = ""
PREFILL, DECODE = "prefill_context_parallel", "decode_context_parallel"


def attention_kind(layer: Layer) -> str:
    """`mla`, `sparse_mla` or `gqa`."""
    if isinstance(layer.mixer, MLA):
        return "mla" if layer.mixer.indexer is None else "sparse_mla"
    return "gqa"


def kv_heads(model: ModelSpec) -> int:
    """The most KV heads of a layer; latent attention has one."""
    return max((layer.mixer.kv_heads for layer in model.layers if isinstance(layer.mixer, Attention)), default=1)


def check_context(
    model: ModelSpec,
    device: DeviceConf,
    engine: str,
    rules: ContextRules,
    since: Mapping[str, str],
    conf: DeploymentConf,
) -> None:
    """Raise `ValueError`, one sentence, for context parallelism that this engine, model or deployment cannot have.

    **Arguments:** `engine`: name and version; `since`: for `prefill` and `decode`, which version of this engine is the
    first to have it for this model (`NEVER`: none).
    """
    sizes = {PREFILL: conf.prefill_context_parallel, DECODE: conf.decode_context_parallel}
    for key, size in sizes.items():
        if size > 1:
            _check_model(model, key, size)
            _check_version(model, key, size, engine, rules, since)
            if conf.ffn.devices:
                raise ValueError(
                    f"deployment.{key}={size} is not simulated with feed-forward parts on devices of their own: leave "
                    "out one of it and deployment.ffn."
                )
    if sizes[PREFILL] > 1:
        _check_prefill(device, conf)
    if sizes[DECODE] > 1:
        _check_decode(model, conf)


def _check_model(model: ModelSpec, key: str, size: int) -> None:
    """Layers whose state is no list of tokens, or that read only a part of it."""
    if any(isinstance(layer.mixer, Recurrent) for layer in model.layers):
        raise ValueError(
            f"deployment.{key}={size}: {model.name} has layers with recurrent states, which are no tokens to divide; "
            "set it to 1."
        )
    if any(getattr(layer.mixer, name, None) for layer in model.layers for name in ("window", "chunk")):
        raise ValueError(
            f"deployment.{key}={size}: {model.name} has layers that read a window of their context, for which engines "
            "have no context parallelism; set it to 1."
        )


def _check_version(
    model: ModelSpec, key: str, size: int, engine: str, rules: ContextRules, since: Mapping[str, str]
) -> None:
    phase = key.partition("_")[0]
    kinds = sorted({attention_kind(layer) for layer in model.layers} - set(getattr(rules, phase)))
    if kinds:
        first = since[phase]
        other = (
            f", or choose a version that has it ({first} or later)"
            if first != NEVER
            else ", as no version known here has it"
        )
        raise ValueError(
            f"deployment.{key}={size}: {engine} has no {phase} context parallelism for {' and '.join(kinds)} "
            f"attention, which {model.name} has; set it to 1{other}."
        )


def _check_prefill(device: DeviceConf, conf: DeploymentConf) -> None:
    size, ranks, node = (
        conf.prefill_context_parallel,
        conf.tensor_parallel * conf.prefill_context_parallel,
        Node(device),
    )
    if conf.data_parallel > 1:
        raise ValueError(
            "prefill context parallelism cannot be simulated with data-parallel ranks, got "
            f"deployment.{PREFILL}={size} with deployment.data_parallel={conf.data_parallel}; set one of them to 1."
        )
    node.check_link(ranks, f"deployment.{PREFILL}")
    if ranks > node.island:
        fits = max(int(node.island) // conf.tensor_parallel, 1)
        raise ValueError(
            f"deployment.tensor_parallel={conf.tensor_parallel} x deployment.{PREFILL}={size} needs more {device.name} "
            f"than the {node.island:.0f} that one node or scale-up domain holds; set deployment.{PREFILL} to "
            f"{f'at most {fits}' if fits > 1 else 1}."
        )


def _check_decode(model: ModelSpec, conf: DeploymentConf) -> None:
    size, tensor, heads = conf.decode_context_parallel, conf.tensor_parallel, kv_heads(model)
    copies = tensor // heads
    groups = [layer.mixer.heads // layer.mixer.kv_heads for layer in model.layers if isinstance(layer.mixer, Attention)]
    fit = [part for part in range(2, copies + 1) if not tensor % part and all(not group % part for group in groups)]
    if size in fit:
        return
    where = f"deployment.{DECODE}={size}"
    advice = f"set it to {max((p for p in fit if p < size), default=fit[0])}." if fit else "set it to 1."
    if tensor % size:
        raise ValueError(f"{where} must divide deployment.tensor_parallel={tensor}; {advice}")
    if size > copies:
        raise ValueError(
            f"{where}: {model.name} has {heads} KV head{'s' if heads > 1 else ''}, of which {tensor} tensor-parallel "
            f"ranks keep {max(copies, 1)} cop{'ies' if copies > 1 else 'y'} to divide; {advice[:-1]}, or raise "
            "deployment.tensor_parallel."
        )
    raise ValueError(f"{where} must divide the {min(groups)} heads of {model.name} that share a KV head; {advice}")


def context_arrays(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    kv_bytes: float,
    rules: ContextRules,
    of: str,
    last: bool,
) -> ContextArrays:
    """How a rank's attention is divided, and what its group sends for it.

    `of`: whose collectives; `last`: with the end of the model.
    """
    rows: Counter[tuple[str, int, float, float, float, float]] = Counter()
    if domains.prefill_context > 1:
        rows.update(_of_prefill(model, layers, domains, kv_bytes, last))
    if domains.decode_context > 1:
        for layer, count in layers.items():
            for row in _of_decode(layer, domains, kv_bytes, rules.combine):
                rows[row] += count
    found = []
    for (op, group, size, prefills, decodes, prior), count in rows.items():
        sent = collective(collective_constants(device, op, group, of), count, size, 0.0)
        found.append(sent | {"prefills": prefills, "decodes": decodes, "prior": prior})
    neutral = unused_collective() | {"prefills": 0.0, "decodes": 0.0, "prior": 0.0}
    moved: ContextSlots = filled(ContextSlots, found, CONTEXT_SLOTS, neutral, "collectives of context parallelism")
    queries: Any
    keys: Any
    queries, keys = (np.asarray(size, np.float64) for size in (domains.prefill_context, domains.decode_context))
    return ContextArrays(query_ranks=queries, key_ranks=keys, moved=moved)


Row = tuple[str, int, float, float, float, float]
"""An operation, its group, bytes of its buffer for one row, and how many rows a token that is prefilled, a row that
decodes, and a token before a chunk, are."""


def _of_prefill(
    model: ModelSpec, layers: Mapping[Layer, int], domains: Domains, kv_bytes: float, last: bool
) -> Counter[Row]:
    """Keys and values of all tokens in every layer, and the hidden states after the last."""
    group, rows = domains.prefill_context, Counter[Row]()
    for layer, count in layers.items():
        bytes_per_token = layer.mixer.cache(domains.tp_attn, kv_bytes).bytes_per_token
        rows["all_gather", group, bytes_per_token, 1.0, 0.0, 0.0] += count
    rows["all_gather", group, model.hidden * ACTIVATION_BYTES, 1.0, 0.0, 0.0] += int(last)
    return +rows


def _of_decode(layer: Layer, domains: Domains, kv_bytes: float, combine: str) -> Iterator[Row]:
    """Queries there, outputs with their log-sum-exp back; what is before a chunk of latent attention."""
    group = domains.decode_context
    shape = layer.mixer.shapes(domains.tp_attn, kv_bytes)[0]
    latent = isinstance(layer.mixer, MLA)
    heads = float(shape.q_heads * group)
    rows = (0.0, 1.0, 0.0) if latent else (1.0, 1.0, 0.0)
    yield "all_gather", group, heads * shape.qk_dim * ACTIVATION_BYTES, *rows
    if combine == "all_to_all":
        yield "all_to_all", group, heads * (shape.v_dim * ACTIVATION_BYTES + LOG_SUM_EXP_BYTES), *rows
    else:
        yield "all_gather", group, group * heads * LOG_SUM_EXP_BYTES, *rows
        yield "reduce_scatter", group, heads * shape.v_dim * ACTIVATION_BYTES, *rows
    if latent:
        yield "all_gather", group, shape.kv_bytes_per_token, 0.0, 0.0, 1.0


def context_assumptions(
    device: DeviceConf, settings: EngineSettings, domains: Domains
) -> Iterator[tuple[str, str, str]]:
    """Rows (what, value, source) of the context parallelism there is."""
    sources = settings.profile.sources
    prefill, decode = domains.prefill_context, domains.decode_context
    combine = settings.profile.context.combine
    merges = ("all_to_all",) if combine == "all_to_all" else ("all_gather", "reduce_scatter")
    operations = []
    if prefill > 1:
        how = f"2 x {prefill} pieces of a chunk, two a rank; KV gathered and kept on all ranks, decodes on each of them"
        yield "prefill context parallelism", how, sources.get("context.prefill", "engine profile")
        operations += [("all_gather", prefill), ("reduce_scatter", prefill)]
    if decode > 1:
        how = f"{decode} ranks take the tokens of the KV cache in turn; outputs merged by {combine}"
        yield "decode context parallelism", how, sources.get("context.decode", "engine profile")
        operations += [(op, decode) for op in ("all_gather", *merges)]
    for op, group in dict.fromkeys(operations):
        found = collective_constants(device, op, group, library(settings.name))
        known = "estimated" if found.estimated else "measured constants"
        yield f"{op.replace('_', '-')} of {group} context-parallel ranks", known, found.source


def expert_rows(
    model: ModelSpec, layers: Mapping[Layer, int], device: DeviceConf, domains: Domains, of: str
) -> list[dict[str, Any]]:
    """Tokens of prefill-context-parallel ranks to the experts that all of them share, and sums back.

    Rows are the tokens of one rank; `of`: whose collectives.
    """
    group, count = domains.prefill_context, sum(n for layer, n in layers.items() if isinstance(layer.ffn, MoE))
    if group == 1 or not count:
        return []
    size = group * model.hidden * ACTIVATION_BYTES
    return [
        collective(collective_constants(device, op, group, of), float(count), size, 0.0)
        for op in ("all_gather", "reduce_scatter")
    ]

"""Memory of tokens on their way to the experts of other ranks: buffers of DeepEP, and rows that reach a rank."""

from sim.deployment.all_to_all import exchange_of, modes_of
from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains, domains_of
from sim.deployment.engine import EngineSettings
from sim.deployment.rules import ParallelRules
from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY, holders
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf
from sim.model.spec import ModelSpec, MoE


PAIRS = 2
"""Send and receive buffers each, for even and odd layers."""
SCALED = 128
MESSAGE_HEAD = 16


def buffer_bytes(model: ModelSpec, device: DeviceConf, engine: EngineSettings, deployment: DeploymentConf) -> float:
    """DeepEP's own buffers on one rank; 0 without it.

    Over NVLink `deepep_buffer_bytes`; high throughput over the network as much again. Low latency: two pairs of
    `experts x tokens` messages, each a hidden state in 16 bits with 4 bytes per 128 numbers or 16 in front.
    Source: buffer size hints of DeepEP (csrc/config.hpp, 2025) and vLLM's all-to-all managers, read.
    """
    rules, domains = engine.profile.parallel, domains_of(model, deployment, engine.profile)
    modes = {mode for mode in modes_of(exchange_of(deployment, rules)) if mode in (LOW_LATENCY, HIGH_THROUGHPUT)}
    if not modes or not domains.lockstep:
        return 0.0
    total = rules.deepep_buffer_bytes
    if HIGH_THROUGHPUT in modes and Node(device).nodes_for(domains.ranks) > 1:
        total += rules.deepep_buffer_bytes
    if LOW_LATENCY in modes:
        message = 2 * model.hidden + max(4 * (model.hidden // SCALED), MESSAGE_HEAD)
        experts = max(layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, MoE))
        total += 2 * PAIRS * experts * rules.low_latency_tokens * message
    return float(total)


def expert_rows(exchange: str, rules: ParallelRules, domains: Domains, tokens: int, top_k: int, experts: int) -> float:
    """Rows that a rank's experts work on at once, of batches of `tokens` tokens on every data-parallel rank.

    Gathered: `top_k` of every token. High throughput and one-sided: of every token that reaches the rank. Low latency:
    a fixed room for `low_latency_tokens` of every rank at each local expert.
    """
    whole = tokens * domains.dp_attn
    found: list[float] = []
    for mode in modes_of(exchange):
        if mode == LOW_LATENCY:
            found.append(-(-experts // domains.ranks) * domains.ranks * rules.low_latency_tokens)
        elif mode:
            found.append(whole / domains.ranks * holders(domains.ranks, experts, top_k) * top_k)
        else:
            found.append(whole * top_k)
    return max(found)

"""Default limits: `max_num_batched_tokens` and `max_num_seqs` by device memory, device name, usage and version."""

from sim.deployment.engine import EngineProfile, LimitTier
from sim.deployment.graphs import prefill_sizes


USAGES = ("api_server", "llm_class", "other")


def limit_tier(profile: EngineProfile, memory_gib: float, device_name: str) -> LimitTier | None:
    """The first tier of the profile whose memory and device conditions hold."""
    for tier in profile.limits:
        if memory_gib >= tier.min_memory_gib and not any(part in device_name for part in tier.excluded):
            return tier
    return None


def default_limits(
    profile: EngineProfile,
    memory_gib: float,
    device_name: str,
    usage: str,
    max_model_len: int,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
) -> tuple[int, int, str]:
    """`(max_num_batched_tokens, max_num_seqs, why)`; given limits stay as they are.

    The device's tier gives both. A default token budget is lowered to
    `max_num_seqs x max_model_len`, a default number of sequences to the token budget (not in SGLang, whose budget is
    that of prefills alone).
    Source: recorded defaults of vLLM 0.10.2, 0.19.0 and 0.33.0 (rules in the profile).
    """
    if usage not in USAGES:
        raise ValueError(f"the usage must be one of {', '.join(USAGES)}, got {usage!r}: change engine.usage")
    tokens, seqs, why = profile.other_tokens, profile.other_seqs, "default outside server and LLM class"
    tier = limit_tier(profile, memory_gib, device_name)
    if usage != "other" and tier is not None:
        tokens = tier.llm_class_tokens if usage == "llm_class" else tier.api_server_tokens
        seqs = tier.max_num_seqs
        bound = f">= {tier.min_memory_gib:g} GiB" if tier.min_memory_gib else "smaller devices"
        why = f"{usage} default for {bound}"
    seqs = max_num_seqs if max_num_seqs is not None else seqs
    if max_num_batched_tokens is not None:
        tokens = max_num_batched_tokens
    elif usage == "other" or profile.tokens_capped_always:
        tokens = min(tokens, seqs * max_model_len)
    if max_num_seqs is None and profile.memory_rule != "sglang":
        seqs = min(seqs, tokens)
    return tokens, seqs, why


def static_fraction(
    memory_mib: float, chunk: int, ranks: int, graph_top: int, latent: bool, data_parallel: int = 1
) -> float:
    """SGLang's default `mem_fraction_static`: what is left for weights and KV when a reserve is taken off.

    `(G - reserved) / G` to three decimals, reserved MiB = 512 + 1.5 max(chunk, 2048) + 128 ranks + 2 graph_top
    + 8 per prefill graph (latent attention: 1536) + 3 graph_top dp with data-parallel attention (4.5 above 300), and at
    least 10,240 on devices above 60 GiB.
    Source: server arguments of SGLang 0.5.23, read.
    """
    graphs = 1536 if latent else 8 * len(prefill_sizes(chunk))
    reserved = 512 + 1.5 * max(chunk, 2048) + 128 * ranks + 2 * graph_top + graphs
    if data_parallel > 1:
        reserved += (3 if graph_top <= 300 else 4.5) * graph_top * data_parallel
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10240)
    return round((memory_mib - reserved) / memory_mib, 3)

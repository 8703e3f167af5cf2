"""Requests that end with their prompt (embeddings, scores, rewards): what cannot serve them, and what is left out."""

from collections.abc import Sequence

from sim.deployment.engine import EngineSettings
from sim.deployment.plan import Plan
from sim.workload.trace import Workload


def check_pooling(plan: Plan, workload: Workload) -> None:
    """Raise `ValueError`, one sentence, for a deployment that is not simulated with requests without outputs."""
    if not workload.pools:
        return
    for found, what, key in (
        (plan.engine.speculation is not None, "speculative decoding", "engine.speculation"),
        (plan.ffn is not None, "feed-forward parts on devices of their own", "deployment.ffn"),
        (plan.shared is not None, "data-parallel ranks that share experts", "deployment.data_parallel"),
    ):
        if found:
            raise ValueError(
                f"workload.pooling=true is not simulated with {what}: leave out {key}, or set workload.pooling=false."
            )


def check_pooled_roles(roles: Sequence[str], workload: Workload) -> None:
    """Raise `ValueError` for prefill and decode instances, where nothing is left to decode."""
    if workload.pools and any(role != "both" for role in roles):
        raise ValueError(
            "workload.pooling=true leaves nothing to decode: give deployment.pools the role both, or leave them out."
        )


def pooling_left_out(settings: EngineSettings, workload: Workload) -> list[str]:
    """What a run of such requests leaves out, for the report."""
    if not workload.pools:
        return []
    said = [
        "pooling: the pooler's own time, and attention in both directions (encoder-only models)",
        "pooling: the weights of the LM head stay in memory, which vLLM drops for pooling models",
        "pooling: a prompt of exactly engine.max_model_len tokens is rejected, as if a token had to follow",
    ]
    if settings.name == "vllm" and settings.async_scheduling:
        said.append(
            "pooling: vLLM turns asynchronous scheduling off for pooling models since April 2026 "
            "(github.com/vllm-project/vllm/pull/39592); here it is on, engine.async_scheduling=false turns it off"
        )
    return said

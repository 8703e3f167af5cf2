"""The drafter of a deployment, lowered like any model: what its passes run, and what had to be assumed of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains
from sim.deployment.engine import EngineSettings
from sim.deployment.lower import lower_layers
from sim.deployment.plan import DraftPlan, PlanArrays
from sim.deployment.speculation import KEY, Speculation
from sim.hardware.spec import DeviceConf
from sim.model.spec import ModelSpec, Recurrent
from sim.workload.acceptance import described


LOGIT_BYTES = 2.0
"""Drafters take the most likely token: one kernel that reads the logits once, in 16 bits."""


def check_drafting(speculates: bool, model: ModelSpec, deployment: DeploymentConf) -> None:
    """Raise `ValueError` for a deployment whose drafts are not simulated."""
    if not speculates:
        return
    for key, size in (
        ("pipeline_parallel", deployment.pipeline_parallel),
        ("prefill_context_parallel", deployment.prefill_context_parallel),
        ("decode_context_parallel", deployment.decode_context_parallel),
    ):
        if size > 1:
            raise ValueError(
                f"speculative decoding is not simulated with deployment.{key}={size}: set it to 1, or leave out "
                f"{KEY}.method."
            )
    if deployment.data_parallel > 1 and model.is_moe:
        raise ValueError(
            "speculative decoding is not simulated where data-parallel ranks share experts, got "
            f"deployment.data_parallel={deployment.data_parallel}: set it to 1, or leave out {KEY}.method."
        )
    if deployment.ffn.devices:
        raise ValueError(
            f"speculative decoding is not simulated with FFN devices: leave out deployment.ffn, or {KEY}.method."
        )


def compile_draft(device: DeviceConf, settings: EngineSettings, domains: Domains) -> DraftPlan | None:
    """The passes of one rank; None without drafts, or where no model makes them."""
    speculation = settings.speculation
    if speculation is None or speculation.drafter is None:
        return None
    drafter, profile = speculation.drafter, settings.profile
    runner = replace(device, host_step_s=0.0)

    def lowered(model: ModelSpec, query_tokens: int) -> PlanArrays:
        arrays = lower_layers(
            model,
            model.layers,
            runner,
            domains,
            first=not drafter.of_rows,
            last=not drafter.of_rows,
            kv_bytes=settings.kv_bytes_per_element,
            engine=settings.name,
            rules=profile.parallel,
            expert_launches=profile.expert_launches,
            query_tokens=query_tokens,
        ).own
        sampler = {"kernels": 1.0, "bytes_per_row": LOGIT_BYTES * model.padded_vocab, "passes": 1.0}
        values: dict[str, Any] = {f"sampler_{name}": np.asarray(value, np.float64) for name, value in sampler.items()}
        return replace(arrays, device=replace(arrays.device, **values))

    return DraftPlan(
        first=lowered(drafter.first, 1 if drafter.of_rows else speculation.query_tokens),
        later=lowered(drafter.later, 1),
        passes=drafter.passes,
        of_rows=drafter.of_rows,
        graphs=not (speculation.enforce_eager or drafter.of_rows),
    )


def draft_assumptions(speculation: Speculation) -> Iterator[tuple[str, str, str]]:
    """Rows (what, value, source)."""
    yield "drafts", f"up to {speculation.tokens} a row by {speculation.method}", f"{KEY}.method"
    if speculation.method == "ngram":
        yield "n-gram look-ups that match", f"{speculation.match_rate:g}", f"{KEY}.match_rate"
    yield "accepted drafts", described(speculation.acceptance), f"{KEY}.acceptance"
    how = "the decode kernel, with the queries of all its tokens on one reading of the keys"
    yield "attention of a row with drafts", how, "assumed; kernels without packed queries are slower"
    if speculation.drafter is None:
        return
    if speculation.drafter.of_rows:
        yield "passes of the drafter", "one after each step, all heads, without CUDA graphs", "vLLM"
        return
    graphs = (
        "without CUDA graphs" if speculation.enforce_eager else "in piecewise CUDA graphs where the engine has them"
    )
    later = speculation.drafter.passes
    yield "passes of the drafter", f"one over the tokens of each step, then {later} over one a row, {graphs}", "vLLM"


def drafts_not_modelled(speculation: Speculation, model: ModelSpec) -> Iterator[str]:
    """Sentences for the report."""
    if speculation.method == "ngram":
        yield "host time of n-gram look-ups"
    elif speculation.drafter is not None:
        yield "host time between the passes of the drafter, beyond its launches"
    yield "the rejection sampler's own kernels: drafts are sampled like other tokens"
    if any(isinstance(layer.mixer, Recurrent) for layer in model.layers):
        yield "state layers verify drafts in the time of one token"

"""Outputs that the engine ends before they have the length that the workload asks for."""

import textwrap
from dataclasses import dataclass

import numpy as np

from sim.report.result import REJECTED, SHED, UNSENT, SimulationResult


SLACK_TOKENS = 8
"""A request cut at the longest context comes this near to it: engines keep a few tokens back."""


@dataclass(frozen=True)
class CutOutputs:
    """`requests` whose outputs are cut by `tokens` together; `wanted` by all that were taken, of `taken` requests.

    `longest`: tokens of the longest of them, prompt and output.
    """

    requests: int
    tokens: int
    taken: int
    wanted: int
    longest: int


def cut_outputs(result: SimulationResult) -> CutOutputs:
    """Compares what each request that was taken gets with what the workload asks for."""
    requests = result.requests
    taken = ~np.isin(requests.status, (REJECTED, SHED, UNSENT))
    asked = np.asarray(result.workload.output_tokens)
    missing = np.where(taken, asked - np.asarray(requests.output_tokens), 0)
    cut = missing > 0
    length = np.asarray(requests.prompt_tokens) + np.asarray(requests.output_tokens)
    return CutOutputs(
        int(cut.sum()),
        int(missing[cut].sum()),
        int(taken.sum()),
        int(asked[taken].sum()),
        int(length[cut].max(initial=0)),
    )


def cut_note(result: SimulationResult) -> list[str]:
    """The sentence on top of a run in which outputs were cut; none otherwise."""
    found = cut_outputs(result)
    if not found.requests:
        return []
    limit = result.settings.get("max_model_len")
    in_cache = limit is not None and found.longest < limit - SLACK_TOKENS
    named = "engine.max_model_len" + ("" if limit is None else f"={limit:,}")
    where = "what the KV cache can hold for one request" if in_cache else named
    advice = [] if in_cache else ["raise engine.max_model_len"]
    if found.requests < found.taken:
        advice.append(f"leave such requests out with workload.max_total_tokens={found.longest}")
    advice.append("ask for fewer tokens")
    change = ", or ".join([", ".join(advice[:-1]), advice[-1]]) if len(advice) > 1 else advice[0]
    text = (
        f"Note: {found.requests:,} of {found.taken:,} outputs end at {where}: {found.tokens:,} of the {found.wanted:,} "
        "tokens asked for are not generated. A server may refuse such requests instead (see the assumptions). "
        f"{change[:1].upper()}{change[1:]}."
    )
    return textwrap.wrap(text, 78)

"""What an engine's own log tells, whichever engine wrote it: spans of time between two of its lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class Prefills:
    """Prefill batches that a log names one by one, axis `prefill`; all empty where it does not.

    `span`: the span a batch ran in; `tokens` it computed, `prompts` in it, `prior_tokens` of context they had already.
    """

    span: Int[np.ndarray, " prefill"]
    tokens: Float[np.ndarray, " prefill"]
    prompts: Float[np.ndarray, " prefill"]
    prior_tokens: Float[np.ndarray, " prefill"]


@dataclass(frozen=True, eq=False)
class EngineLog:
    """A server's log as spans, axis `span`, in the order of the log, replica after replica.

    **Fields:**

    - `name`, `sha256`: of the file; `engine`: vllm, sglang or trtllm.
    - `running`, `kv` [span, 2]: requests and KV cache in use before and after, `kv` in tokens where
      `kv_in_tokens`, else as a share of 1; NaN where the log is silent. `decodes`: mean requests that decoded.
    - `output_tokens_per_s`, `prompt_tokens_per_s`: the latter NaN where `prefills` has single batches instead.
    - `decode_steps`: steps without prefill in the span; NaN where the log does not count steps.
    - `seconds` of the span; NaN where the log has rates alone.
    - `idle`: the server had nothing to do within the span; `hit_rate`: of the prefix cache, a share
      of 1, 0 if not told.
    - `joint`: prefill batches run decodes too. `rounded`: KV is counted in whole blocks.
    - `blocks`, `cache_tokens`: size of the KV cache, one of them, None if not told.
    - `settings`: what else it tells of the server, by name; `notes`: for a person.
    """

    name: str
    sha256: str
    engine: str
    running: Float[np.ndarray, "span 2"]
    kv: Float[np.ndarray, "span 2"]
    decodes: Float[np.ndarray, " span"]
    output_tokens_per_s: Float[np.ndarray, " span"]
    prompt_tokens_per_s: Float[np.ndarray, " span"]
    decode_steps: Float[np.ndarray, " span"]
    seconds: Float[np.ndarray, " span"]
    idle: np.ndarray
    hit_rate: Float[np.ndarray, " span"]
    prefills: Prefills
    kv_in_tokens: bool
    joint: bool
    rounded: bool
    blocks: int | None = None
    cache_tokens: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def no_prefills() -> Prefills:
    """Prefills of a log that names none."""
    return prefills_of([])


def prefills_of(rows: Sequence[tuple[float, ...]]) -> Prefills:
    """From rows of (span, tokens, prompts, prior tokens)."""
    columns = np.array(rows, np.float64).reshape(-1, 4).T
    return Prefills(columns[0].astype(np.int64), *columns[1:])

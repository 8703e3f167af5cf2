"""Spans of a log as batches that can be priced: `seconds of steps / seconds of the span` must be 1.

A span without prefill is the clean case: with r requests running and g tokens/s delivered, a step takes r/g. Its batch
is r rows of `KV tokens in use / r` context each. A span with prefill holds steps of both kinds. Where the log names its
prefill batches they are priced as they are. Where it has only p prompt tokens/s, the log as a whole tells lengths: with
mean context c and p/g = q, outputs are o = c/(q + 1/2) tokens long and prompts q o; a prompt is computed in its own
step, in chunks of `max_num_batched_tokens` at most. The other extreme, prompt tokens spread evenly over all steps, is
priced too: half of what the two differ is the span's noise.

How contexts differ within a batch is not told: they are taken to be spread evenly over an output's length.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from calibration.from_run.batches import Batches, Shaper, batches_of
from calibration.from_run.spans import EngineLog
from sim.deployment.engine import EngineSettings


STEADY = 0.25
"""Largest change of the batch within a span, as a share of it."""

FEW = 4
"""Fewer running requests with prefill between two lines may have been none for a while."""

HITS = 0.05
LEAST_WINDOWS = 6
LEFT_OUT = {
    "nothing ran": "nothing ran, or only part of the time",
    "no KV": "no KV usage in the line",
    "unsteady": f"running requests changed by more than {STEADY:.0%}",
    "held": "more KV in use than running requests can hold",
    "few": f"prefill with fewer than {FEW} requests running, so perhaps idle in between",
    "hits": f"prefill with more than {HITS:.0%} of prefix hits, whose computed tokens the line does not tell",
}


@dataclass(frozen=True, eq=False)
class Windows:
    """Usable windows, axis `window`.

    - `batches`, and `other` where prompts are spread evenly.
    - `noise`: relative, of a window's rates and running requests; `requests`, `context_tokens` of its decodes.
    - `left_out`: spans that were not used, by reason. `notes`: for a person.
    """

    batches: Batches
    other: Batches
    noise: Float[np.ndarray, " window"]
    requests: Float[np.ndarray, " window"]
    context_tokens: Float[np.ndarray, " window"]
    left_out: dict[str, int]
    notes: tuple[str, ...]

    @property
    def held_out(self) -> np.ndarray:
        """Windows that are judged, never fitted."""
        return np.arange(len(self.noise)) % 3 == 2


def windows_of(log: EngineLog, settings: EngineSettings, cache_tokens: int) -> Windows:
    """The usable windows of a log.

    **Arguments:**

    - `settings`: of the engine that wrote it.
    - `cache_tokens`: size of the KV cache, where the log does not tell.

    **Raises:** ValueError for fewer than `LEAST_WINDOWS` usable ones, and for KV usage that cannot be of the requests
    that run.
    """
    size, notes = _size(log, settings, cache_tokens)
    kv = log.kv.mean(1) * (1.0 if log.kv_in_tokens else size)
    running = log.decodes
    with np.errstate(divide="ignore", invalid="ignore"):
        context = kv / running - ((settings.block_size - 1) / 2.0 if log.rounded else 0.0)
        change = np.abs(np.diff(log.running, axis=1)[:, 0]) / running
    context = np.maximum(context, 1.0)
    prompts_per_s, output_per_s = _prompt_rate(log), log.output_tokens_per_s
    mixed = prompts_per_s > 0
    reason = np.select(
        [
            (log.running.min(1, initial=np.inf) <= 0) | ~(output_per_s > 0) | log.idle,
            np.isnan(context),
            change > STEADY,
            context > settings.max_model_len + settings.block_size,
            mixed & log.joint & np.isnan(log.decode_steps) & (log.running.min(1, initial=np.inf) < FEW),
            mixed & (log.hit_rate > HITS),
        ],
        list(LEFT_OUT),
        "",
    )
    use = np.flatnonzero(reason == "")
    left_out = dict(Counter(reason[reason != ""].tolist()))
    held = left_out.get("held", 0)
    if held > max(len(use), LEAST_WINDOWS):
        raise ValueError(
            f"{log.name}: in {held} windows more KV is in use than the running requests can hold, so it does not tell "
            "their contexts (something else keeps blocks, or engine.max_model_len or the model is another)."
        )
    if len(use) < LEAST_WINDOWS:
        found = (
            "; ".join(f"{LEFT_OUT[name]}: {count}" for name, count in left_out.items()) or "no two lines of one engine"
        )
        raise ValueError(
            f"{log.name}: {LEAST_WINDOWS} steady windows are wanted at least, got {len(use)} ({found}). Give a log of "
            "more lines under a steady load: some minutes of a benchmark with a fixed number of clients "
            "(vllm bench serve --max-concurrency N), statistics not switched off; several such loads tell more."
        )
    shape = Shaper(settings, _lengths(log, running, context, prompts_per_s, reason))
    usual = float(np.median(change[use][mixed[use]])) if mixed[use].any() else 0.0
    for number, at in enumerate(use.tolist()):
        batches = np.flatnonzero(log.prefills.span == at)
        shape.add(number, log, at, running[at], context[at], prompts_per_s[at], batches)
    half_range = np.where(mixed, np.maximum(change, usual), change)[use] / np.sqrt(12.0)
    return Windows(
        batches=batches_of(shape.found),
        other=batches_of(shape.other),
        noise=np.hypot(half_range, 0.05 / np.sqrt(3.0) / output_per_s[use]),
        requests=running[use],
        context_tokens=context[use],
        left_out={LEFT_OUT[name]: count for name, count in left_out.items()},
        notes=(*log.notes, *notes),
    )


def _size(log: EngineLog, settings: EngineSettings, cache_tokens: int) -> tuple[float, list[str]]:
    """Tokens of the KV cache, and what is to be said of it."""
    if log.kv_in_tokens:
        return float(cache_tokens), []
    if log.cache_tokens is not None:
        return float(log.cache_tokens), []
    if log.blocks is not None:
        return float(log.blocks * settings.block_size), []
    return float(cache_tokens), [
        f"the log does not tell the size of the KV cache: {cache_tokens:,} tokens, as the configuration would have"
    ]


def _prompt_rate(log: EngineLog) -> Float[np.ndarray, " span"]:
    """Prompt tokens computed per second of each span."""
    batches = log.prefills
    total = np.bincount(batches.span, batches.tokens, minlength=len(log.seconds))
    return np.where(np.isnan(log.prompt_tokens_per_s), total / log.seconds, log.prompt_tokens_per_s)


def _lengths(
    log: EngineLog, running: np.ndarray, context: np.ndarray, prompts_per_s: np.ndarray, reason: np.ndarray
) -> tuple[float, float]:
    """Mean prompt and output tokens of a request; see the module."""
    known = ~np.isin(reason, ["nothing ran", "no KV", "held"])
    weight = running[known]
    mean = float((context[known] * weight).sum() / weight.sum())
    time = np.where(np.isnan(log.seconds), 1.0, log.seconds)
    counted = np.isfinite(prompts_per_s) & np.isfinite(log.output_tokens_per_s)
    prompts, outputs = ((rate * time)[counted].sum() for rate in (prompts_per_s, log.output_tokens_per_s))
    ratio = float(prompts / outputs)
    output = mean / (ratio + 0.5)
    return ratio * output, output

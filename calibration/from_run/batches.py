"""Batches that a window of a log is made of, as far as the log tells; see `windows` for what is taken of the rest."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from calibration.from_run.priced import BATCH
from calibration.from_run.spans import EngineLog
from sim.deployment.engine import EngineSettings
from sim.event.padding import Padding


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches that windows are made of, axis `row`.

    `rows`: columns as in `priced.BATCH`; `window` of each; `steps` of it per second of the window; `prefill`: it has
    some.
    """

    rows: Float[np.ndarray, "row stat"]
    window: Int[np.ndarray, " row"]
    steps: Float[np.ndarray, " row"]
    prefill: np.ndarray


def batches_of(found: list[tuple[int, float, bool, list[float]]]) -> Batches:
    """From (window, steps per second, whether it has prefill, row)."""
    window, steps, prefill, rows = (np.array(column) for column in zip(*found, strict=True))
    return Batches(rows, window, steps, prefill)


class Shaper:
    """Collects the batches of windows."""

    def __init__(self, settings: EngineSettings, lengths: tuple[float, float]):
        self.prompt_tokens, self.output_tokens = lengths
        self.most_tokens = float(settings.max_num_batched_tokens)
        self.padding = Padding(settings)
        self.found: list[tuple[int, float, bool, list[float]]] = []
        self.other: list[tuple[int, float, bool, list[float]]] = []

    def add(
        self,
        window: int,
        log: EngineLog,
        at: int,
        running: float,
        context: float,
        prompts_per_s: float,
        batches: np.ndarray,
    ) -> None:
        """The batches of span `at`, by steps per second."""
        named = log.prefills
        decode = self.decode(running, context)
        if prompts_per_s > 0 and not len(batches):
            self.unnamed(window, running, context, log.output_tokens_per_s[at], prompts_per_s)
            return
        seconds = log.seconds[at]
        alone = log.output_tokens_per_s[at] / running if np.isnan(seconds) else log.decode_steps[at] / seconds
        rows = [(window, float(alone), False, decode)]
        for batch in batches:
            tokens, prompts = float(named.tokens[batch]), max(float(named.prompts[batch]), 1.0)
            prior = float(named.prior_tokens[batch]) / prompts
            rows.append(
                (window, 1.0 / seconds, True, self.prefill(tokens, prompts, prior, running * log.joint, context))
            )
        self.found += rows
        self.other += rows

    def unnamed(self, window: int, running: float, context: float, output_per_s: float, prompts_per_s: float) -> None:
        """Batches of a span of which only the prompt tokens per second are known: chunk by chunk, and spread evenly."""
        length, most = max(self.prompt_tokens, 1.0), max(self.most_tokens - running, 1.0)
        arrivals = prompts_per_s / length
        chunks = max(length / most, 1.0)
        # a request in k chunks runs k - 1 steps without output, and who ended is no longer counted as running
        steps = max((output_per_s + arrivals * (chunks - 2.0)) / running, prompts_per_s / most)
        each = min(max(length, prompts_per_s / steps), most)
        # while a burst of prompts is computed, hardly anybody decodes
        decodes = min(running, max(output_per_s - arrivals, 0.0) / steps)
        for rows, tokens in ((self.found, each), (self.other, prompts_per_s / steps)):
            prompts = max(tokens / length, 1.0)
            prior = max(length - tokens, 0.0) / 2.0
            with_prefill = prompts_per_s / tokens
            batch = self.prefill(tokens, prompts, prior, decodes, context, min(tokens / length, prompts))
            rows.append((window, max(steps - with_prefill, 0.0), False, self.decode(decodes, context)))
            rows.append((window, with_prefill, True, batch))

    def decode(self, running: float, context: float) -> list[float]:
        """A batch that only decodes."""
        padded, mode = self.padding.decodes[min(int(np.ceil(running)), len(self.padding.decodes) - 1)]
        return self.row(running, context, emitting=running, padded=max(padded, running), mode=mode)

    def prefill(
        self, tokens: float, prompts: float, prior: float, running: float, context: float, ends: float | None = None
    ) -> list[float]:
        """A batch of `prompts` chunks with `prior` tokens of context each, beside `running` decodes."""
        total = int(np.ceil(tokens + running))
        padded, mode = self.padding.mixed[total] if total <= self.padding.largest else (total, 0)
        each = tokens / prompts
        chunk = [tokens, prompts, tokens * prior + tokens * (each + 1.0) / 2.0, tokens + prompts * prior, prior + each]
        emitting = running + (prompts if ends is None else ends)
        return self.row(running, context, chunk, emitting=emitting, padded=max(padded, total), mode=mode)

    def row(
        self,
        running: float,
        context: float,
        chunk: list[float] | None = None,
        *,
        emitting: float,
        padded: float,
        mode: int,
    ) -> list[float]:
        """Columns of `priced.BATCH`; contexts evenly spread over an output's length around their mean."""
        spread = min(self.output_tokens, 2.0 * context)
        longest = context + spread * (0.5 - 1.0 / (running + 1.0)) if running >= 1 else context
        squares = running * (context**2 + (spread**2 / 12.0 if running > 1 else 0.0))
        lengths = [running, running * context, longest if running else 0.0, squares]
        found = [*(chunk or [0.0] * 5), *lengths, emitting, float(padded), float(mode), 0.0]
        assert len(found) == len(BATCH)
        return found

"""Shortest first: the request with the fewest predicted tokens to go is served first.

Without preemption (`preemptive=false`, shortest job first) the order decides who starts next. With it (the default,
shortest remaining time first) every call serves the requests with the least left; others pause, keep their blocks
while these are not needed, and are computed again if they lost them.

A request's length is predicted when it arrives: `predicts=outputs` (the default) or `total`, prompt included. The
prediction is the true length times a log-normal error of standard deviation `error` (0: exact) that depends only on
`seed` and the request's number. What is left is the prediction less what was emitted, at least one.

Source: the classical SJF and SRPT disciplines, as used with predicted lengths by Fu et al., "Efficient LLM Scheduling
by Learning to Rank", NeurIPS 2024. Not modelled: the time a predictor takes, and guards against starvation.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.options import at_least, one_of, read_options


@dataclass(frozen=True)
class Options:
    """`preemptive`; `predicts` (`outputs` or `total`); `error`, standard deviation of the log; `seed` of the errors."""

    preemptive: bool = True
    predicts: str = "outputs"
    error: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(("outputs", "total"), predicts=self.predicts)
        at_least(0.0, error=self.error, seed=self.seed)


class PredictedRequest(IterationRequest):
    """A request with the outputs `predicted` for it."""

    __slots__ = ("predicted",)

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.predicted: float = outputs


class ShortestFirst(IterationScheduler[PredictedRequest]):
    """SJF, or SRPT if `preemptive`."""

    request_type = PredictedRequest

    def __init__(self, settings: EngineSettings, cache: CacheShape, options: Options):
        super().__init__(settings, cache)
        self.options = options

    def add(self, request: PredictedRequest) -> None:
        """Predict, then queue."""
        if self.options.error > 0:
            draw = np.random.default_rng((self.options.seed, request.index)).standard_normal()
            request.predicted = float(request.outputs * np.exp(self.options.error * draw))
        super().add(request)

    def rank(self, request: PredictedRequest) -> tuple[float, ...]:
        """Predicted tokens to go; the earlier arrival of equals."""
        left = max(1.0, request.predicted - request.emitted)
        if self.options.predicts == "total":
            left += request.known - request.computed - 1
        return (left, request.order)

    def candidates(self) -> Iterable[PredictedRequest]:
        """Preemptive: all by rank. Otherwise those that run, then the waiting by rank."""
        if not self.options.preemptive:
            return super().candidates()
        running = sorted(self.running.values(), key=self.rank)
        return list(heapq.merge(running, islice(self.waiting, self.max_num_seqs), key=self.rank))

    def admits(self, request: PredictedRequest, tokens: int) -> bool:
        """Preemptive: it takes the place of a longer one."""
        return self.options.preemptive or super().admits(request, tokens)

    def victims(self, request: PredictedRequest) -> Iterable[PredictedRequest]:
        """Preemptive: those with more to go than the request, most first; it pauses if they have too little."""
        if not self.options.preemptive:
            yield from super().victims(request)
            return
        rank = self.rank(request)
        longer = [other for other in self.running.values() if self.rank(other) > rank]
        yield from sorted(longer, key=self.rank, reverse=True)


def make(settings: EngineSettings, cache: CacheShape) -> ShortestFirst:
    """One replica's scheduler."""
    return ShortestFirst(settings, cache, read_options(Options, settings.scheduler_options, "shortest_first"))

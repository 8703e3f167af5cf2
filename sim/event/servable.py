"""Which requests an engine can serve at all, before any of them runs."""

from collections.abc import Callable
from typing import NamedTuple

from sim.deployment.engine import EngineSettings
from sim.event.batch_queue import BatchQueue
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.base import Scheduler


PATIENCE = 1000
"""Calls in a row that bring a request, alone, no further (no token of output, and after a preemption none of input)."""


class Trial(NamedTuple):
    """A scheduler to try a request with, and what tells it at the end of a step that loads have ended."""

    scheduler: Scheduler
    hear: Callable[[], None] = lambda: None


class Entrance:
    """Says how many tokens a request gets, or None if the engine can never serve it.

    A scheduler may have a rule of its own (`servable_tokens(prompt, outputs)`); otherwise it is that of this module,
    which for one table of full attention is exact. Where that is not all (several groups, options that
    reserve more), a request that needs a large part of the cache is tried: alone, with a scheduler of its own, to which
    its prompt's KV comes as it comes to the pool.
    """

    def __init__(self, make: Callable[[], Trial], settings: EngineSettings, cache: CacheShape):
        self._make = make
        self._settings = settings
        self._cache = cache
        self._own_rule = getattr(make().scheduler, "servable_tokens", None)
        plain = len(cache.groups) == 1 and cache.groups[0].kind in ("full", "mla")
        self._exact = plain and self._own_rule is None and not (settings.scheduler_options or settings.speculation)
        self._tried: dict[tuple[int, int], bool] = {}

    def __call__(self, prompt: int, outputs: int) -> int | None:
        """Tokens that a request of this size gets."""
        allowed: int | None
        if self._own_rule is not None:
            allowed = self._own_rule(prompt, outputs)
        else:
            allowed = servable_tokens(prompt, outputs, self._settings.max_model_len, self._cache)
        if allowed is None or self._exact or self._fits_twice(prompt + allowed):
            return allowed
        key = prompt, allowed
        if key not in self._tried:
            self._tried[key] = served_alone(self._make(), self._settings.batches_in_flight, prompt, allowed)
        return allowed if self._tried[key] else None

    def _fits_twice(self, tokens: int) -> bool:
        """Whether there is room for two such requests, or with options of the scheduler for two of full length."""
        if self._settings.scheduler_options:
            tokens = self._settings.max_model_len
        if self._settings.speculation is not None:
            tokens += 2 * self._settings.speculation.query_tokens
        needed = sum(-(-2 * tokens // group.block_size) + 2 for group in self._cache.groups)
        return needed <= self._cache.usable_blocks


def servable_tokens(prompt: int, outputs: int, max_model_len: int, cache: CacheShape) -> int | None:
    """Tokens the engine emits for a request, cut at `max_model_len`, or None if it can never be served.

    A prompt needs room for one more token. All tokens but the last have to be computed; the blocks of all groups
    that the last of them needs at once (`blocks_at_end`) must be no more than the cache has. The engine itself takes
    such a request, and preempts it or lets it wait for ever.
    """
    outputs = min(outputs, max_model_len - prompt)
    if outputs < 1:
        return None
    tokens = prompt + outputs - 1
    if sum(blocks_at_end(group, tokens) for group in cache.groups) > cache.usable_blocks:
        return None
    return outputs


def blocks_at_end(group: GroupShape, tokens: int) -> int:
    """Blocks of one group that a request of `tokens` computed tokens holds at least while the last is computed.

    All of them; with a sliding window those of the last `window` tokens; with chunked-local attention those
    of the last token's chunk; one where states are kept.
    """
    if group.kind == "mamba":
        return 1
    first = 0
    if group.window is not None:
        first = max(tokens - group.window, 0) if group.kind == "swa" else (tokens - 1) // group.window * group.window
    return (tokens - 1) // group.block_size - first // group.block_size + 1


def served_alone(trial: Trial, depth: int, prompt: int, outputs: int) -> bool:
    """Whether the scheduler of `trial`, which has nothing else to do, serves such a request to its end."""
    scheduler = trial.scheduler
    scheduler.add(scheduler.request_type(0, prompt, outputs))
    queue = BatchQueue(scheduler, depth)
    preempted, fruitless = False, 0
    while scheduler.unfinished and fruitless <= PATIENCE:
        issued = queue.issue()
        if issued is not None:
            preempted = preempted or bool(issued.preempted)
            gains = issued.emitting or (issued.tokens and not preempted)
            fruitless = 0 if gains else fruitless + 1
        if queue.waits(issued):
            queue.complete()
            trial.hear()
    return not scheduler.unfinished

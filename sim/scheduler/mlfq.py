"""FastServe's skip-join multi-level feedback queue: preemption after every token, without knowing lengths.

Queue i grants a quantum of `quantum * ratio**i`; each batch serves the first requests of the highest queues. A new
request skips the queues whose quantum its prefill alone would exceed. One that has used up its quantum goes to the
end of the next queue with its next token: never between two chunks of a prompt, whose work could be lost for ever. A
request that was not served for `promote_after` calls goes to the first queue (0: never). With `carry_level` a further
round of a session does not start above the queue that the round before ended in. Where prefixes are found again, the
prefill of a round is what was not said before.

A scheduler here sees no clock, so service is counted in decode iterations: a row of one token counts 1, a prefill row
one for each started `prefill_tokens_per_iteration` tokens (how many tokens of prompt take as long as one decode
iteration; FastServe takes both times from a profile). So the first quantum, FastServe's shortest iteration, is 1.

Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models" (FastServe), arXiv:2305.05920, and its
released scheduler (ratio 2, a look at starved requests every 1,000 iterations).
Not modelled: swapping KV to the host, reactively or proactively. A paused request keeps its blocks while these are not
needed; the lowest in the queues lose theirs first and are computed again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.options import at_least, read_options
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import Workload


MOST_QUEUES = 1000
MOST_QUANTUM = 1e30
SUPPORTS = ("enable_prefix_caching",)
NOT_MODELLED = ("FastServe's swapping of KV blocks to the host: paused requests keep theirs or are computed again",)


@dataclass(frozen=True)
class Options:
    """The queues: how many, first quantum, ratio of quanta, service of a prefill, when the starved are promoted, and
    whether rounds go on where the one before ended."""

    queues: int = 8
    quantum: float = 1.0
    ratio: float = 2.0
    prefill_tokens_per_iteration: int = 512
    promote_after: int = 1000
    carry_level: bool = False

    def __post_init__(self) -> None:
        at_least(
            1, queues=self.queues, ratio=self.ratio, prefill_tokens_per_iteration=self.prefill_tokens_per_iteration
        )
        at_least(0, promote_after=self.promote_after)
        if not self.quantum > 0:
            raise ValueError(f"quantum must be above 0, got {self.quantum:g}.")
        if math.log(self.quantum) + (self.queues - 1) * math.log(self.ratio) > math.log(MOST_QUANTUM):
            raise ValueError(
                f"the last queue's quantum, quantum * ratio**(queues - 1), must be at most {MOST_QUANTUM:g}: lower "
                "queues, ratio or quantum."
            )
        if self.queues > MOST_QUEUES:
            raise ValueError(f"queues must be at most {MOST_QUEUES}, got {self.queues}.")


class LevelledRequest(IterationRequest):
    """A request in queue `level`, of whose quantum it has `used` some; `last_call` served it."""

    __slots__ = ("level", "used", "last_call")

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.level = 0
        self.used = 0
        self.last_call = -1


class SkipJoinMLFQ(IterationScheduler[LevelledRequest]):
    """Queues of all unfinished requests, those that hold blocks and those that do not, in the order of service."""

    request_type = LevelledRequest

    def __init__(self, settings: EngineSettings, cache: CacheShape, options: Options):
        super().__init__(settings, cache)
        self.options = options
        self.quanta = [options.quantum * options.ratio**level for level in range(options.queues)]
        self.queues: list[dict[int, LevelledRequest]] = [{} for _ in self.quanta]
        self._ended_in: dict[int, int] = {}
        self._sessions: Sessions | None = None

    def know(self, workload: Workload) -> None:
        """Which requests are rounds of one session."""
        self._sessions = workload.sessions

    def service(self, tokens: int) -> int:
        """Service that a row of so many tokens counts for, in decode iterations."""
        return -(-tokens // self.options.prefill_tokens_per_iteration)

    def add(self, request: LevelledRequest) -> None:
        """Join the first queue whose quantum covers the prefill."""
        said = 0
        if self.tables is not None and self._sessions is not None:
            said = int(self._sessions.history_tokens[request.index])
        cost = self.service(request.prompt - said)
        request.last_call = self.call
        level = next((i for i, quantum in enumerate(self.quanta) if quantum >= cost), len(self.quanta) - 1)
        if self.options.carry_level and self._sessions is not None:
            level = max(level, self._ended_in.pop(self._sessions.of(request.index), 0))
        self._join(request, level)
        super().add(request)

    def dequeue(self, request: LevelledRequest) -> None:
        """It no longer waits; one that was aborted leaves its queue too."""
        super().dequeue(request)
        if request.aborted:
            del self.queues[request.level][request.index]

    def leave(self, request: LevelledRequest) -> None:
        """Who has ended leaves its queue."""
        super().leave(request)
        del self.queues[request.level][request.index]
        if self.options.carry_level and self._sessions is not None:
            self._ended_in[self._sessions.of(request.index)] = request.level

    def candidates(self) -> Iterable[LevelledRequest]:
        """The highest queues first."""
        return list(islice(chain.from_iterable(queue.values() for queue in self.queues), 2 * self.max_num_seqs))

    def admits(self, request: LevelledRequest, tokens: int) -> bool:
        """It takes the place of lower ones."""
        return True

    def victims(self, request: LevelledRequest) -> Iterable[LevelledRequest]:
        """Those behind the request that hold blocks, the lowest first; it pauses if they have too little."""
        for queue in reversed(self.queues):
            for other in reversed(queue.values()):
                if other is request:
                    return
                if other.index in self.running:
                    yield other

    def schedule(self) -> Batch[LevelledRequest]:
        """Decide the next batch, then charge its rows, and demote who has used up a quantum."""
        if self.options.promote_after and (self.call + 1) % self.options.promote_after == 0:
            self._promote()
        batch = super().schedule()
        for row in batch.rows:
            request = row.request
            request.last_call = self.call
            request.used += self.service(row.tokens)
            spent = row.emits and request.used >= self.quanta[request.level]
            if spent and request.level + 1 < len(self.queues):
                del self.queues[request.level][request.index]
                self._join(request, request.level + 1)
        return batch

    def _join(self, request: LevelledRequest, level: int) -> None:
        """To the end of a queue, with all of its quantum."""
        self.queues[level][request.index] = request
        request.level = level
        request.used = 0

    def _promote(self) -> None:
        """To the first queue, who was not served for long."""
        oldest = self.call - self.options.promote_after
        for queue in self.queues[1:]:
            for request in [request for request in queue.values() if request.last_call <= oldest]:
                del queue[request.index]
                self._join(request, 0)


def make(settings: EngineSettings, cache: CacheShape) -> SkipJoinMLFQ:
    """One replica's scheduler."""
    return SkipJoinMLFQ(settings, cache, read_options(Options, settings.scheduler_options, "mlfq"))

"""Static batching (request-level scheduling): a batch is filled once and runs until its last member has ended.

When the engine is idle the earliest waiting requests form a batch, as many as there are seats, KV blocks for prompt and
all outputs, and room for their prompts in one prefill of `max_num_batched_tokens`. Nobody joins before all have ended;
seats and blocks of early leavers stay taken. `engine.scheduler_options.padded=true` computes as FasterTransformer does:
every prompt padded to the longest, and a member that has ended still computed until the batch ends, logits
apart.

Source: section 3 of Yu et al., "Orca", OSDI 2022, which describes FasterTransformer behind such a scheduler.
Tokens are streamed as they are made (the systems described answer when the whole batch is done). Not modelled: waiting
a while for a batch to fill.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch, Row
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.options import read_options


CHUNKS = False


@dataclass(frozen=True)
class Options:
    """`padded`: prompts are padded to the longest of the batch, and ended members are computed to its end."""

    padded: bool = False


class Static(IterationScheduler[IterationRequest]):
    """One batch at a time."""

    def __init__(self, settings: EngineSettings, cache: CacheShape, options: Options):
        super().__init__(settings, cache)
        self.chunked_prefill = False
        self.padded = options.padded
        self._ended: dict[int, IterationRequest] = {}

    @property
    def unfinished(self) -> int:
        """Requests waiting, or members that have not ended."""
        return super().unfinished - len(self._ended)

    def admits(self, request: IterationRequest, tokens: int) -> bool:
        """Only into the batch that is being formed in this call."""
        return len(self.running) == len(self.batch.admitted) < self.max_num_seqs

    def tokens_for(self, request: IterationRequest, budget: int) -> int:
        """Its whole prompt if all prompts, padded, fit in one prefill."""
        if self.padded and request.computed == 0:
            longest = max(request.prompt, *(row.request.prompt for row in self.rows), 0)
            if longest * (len(self.rows) + 1) > self.budget:
                return 0
        return super().tokens_for(request, budget)

    def held_tokens(self, request: IterationRequest, tokens: int) -> int:
        """Prompt and outputs, from the start."""
        return request.prompt + request.outputs

    def measure(self, batch: Batch[IterationRequest], rows: Sequence[Row[IterationRequest]]) -> None:
        """The rows as they are, or padded: all members as long as the longest, ended ones too."""
        if not self.padded or not rows:
            super().measure(batch, rows)
            return
        longest = max(member.prompt for member in self.running.values())
        made = max(row.request.emitted for row in rows)
        for _ in self.running:
            if made == 1:
                batch.add_chunk(0, longest)
            else:
                batch.add_decode(longest + made - 1)

    def leave(self, request: IterationRequest) -> None:
        """An ended member keeps its place until all have ended."""
        request.outputs = request.emitted  # one that was aborted has no further row
        self._ended[request.index] = request
        if len(self._ended) == len(self.running):
            for member in self._ended.values():
                self.release(member)
            self._ended.clear()


def make(settings: EngineSettings, cache: CacheShape) -> Static:
    """One replica's scheduler."""
    return Static(settings, cache, read_options(Options, settings.scheduler_options, "static"))

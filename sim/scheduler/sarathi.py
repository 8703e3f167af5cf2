"""Sarathi-Serve: chunked prefill with stall-free batching.

Each batch takes the decode token of every running request first, then the next chunks of prompts under way, then new
requests, each chunk cut at what is left of the token budget: `max_num_batched_tokens`, the paper's chunk size (512 for
tight, 2,048 for relaxed bounds). So a decode never waits for a prompt. Blocks for the whole prompt are taken when a
request starts, if then at least the share `watermark` of all blocks stays free. The last to start is the victim where
a decode finds no block; it is computed again later.

Source: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, and
the released scheduler (which inherits watermark and preemption of vLLM v0). Not modelled: chunk sizes that change
with the position in the prompt.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.options import at_least, read_options


CHUNKS = True


@dataclass(frozen=True)
class Options:
    """`watermark`: share of all blocks that a start leaves free, below 1."""

    watermark: float = 0.01

    def __post_init__(self) -> None:
        at_least(0.0, watermark=self.watermark)
        if self.watermark >= 1:
            raise ValueError(f"watermark must be below 1, got {self.watermark:g}.")


class Sarathi(IterationScheduler[IterationRequest]):
    """Decodes, then prompts under way, then new ones, within the token budget."""

    def __init__(self, settings: EngineSettings, cache: CacheShape, options: Options):
        super().__init__(settings, cache)
        self.chunked_prefill = True
        self.spare_blocks = int(options.watermark * self.usable_blocks)

    def candidates(self) -> Iterable[IterationRequest]:
        """The running ones that decode, those still in their prompt, the waiting ones."""
        running = list(self.running.values())
        decoding = [request for request in running if request.decoding]
        prefilling = [request for request in running if not request.decoding]
        return [*decoding, *prefilling, *self.waiting[: self.max_num_seqs]]

    def held_tokens(self, request: IterationRequest, tokens: int) -> int:
        """Its whole prompt."""
        return request.known

    def admits(self, request: IterationRequest, tokens: int) -> bool:
        """A seat, and the watermark; an empty engine takes any request."""
        after = self.free_blocks - self.blocks_of(request.known)
        return super().admits(request, tokens) and (after >= self.spare_blocks or not self.running)


def make(settings: EngineSettings, cache: CacheShape) -> Sarathi:
    """One replica's scheduler."""
    return Sarathi(settings, cache, read_options(Options, settings.scheduler_options, "sarathi"))

"""Orca: iteration-level scheduling, first come first served, with the KV cache of a request reserved when it starts.

After each iteration the requests that have ended leave, and the earliest waiting ones join while a seat
(`max_num_seqs`) and KV slots for all they may ever need are free. A whole prompt is one row, beside the decodes of
others (selective batching). Nobody is ever preempted.

What is reserved for outputs that the engine does not know beforehand is an option, `engine.scheduler_options.reserve`:
`oracle` (the default) the true length, `pow2` the next power of two, `max` as far as `max_model_len`: the three
variants that vLLM's paper compares with.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, algorithm 1;
Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 6.1.
`max_num_batched_tokens` bounds a batch here; in the paper only seats do. Not modelled: pipelined batches.
"""

from dataclasses import dataclass

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.options import one_of, read_options


CHUNKS = False
RESERVES = ("oracle", "pow2", "max")


@dataclass(frozen=True)
class Options:
    """`reserve`: for how many outputs slots are reserved, `oracle`, `pow2` or `max`."""

    reserve: str = "oracle"

    def __post_init__(self) -> None:
        one_of(RESERVES, reserve=self.reserve)


class Orca(IterationScheduler[IterationRequest]):
    """Iteration-level scheduling with reservation."""

    def __init__(self, settings: EngineSettings, cache: CacheShape, options: Options):
        super().__init__(settings, cache)
        self.chunked_prefill = False
        self.reserve = options.reserve

    def held_tokens(self, request: IterationRequest, tokens: int) -> int:
        """Prompt and all outputs it may have, from the start."""
        if self.reserve == "max":
            return self.max_model_len
        outputs = request.outputs if self.reserve == "oracle" else 1 << (request.outputs - 1).bit_length()
        return min(request.prompt + outputs, self.max_model_len)


def make(settings: EngineSettings, cache: CacheShape) -> Orca:
    """One replica's scheduler."""
    return Orca(settings, cache, read_options(Options, settings.scheduler_options, "orca"))

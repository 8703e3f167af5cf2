"""TensorRT-LLM's in-flight batching with its capacity policies, which `engine.scheduling_policy` names.

- `GUARANTEED_NO_EVICT` (the engine's default): a request starts only if the blocks for prompt and all outputs of all
  that run, and its own, fit. So nobody is ever paused. The first that does not fit ends the starts.
- `MAX_UTILIZATION`: walk all requests in order of arrival; each needs the blocks of its next step only. For one that
  does not fit, the most recently arrived of those that have started is paused, and the walk ends there. A paused
  request gives up its blocks, keeps its place by arrival, and is computed again.
- `STATIC_BATCH`: as the first, but requests start only while nobody runs.

The batch: decodes first, then prompts in order of arrival within what is left of `max_num_batched_tokens` (its
`max_num_tokens`); at most `max_num_seqs` (its `max_batch_size`) requests. With chunked context a prompt that exceeds it
is cut to a multiple of the block; without, it waits. Blocks for the whole prompt are taken when a request starts.

`engine.scheduler_options.max_output_tokens`: what every request is allowed to emit, where that is more than it does;
the reservation counts it.

Source: TensorRT-LLM's documentation of the scheduler and of its capacity policies; capacity and micro-batch scheduler
of the C++ runtime (Apache-2.0), read. Not compared with recordings. Not modelled: block reuse, the equal-progress
chunking policy, adapters, encoder requests.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch
from sim.scheduler.iteration import IterationRequest, IterationScheduler
from sim.scheduler.trtllm.gate import PromptGate
from sim.scheduler.trtllm.options import Options


def by_arrival(request: IterationRequest) -> int:
    """Sorts by arrival."""
    return request.order


class TensorRTLLM(IterationScheduler[IterationRequest]):
    """In-flight batching under a capacity policy."""

    def __init__(self, settings: EngineSettings, cache: CacheShape, options: Options):
        super().__init__(settings, cache)
        if self.chunked_prefill and self.budget < self.block_size:
            raise ValueError(
                f"the scheduler trtllm cuts prompts at whole blocks: engine.max_num_batched_tokens must be at least "
                f"engine.block_size={self.block_size}, got {self.budget}."
            )
        self.policy = settings.scheduling_policy
        self.max_output_tokens = options.max_output_tokens
        self._wait_steps = options.batch_wait_timeout_iters
        self._wait_tokens = options.batch_wait_max_tokens_ratio * self.budget
        self._waited = 0
        self._by_arrival = not self.chunked_prefill or self.policy == "MAX_UTILIZATION"
        self._gate_steps = options.attention_dp_timeout_iters
        self._gate: PromptGate | None = None
        self._closed = False
        self._spoken_for = 0
        self._promised: int | None = None

    def to_completion(self, request: IterationRequest) -> int:
        """Blocks for prompt and outputs, within the pool: what never fits was rejected on arrival."""
        tokens = request.prompt + max(request.outputs, self.max_output_tokens)
        return min(self.blocks_of(min(tokens, self.max_model_len)), self.usable_blocks)

    def candidates(self) -> Iterable[IterationRequest]:
        """Those with capacity: decodes first, or, where prompts are not cut, all by arrival."""
        waiting = self.waiting[: self.max_num_seqs]
        self.in_vain = not (self._closed or self._wait_steps or self.policy == "MAX_UTILIZATION")
        if self.policy == "MAX_UTILIZATION":
            fitting = self._fitting()
        else:
            self._spoken_for = self.spoken_for()
            fitting = [*self.running.values(), *waiting]
        if self._closed or (self._gate is None and self._wait_steps and self._prompts_wait(fitting)):
            fitting = [request for request in fitting if self._decodes(request)]
        if not self.chunked_prefill:
            return sorted(fitting, key=by_arrival)
        return sorted(fitting, key=lambda request: not self._decodes(request))

    def schedule(self) -> Batch[IterationRequest]:
        """Decide the next batch, as the gate lets prompts pass."""
        self._closed = self._gate is not None and not self._gate.opens(self)
        return super().schedule()

    def steady(self) -> bool:
        """Who was looked at in vain waits until somebody leaves; where a step more may start it, rows are walked."""
        return self.in_vain or not self.waiting

    def spoken_for(self) -> int:
        """Blocks that those who have started need to their ends."""
        if self._promised is None:
            self._promised = sum(self.to_completion(request) for request in self.running.values())
        return self._promised

    def join(self, ranks: "Sequence[TensorRTLLM]") -> None:
        """This rank is one of `ranks`, which run their steps together."""
        if self._gate_steps and self._gate is None:
            gate = PromptGate(ranks, self._gate_steps)
            for rank in ranks:
                rank._gate = gate

    @property
    def has_prompt(self) -> bool:
        """Whether any request has a prompt to compute."""
        if self.waiting or self.goes_together:
            return bool(self.waiting)
        return any(not request.decoding for request in self.running.values())

    @property
    def decodes_any(self) -> bool:
        """Whether any request decodes."""
        return any(r.decoding and r.emitted < r.outputs for r in self.running.values())

    def _decodes(self, request: IterationRequest) -> bool:
        return request.decoding and request.index in self.running

    def _prompts_wait(self, fitting: list[IterationRequest]) -> bool:
        """Whether prompts wait in this call for others to fill the batch with them."""
        active = [request for request in fitting if request.emitted < request.outputs]
        decodes = sum(self._decodes(request) for request in active)
        if not decodes or decodes == len(active):
            return False
        tokens = decodes + sum(request.known - request.computed for request in active if not self._decodes(request))
        if self._waited < self._wait_steps and tokens < self._wait_tokens:
            self._waited += 1
            return True
        self._waited = 0
        return False

    def tokens_for(self, request: IterationRequest, budget: int) -> int:
        """All it has left, or a chunk of whole blocks."""
        tokens = super().tokens_for(request, budget)
        return tokens if tokens == request.known - request.computed else tokens // self.block_size * self.block_size

    def admits(self, request: IterationRequest, tokens: int) -> bool:
        """Whether the blocks to completion fit, unless `candidates` has decided it."""
        if self.policy == "MAX_UTILIZATION":
            return True
        if self.policy == "STATIC_BATCH" and len(self.running) > len(self.batch.admitted):
            return False
        blocks = self.to_completion(request)
        if len(self.running) >= self.max_num_seqs or self._spoken_for + blocks > self.usable_blocks:
            return False
        self._spoken_for += blocks
        self._promised, self.in_vain = None, False
        return True

    def enter(self, request: IterationRequest) -> None:
        """A request whose prompt was computed elsewhere runs from the next call on."""
        self._promised = None
        if self._by_arrival:
            self._together.settle()  # its rows may come before those of others
        super().enter(request)

    def release(self, request: IterationRequest) -> None:
        """The request stops running: its blocks are free, and nothing is promised to it."""
        self._promised = None
        super().release(request)

    def held_tokens(self, request: IterationRequest, tokens: int) -> int:
        """Its whole prompt, and what it had emitted before a pause."""
        return request.known

    def victims(self, request: IterationRequest) -> Iterable[IterationRequest]:
        """Nobody: who is paused is decided before the batch is filled."""
        return ()

    def _fitting(self) -> list[IterationRequest]:
        """The requests that can take their next step; those that have to make room are paused."""
        started = sorted((r for r in self.running.values() if r.emitted < r.outputs), key=by_arrival)
        active = list(heapq.merge(started, islice(self.waiting, self.max_num_seqs), key=by_arrival))
        fitting: list[IterationRequest] = []
        free, position, end = self.free_blocks, 0, len(active)
        while position < end:
            request = active[position]
            missing = self.blocks_of(request.known) - request.blocks
            if len(fitting) < self.max_num_seqs and missing <= free:
                fitting.append(request)
                free -= missing
                position += 1
                continue
            last = next((i for i in range(end - 1, position - 1, -1) if active[i].index in self.running), None)
            if last is None:
                break
            free += active[last].blocks
            self.evict(active[last])
            end = last
        return fitting

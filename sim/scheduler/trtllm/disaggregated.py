"""TensorRT-LLM's context and generation servers.

A context server computes prompts and one token; its blocks stay until they have been read. A generation server starts
nobody whose blocks to completion do not fit (with `MAX_UTILIZATION` those of the prompt); it takes the prompt's blocks
and a seat, and asks for the KV. Once that is there the request has its first token, which is given out at once, and
decodes in the same step. Who is paused there is computed again there.

Source: TensorRT-LLM's documentation of disaggregated serving; PyExecutor of its PyTorch backend, recalled. Not compared
with recordings.
"""

from collections.abc import Sequence

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Batch
from sim.scheduler.hooks import NOTHING, Connector
from sim.scheduler.iteration import IterationRequest
from sim.scheduler.trtllm.options import Options
from sim.scheduler.trtllm.scheduler import TensorRTLLM


class ContextServer(TensorRTLLM):
    """Prefills only. `held`: computed, and still to be read by a generation server."""

    polls = True

    def __init__(
        self, settings: EngineSettings, cache: CacheShape, options: Options, connector: Connector[IterationRequest]
    ):
        super().__init__(settings, cache, options)
        self.connector = connector
        self.max_output_tokens = 1
        self.held: dict[IterationRequest, None] = {}

    @property
    def watches(self) -> bool:
        """Whether the loop goes on although nothing is unfinished: to free what was read."""
        return bool(self.held)

    def spoken_for(self) -> int:
        """Blocks of those who have started, and of those who are still to be read."""
        return super().spoken_for() + sum(request.blocks for request in self.held)

    def leave(self, request: IterationRequest) -> None:
        """A request is over: its seat is free, its blocks are once they have been read."""
        if request.aborted or not self.connector.keeps(request, True):
            super().leave(request)
            return
        del self.running[request.index]
        self._promised, self.in_vain = None, False
        self.held[request] = None

    def report(self, received: Sequence[IterationRequest], sent: Sequence[IterationRequest]) -> None:
        """The blocks of the `sent` requests were read."""
        for request in sent:
            del self.held[request]
            self.free_blocks += request.blocks
            request.blocks = 0
        self.in_vain = self.in_vain and not sent


class GenerationServer(TensorRTLLM):
    """Decodes what others have prefilled. `waiting` were paused and are computed again.

    `wanting` have nothing; `loading` have a seat and the blocks of their prompt; the KV of the `arrived` is there.
    """

    polls = True
    watches = False

    def __init__(
        self, settings: EngineSettings, cache: CacheShape, options: Options, connector: Connector[IterationRequest]
    ):
        super().__init__(settings, cache, options)
        self.connector = connector
        self.wanting: list[IterationRequest] = []
        self.loading: dict[int, IterationRequest] = {}
        self.arrived: list[IterationRequest] = []
        self._opened_as = -1

    @property
    def unfinished(self) -> int:
        """Requests that want blocks, load, have arrived, were paused or run."""
        return super().unfinished + len(self.wanting) + len(self.loading) + len(self.arrived)

    def add(self, request: IterationRequest) -> None:
        """A prompt that was computed elsewhere."""
        request.order = self._arrivals
        self._arrivals += 1
        self.wanting.append(request)

    def abort(self, request: IterationRequest) -> None:
        """Take an unfinished request out; blocks that are still written to are kept until that is over."""
        request.aborted = True
        if request in self.wanting:
            self.wanting.remove(request)
        elif request in self.arrived:
            self.arrived.remove(request)
            self._free(request)
        elif request.index not in self.loading:
            super().abort(request)

    def spoken_for(self) -> int:
        """Blocks that all who have started, or will when their KV is there, need to their ends."""
        return super().spoken_for() + sum(self.to_completion(request) for request in self._seated())

    def schedule(self) -> Batch[IterationRequest]:
        """Decide the next batch: who may load, who has loaded, and one token for each that decodes."""
        self._load()
        opened, self.arrived = self.arrived, []
        if opened:
            self.call += 1
            self._opened_as = self.call
        for request in opened:
            request.computed = request.prompt
            request.emitted = 1
            request.last_batch = self._opened_as
            self.enter(request)
        batch = super().schedule()
        if opened:
            batch.opened, batch.opened_as = opened, self._opened_as
            batch.admitted = [*opened, *batch.admitted]
            batch.finishing = [*(request for request in opened if request.outputs == 1), *batch.finishing]
        return batch

    def report(self, received: Sequence[IterationRequest], sent: Sequence[IterationRequest]) -> None:
        """The KV of the `received` requests is there."""
        for request in received:
            del self.loading[request.index]
            if request.aborted:
                self._free(request)
            else:
                self.arrived.append(request)

    def _awaits_token(self, request: IterationRequest) -> bool:
        return request.last_batch != self._opened_as and super()._awaits_token(request)

    def _load(self) -> None:
        """Blocks and seats for those that have come, in order, and their KV is asked for."""
        if not self.wanting or (self.policy == "STATIC_BATCH" and self.running):
            return
        seats = self.max_num_seqs - len(self.running) - len(self.waiting) - len(self.loading) - len(self.arrived)
        if seats <= 0:
            return
        ahead = 0 if self.policy == "MAX_UTILIZATION" else self.spoken_for()
        while self.wanting and seats > 0:
            request = self.wanting[0]
            needed, blocks = self.to_completion(request), self.blocks_of(request.prompt)
            if blocks > self.free_blocks or (self.policy != "MAX_UTILIZATION" and ahead + needed > self.usable_blocks):
                return
            self.wanting.pop(0)
            ahead, seats = ahead + needed, seats - 1
            self.free_blocks -= blocks
            request.blocks = blocks
            self.loading[request.index] = request
            self.connector.allocated(request, self.connector.look_up(request, 0) or NOTHING, (blocks,))

    def _seated(self) -> list[IterationRequest]:
        return [*self.loading.values(), *self.arrived]

    def _free(self, request: IterationRequest) -> None:
        self.free_blocks += request.blocks
        request.blocks = 0

"""The fast path of an instance whose KV comes from others, or is read by them: first come first served, one group.

Loads wait in a queue of their own, which goes first (vLLM 0.19 on; before, they wait among the others, row by row).
"""

from collections.abc import Sequence
from typing import Any

from sim.deployment.rules import ConnectorRules
from sim.memory.blocks import CountedBlocks
from sim.memory.prefix import PrefixBlocks
from sim.scheduler.base import Batch
from sim.scheduler.hooks import Connector
from sim.scheduler.vllm.continuous import ContinuousBatching, DecodingRequest


class LoadingRequest(DecodingRequest):
    """A request whose KV may come from elsewhere, which is `reported` once it is there."""

    __slots__ = ("reported",)

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.reported = False


class ConnectedBatching(ContinuousBatching):
    """One instance's scheduler. `rules`: what the version does; everything else as in `ContinuousBatching`."""

    request_type = LoadingRequest
    polls = False

    def __init__(
        self,
        blocks: CountedBlocks[Any] | PrefixBlocks[Any],
        connector: Connector[Any],
        rules: ConnectorRules,
        **limits: Any,
    ):
        super().__init__(blocks, **limits)
        self.connector = connector
        self.rules = rules
        self.aside: list[LoadingRequest] = []
        self.held: dict[LoadingRequest, int] = {}

    @property
    def unfinished(self) -> int:
        """Requests waiting, loading or running."""
        return super().unfinished + len(self.aside)

    @property
    def watches(self) -> bool:
        """Whether the loop goes on although nothing is unfinished, to hear that held blocks have been read."""
        return self.rules.polls_held and bool(self.held)

    def report(self, received: Sequence[LoadingRequest], sent: Sequence[LoadingRequest]) -> None:
        """At the end of a step: the KV of the `received` requests has arrived, the blocks of the `sent` were read."""
        self._repeatable = None
        for request in received:
            if not self._free(request):
                request.reported = True
        for request in sent:
            self._free(request)

    def abort(self, request: DecodingRequest) -> None:
        """Take an unfinished request out; blocks that are still written to are kept until that is over."""
        if request not in self.aside:
            super().abort(request)
            return
        assert isinstance(request, LoadingRequest)
        self._repeatable = None
        self.aside.remove(request)
        request.left = 0
        if request.reported or self.rules.frees_aborted_loads:
            self.blocks.release(request, request.target)
        else:
            self.held[request] = request.target

    @property
    def _queued(self) -> int:
        return len(self.waiting) + len(self.aside)

    def _admit(self, batch: Batch[DecodingRequest], budget: int) -> None:
        """What has been loaded first: one token on all of its context, a decode to the device."""
        still: list[LoadingRequest] = []
        admitted: list[DecodingRequest] = []
        for request in self.aside:
            if not request.reported or budget <= 0 or len(self.running) >= self.max_num_seqs:
                still.append(request)
                continue
            request.reported = False
            self.running[request.index] = request
            request.computed = request.target
            if request.preemptions == 0:
                request.cached = request.target - 1
            self.blocks.register(request, request.target)
            batch.add_decode(request.target)
            budget -= 1
            admitted.append(request)
        if admitted:
            self.aside = still
            batch.admitted, batch.emitted, batch.begun = admitted, [*batch.emitted, *admitted], len(admitted)
        super()._admit(batch, budget)

    def _start_load(self, request: DecodingRequest, hits: Sequence[int]) -> bool | None:
        """Take the blocks of a load, all at once; False if there are too few, None if the request is none."""
        assert isinstance(request, LoadingRequest)
        size = self.blocks.block_size
        external = self.connector.look_up(request, len(hits) * size)
        if external is None or not external.loads:
            return None
        room = request.target + self._reserved() * size
        if not self.blocks.admit(request, hits, request.target, room, findable=False):
            return False
        self.aside.append(request)
        self.connector.allocated(request, external, (-(-request.target // size) - len(hits),))
        return True

    def _reserved(self) -> int:
        """Blocks that the prefill under way still needs, which no new load may take."""
        partial = self._partial
        if partial is None or not self.rules.reserves_prefills:
            return 0
        size = self.blocks.block_size
        whole = min(partial.target, self.max_model_len)
        return max(0, -(-whole // size) - -(-partial.computed // size))

    def _let_go(self, request: DecodingRequest, tokens: int) -> None:
        """A request has ended: its blocks are free, or held for a reader."""
        assert isinstance(request, LoadingRequest)
        if self.connector.keeps(request, True):
            self.held[request] = tokens
        else:
            super()._let_go(request, tokens)

    def _free(self, request: LoadingRequest) -> bool:
        """Free the blocks of a request that holds them after its end."""
        tokens = self.held.pop(request, None)
        if tokens is None:
            return False
        self.blocks.release(request, tokens)
        return True

"""KV that comes from and goes to other instances: loads under way, blocks held for a reader, what became of them.

A load takes blocks for all of its prompt at once, but neither a seat nor budget. It is reported with the output of some
later step; the call after that admits it like any other request, with one token left to compute.

Source: recorded decisions of vLLM 0.10.2, 0.19.0 and 0.33.0 with KV connectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sim.memory.cache import Hit
from sim.scheduler.hooks import External
from sim.scheduler.vllm.request import RowRequest


if TYPE_CHECKING:
    from sim.scheduler.vllm.rows import RowBatching


class Transfers:
    """The transfers of one scheduler.

    `loading` have blocks but no seat: their KV is on its way, or has arrived (or failed to) and they wait to be
    admitted. `held` have ended, and somebody will read their blocks, or still writes to them.
    """

    def __init__(self, scheduler: RowBatching):
        self.loading: dict[int, RowRequest] = {}
        self.held: dict[RowRequest, None] = {}
        self._scheduler = scheduler

    def reserved(self) -> int:
        """Blocks that prefills under way and loads still need, which no new load may take.

        With drafts, those that each of them adds, and once more, whoever is under way.
        """
        scheduler = self._scheduler
        if not scheduler.connector_rules.reserves_prefills:
            return 0
        prefills = [request for request in scheduler.running if request.computed < request.target]
        prefills += self.loading.values()
        ahead = 1 + scheduler.drafts + scheduler.lookahead if scheduler.drafts else 0
        blocks = sum(scheduler.cache.missing(request, request.known + ahead) for request in prefills)
        return blocks + sum(-(-ahead // kind.block_size) for kind in scheduler.cache.groups)

    def start(self, request: RowRequest, hit: Hit, external: External, spare: int) -> bool:
        """Take the blocks of a load, all at once; False if there are too few."""
        cache = self._scheduler.cache
        if cache.allocate(request, 0, hit, 0, spare + self.reserved(), external.tokens, loads=True) is None:
            return False
        request.computed = hit.tokens + external.tokens
        request.loads = True
        self.loading[request.index] = request
        return True

    def take_up(self, request: RowRequest) -> None:
        """A load that was reported is a waiting request again, with what has arrived as computed."""
        request.loads = request.reported = False
        cache = self._scheduler.cache
        if not request.computed:
            cache.release(request)
            return
        cache.register(request, request.computed)
        if request.computed == request.known:
            request.computed -= 1

    def part(self, request: RowRequest, finished: bool) -> None:
        """A request that had a seat has ended: its blocks are free, or held for a reader."""
        scheduler = self._scheduler
        windows = scheduler.connector_rules.leaves_windows
        if windows and scheduler.connected:
            scheduler.cache.leave_windows(request, request.computed if windows == "computed" else request.known)
        if scheduler.connector.keeps(request, finished):
            self.held[request] = None
        else:
            scheduler.cache.release(request)

    def abandon(self, request: RowRequest) -> None:
        """A request without a seat has ended; blocks that are still written to are kept until that is over."""
        scheduler = self._scheduler
        self.loading.pop(request.index, None)
        scheduler.connector.keeps(request, False)
        if request.loads and not request.reported and not scheduler.connector_rules.frees_aborted_loads:
            self.held[request] = None
        else:
            scheduler.cache.release(request)

    def report(
        self,
        received: Sequence[RowRequest] = (),
        sent: Sequence[RowRequest] = (),
        invalid_blocks: Collection[int] = (),
        failed: Collection[RowRequest] = (),
    ) -> list[RowRequest]:
        """What the workers say at the end of a step; returns the requests that ended with an error.

        `received`: nothing is written to their blocks any more. `sent`: their blocks have been read. Of the received
        ones some have `invalid_blocks`, and the `failed` nothing at all.
        """
        errors = self._fail(invalid_blocks, failed) if invalid_blocks or failed else []
        for request in received:
            if not self._free(request):
                request.reported = True
        for request in sent:
            self._free(request)
        return errors

    def _free(self, request: RowRequest) -> bool:
        """Free the blocks of a request that holds them after its end."""
        if request not in self.held:
            return False
        del self.held[request]
        self._scheduler.cache.release(request)
        return True

    def _fail(self, invalid_blocks: Collection[int], failed: Collection[RowRequest]) -> list[RowRequest]:
        """Cut loads to what is valid of them, or end them."""
        scheduler = self._scheduler
        errors = []
        for request in list(self.loading.values()):
            valid = 0 if request in failed else self._valid(request, invalid_blocks)
            if valid is None:
                continue
            if scheduler.connector.recomputes:
                request.computed = valid
            else:
                request.ended = True
                scheduler.waiting.remove(request)
                self.abandon(request)
                errors.append(request)
        return errors

    def _valid(self, request: RowRequest, invalid_blocks: Collection[int]) -> int | None:
        """Tokens before the first invalid block; None if all are valid. One group of blocks is assumed."""
        size = self._scheduler.cache.groups[0].block_size
        for number, block in enumerate(request.tables[0][: -(-request.computed // size)] if request.tables else ()):
            if block in invalid_blocks:
                return number * size
        return None

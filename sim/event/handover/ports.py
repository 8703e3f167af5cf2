"""The two sides of a transfer, as their schedulers see them: what is held, loaded, under way and still to be heard."""

from collections.abc import Callable, Sequence
from typing import cast

from sim.event.handover.failures import Failures
from sim.scheduler.base import Request
from sim.scheduler.hooks import NOTHING, Alone, Connected, External
from sim.scheduler.vllm import RowBatching, RowRequest


class PrefillPort(Alone):
    """A prefill instance's side: it keeps the blocks of what it has finished until they have been read.

    `computed(i, request, tokens)`: who is told how far prefills of this instance, number i, have got.
    """

    def __init__(self, index: int, computed: Callable[[int, Request, int], None]) -> None:
        self.scheduler: Connected | None = None
        self.sent: list[Request] = []
        self.held = 0
        self._index = index
        self._computed = computed

    def computed(self, request: Request, tokens: int) -> None:
        """So much can be sent."""
        self._computed(self._index, request, tokens)

    def keeps(self, request: Request, finished: bool) -> bool:
        """Of every finished prefill."""
        self.held += finished
        return finished

    @property
    def busy(self) -> bool:
        """Whether blocks are still to be read."""
        return self.held > len(self.sent)

    @property
    def reports(self) -> bool:
        """Whether blocks have been read since the last report."""
        return bool(self.sent)

    @property
    def polled(self) -> bool:
        """Whether the loop looks for news before each call."""
        return self.scheduler is not None and self.scheduler.polls

    def report(self) -> None:
        """Tell the scheduler which."""
        sent, self.sent = self.sent, []
        self.held -= len(sent)
        assert self.scheduler is not None
        self.scheduler.report((), sent)


class DecodePort(Alone):
    """A decode instance's side: every request comes with its prompt's KV elsewhere, which is loaded once.

    Of the `received` loads some have `failed`; `ended(index, request)` is told of those that end with an error.
    """

    def __init__(
        self,
        index: int,
        begin: Callable[[int, Request, Sequence[int]], None],
        failures: Failures | None = None,
        ended: Callable[[int, Request], None] | None = None,
    ):
        self.scheduler: Connected | None = None
        self.received: list[Request] = []
        self.failed: list[Request] = []
        self.fails = failures is not None
        self.recomputes = failures is not None and failures.recomputes
        self._ended = ended
        self.under_way = 0
        self._index = index
        self._begin = begin
        self._loaded: set[int] = set()

    def look_up(self, request: Request, local_tokens: int) -> External:
        """The rest of the prompt, the first time."""
        if request.index in self._loaded:
            return NOTHING
        return External(request.prompt - local_tokens, loads=True)

    def allocated(self, request: Request, external: External, blocks: Sequence[int]) -> None:
        """Ask for it."""
        self._loaded.add(request.index)
        self.under_way += 1
        self._begin(self._index, request, blocks)

    def computed(self, request: Request, tokens: int) -> None:
        """Nobody reads them."""

    def arrived(self, request: Request, failed: bool = False) -> None:
        """All of its KV is here, or will not come."""
        self.under_way -= 1
        self.received.append(request)
        if failed:
            self.failed.append(request)

    @property
    def busy(self) -> bool:
        """Whether loads are under way."""
        return self.under_way > 0

    @property
    def reports(self) -> bool:
        """Whether loads have ended since the last report."""
        return bool(self.received)

    @property
    def polled(self) -> bool:
        """Whether the loop looks for news before each call."""
        return self.scheduler is not None and self.scheduler.polls

    def report(self) -> None:
        """Tell the scheduler which."""
        received, self.received = self.received, []
        assert self.scheduler is not None
        if not self.failed:
            self.scheduler.report(received, ())
            return
        failed, self.failed = self.failed, []
        assert isinstance(self.scheduler, RowBatching)
        for request in self.scheduler.transfers.report(
            cast(list[RowRequest], received), (), (), cast(list[RowRequest], failed)
        ):
            assert self._ended is not None
            self._ended(self._index, request)


KVPort = PrefillPort | DecodePort

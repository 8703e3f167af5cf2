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
        self._held: dict[Request, None] = {}
        self._sent: list[Request] = []
        self._index = index
        self._computed = computed

    def computed(self, request: Request, tokens: int) -> None:
        """So much can be sent."""
        self._computed(self._index, request, tokens)

    def keeps(self, request: Request, finished: bool) -> bool:
        """Of every finished prefill."""
        if finished:
            self._held[request] = None
        return finished

    def holds(self, request: Request) -> bool:
        """Whether nobody has read its blocks yet."""
        return request in self._held

    def read(self, request: Request) -> bool:
        """Nobody needs the blocks of a request any more; False if they are not held (any more)."""
        if request not in self._held:
            return False
        del self._held[request]
        self._sent.append(request)
        return True

    def fail(self) -> None:
        """The instance is gone with all that it holds."""
        assert self.scheduler is not None
        gone = [*self._sent, *self._held]
        self._sent, self._held = [], {}
        self.scheduler.report((), gone)

    @property
    def busy(self) -> bool:
        """Whether blocks are still to be read."""
        return bool(self._held)

    @property
    def reports(self) -> bool:
        """Whether blocks have been read since the last report."""
        return bool(self._sent)

    @property
    def polled(self) -> bool:
        """Whether the loop looks for news before each call."""
        return self.scheduler is not None and self.scheduler.polls

    def report(self) -> None:
        """Tell the scheduler which."""
        sent, self._sent = self._sent, []
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
        self._under_way: dict[Request, None] = {}
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
        self._under_way[request] = None
        self._begin(self._index, request, blocks)

    def computed(self, request: Request, tokens: int) -> None:
        """Nobody reads them."""

    def arrived(self, request: Request, failed: bool = False) -> None:
        """All of its KV is here, or will not come."""
        del self._under_way[request]
        self.received.append(request)
        if failed:
            self.failed.append(request)

    def forget(self, i: int) -> None:
        """Request i is gone; should it come again, it loads again."""
        self._loaded.discard(i)

    def fail(self) -> None:
        """The instance is gone, and with it its requests: nothing is written to their blocks any more."""
        assert self.scheduler is not None
        gone = [*self.received, *self._under_way]
        self.received, self.failed = [], []
        self._under_way.clear()
        self._loaded.clear()
        self.scheduler.report(gone, ())

    @property
    def busy(self) -> bool:
        """Whether loads are under way."""
        return bool(self._under_way)

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

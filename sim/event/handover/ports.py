"""The two sides of a transfer, as their schedulers see them: what is held, loaded, under way and still to be heard."""

from collections.abc import Callable, Sequence

from sim.scheduler.base import Request
from sim.scheduler.hooks import NOTHING, Alone, Connected, External


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
    """A decode instance's side: every request comes with its prompt's KV elsewhere, which is loaded once."""

    def __init__(self, index: int, begin: Callable[[int, Request, Sequence[int]], None]):
        self.scheduler: Connected | None = None
        self.received: list[Request] = []
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

    def arrived(self, request: Request) -> None:
        """All of its KV is here."""
        self.under_way -= 1
        self.received.append(request)

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
        self.scheduler.report(received, ())


KVPort = PrefillPort | DecodePort

"""What the two instances say of a request, on its way to the client."""

from collections.abc import Iterable, Sequence

from sim.event.handover.base import HandOver
from sim.scheduler.base import Batch, Request


class PrefillSide:
    """A prefill instance: the request is not finished yet."""

    def __init__(self, index: int, hand_over: HandOver):
        self._index = index
        self._hand_over = hand_over
        self.queued = hand_over.client.queued
        self.scheduled = hand_over.client.scheduled
        self.opened = hand_over.client.opened

    def interrupted(self, requests: Iterable[Request], last_token_ns: int) -> None:
        """Nobody decodes here."""

    def continued(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Nobody waits for tokens of here."""

    def delivered(self, batch: Batch, ended: Sequence[Request], now_ns: int) -> None:
        """Prefills have ended."""
        for request in ended:
            self._hand_over.prefilled(self._index, request, now_ns)


class DecodeSide:
    """A decode instance: the first token is the one that it samples, or gives out."""

    def __init__(self, hand_over: HandOver):
        self._hand_over = hand_over
        client = hand_over.client
        self.queued = hand_over.queued
        self.opened = client.opened
        self.interrupted = client.interrupted
        self.continued = client.continued

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Requests took their seats."""
        self._hand_over.seated(batch.admitted, now_ns)

    def delivered(self, batch: Batch, ended: Sequence[Request], now_ns: int) -> None:
        """Tokens for the client."""
        self._hand_over.ended(ended)
        self._hand_over.client.delivered(batch, ended, now_ns)

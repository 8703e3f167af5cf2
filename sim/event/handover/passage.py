"""One request's way from a prefill to a decode instance, and the times of all of them."""

import numpy as np

from sim.event.network import Flow
from sim.report.result import TransferTable
from sim.scheduler.base import Request


COLUMNS = (
    "source",
    "target",
    "prefilled_ns",
    "queued_ns",
    "allocated_ns",
    "begun_ns",
    "received_ns",
    "seated_ns",
    "failed",
    "blocks",
    "bytes",
)


class Passage:
    """Request `i`, of which the client gets `outputs` tokens, between two instances, until it ends or is cut short.

    `source`, `target`: the instances, the second -1 while none is chosen; `prefill`, `decode`: its requests there, once
    it has come there. `flow`: bytes on their way now; `sent_bytes`: those that have come. `counted`: whether the target
    counts it although it has not come there; `given_up`: whether nobody waits for it, and only its transfer goes on;
    `over`: nothing that was to happen to it does; `stranded_ns`: since when it finds no decode instance, -1 if it has.
    """

    __slots__ = (
        "i",
        "outputs",
        "source",
        "target",
        "prefill",
        "decode",
        "flow",
        "sent_bytes",
        "counted",
        "given_up",
        "over",
        "stranded_ns",
    )

    def __init__(self, i: int, source: int, outputs: int):
        self.i, self.outputs = i, outputs
        self.source, self.target = source, -1
        self.prefill: Request | None = None
        self.decode: Request | None = None
        self.flow: Flow | None = None
        self.sent_bytes = 0.0
        self.stranded_ns = -1
        self.counted = self.given_up = self.over = False


class Times:
    """What happened to each request on its way, axis `request`: times in ns, -1 where it did not happen."""

    def __init__(self, count: int):
        self._rows = np.full((count, len(COLUMNS)), -1, np.int64)
        self._at = {name: place for place, name in enumerate(COLUMNS)}

    def get(self, i: int, name: str) -> int:
        """One value of request i."""
        return int(self._rows[i, self._at[name]])

    def set(self, i: int, **values: int) -> None:
        """Some values of request i."""
        for name, value in values.items():
            self._rows[i, self._at[name]] = value

    def clear(self, i: int) -> None:
        """Request i begins again."""
        self._rows[i] = -1

    def table(self, decode_first: bool, keeps_token: bool) -> TransferTable:
        """All of it, in arrival order."""
        columns = {name: self._rows[:, place].copy() for name, place in self._at.items()}
        return TransferTable(**columns, decode_first=decode_first, keeps_token=keeps_token)

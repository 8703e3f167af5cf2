"""Clients that give requests up.

A client that has not got all of a request so long after it sent it (`Workload.abort_after_ns`) is gone: for it the
request has ended, and in a closed loop it sends the next. The engine hears of it `pickup_ns` later, as it hears of a
new request, or when the request gets there if that is later; it then takes the request out wherever it is. A token that
comes at the very moment comes too late.
"""

from collections.abc import Callable

from sim.event.agenda import Agenda
from sim.event.client import Client
from sim.workload.trace import NEVER_ABORTS


class Aborts:
    """Watches the requests of a client; `take_out(i, now_ns)` removes request i from wherever it is."""

    def __init__(self, agenda: Agenda, client: Client, take_out: Callable[[int, int], None]):
        assert client.workload.abort_after_ns is not None
        self._agenda = agenda
        self._client = client
        self._take_out = take_out
        self._patience_ns = client.workload.abort_after_ns.tolist()

    def arrived(self, i: int, now_ns: int) -> None:
        """Request i has just come to an engine, or was turned away."""
        patience_ns = self._patience_ns[i]
        if patience_ns >= NEVER_ABORTS or not self._client.awaits(i):
            return
        at_ns = self._client.arrival_ns(i) + patience_ns
        self._agenda.at(max(at_ns, now_ns), lambda then: self._give_up(i, then))

    def _give_up(self, i: int, now_ns: int) -> None:
        """It has waited long enough."""
        if not self._client.awaits(i):
            return
        self._client.aborted(i, now_ns)
        heard_ns = now_ns + self._client.pickup_ns
        if heard_ns > now_ns:
            self._agenda.at(heard_ns, lambda then: self._take_out(i, then))
        else:
            self._take_out(i, now_ns)

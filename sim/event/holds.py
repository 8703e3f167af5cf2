"""Blocks that are held between the rounds of a session, so that others do not take them meanwhile.

When a round has ended and another is to come, what of it is in the replica's prefix cache gets one more user: it is not
taken by others until the next round has been admitted, there or elsewhere, the session is over, or `hold_ns` have
passed. Held blocks count as used, so others wait, or are preempted; a replica that runs nothing and still finds no room
for the head of its queue gives up what it has held longest.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineSettings
from sim.event.agenda import Agenda
from sim.event.replica import Replica
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.base import Request
from sim.scheduler.find import make_scheduler
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import Workload


class Holding(Protocol):
    """What a scheduler needs for it."""

    def hold(self, request: Any) -> Any:
        """Keep what is in the cache of a request that has ended; what `let_go` wants."""

    def let_go(self, held: Any) -> None:
        """Keep it no longer."""


class Holds:
    """Who holds what: of each session that waits for its next round the replica, and what its scheduler holds."""

    def __init__(self, agenda: Agenda, replicas: Sequence[Replica], sessions: Sessions, hold_ns: int):
        self._agenda, self._replicas, self._sessions, self._hold_ns = agenda, replicas, sessions, hold_ns
        self._last = set(sessions.last.tolist())
        self._held: dict[int, tuple[int, Any]] = {}

    def ended(self, request: Request, replica: int, now_ns: int) -> None:
        """A round has finished there."""
        i = request.index
        if i in self._last:
            return
        self._held[i + 1] = replica, self._scheduler(replica).hold(request)
        self._agenda.at(now_ns + self._hold_ns, lambda then: self.over(i + 1))

    def over(self, i: int) -> None:
        """Round i has been admitted, or will not be, or did not come in time: nothing is held for it any more."""
        found = self._held.pop(i, None)
        if found is not None:
            self._scheduler(found[0]).let_go(found[1])

    def give_way(self, replica: Replica) -> None:
        """The replica gets nowhere: what it has held longest is free."""
        mine = next((i for i, (place, _) in self._held.items() if place == replica.index), None)
        if mine is not None:
            self.over(mine)

    def _scheduler(self, replica: int) -> Holding:
        return cast(Holding, self._replicas[replica].scheduler)


def check_holds(
    deployment: DeploymentConf,
    engine: EngineSettings,
    scheduler: str,
    groups: tuple[GroupShape, ...],
    workload: Workload,
) -> None:
    """Raise `ValueError` where `session_hold_s` is set and can do nothing, or is not simulated."""
    hold_s, key = deployment.session_hold_s, "deployment.session_hold_s"
    if not hold_s:
        return
    if not 0 < hold_s <= 1e9:
        raise ValueError(f"{key} wants seconds from 0 (nothing is held) to 1e9, got {hold_s:g}.")
    wrong = [
        (workload.sessions is None, "does nothing here: it wants a workload with sessions"),
        (not engine.prefix_caching, "does nothing here: it wants engine.enable_prefix_caching"),
        (bool(deployment.elastic.events) or deployment.elastic.mtbf_s > 0, "is not simulated with deployment.elastic"),
        (deployment.data_parallel > 1, "is not simulated with data-parallel ranks"),
        (
            engine.speculation is not None or not _holds(scheduler, engine, groups),
            "is simulated with vLLM's scheduler, first come first served, one group of layers and no drafts",
        ),
    ]
    for bad, sentence in wrong:
        if bad:
            raise ValueError(f"{key}={hold_s:g} {sentence}; leave it out.")


def _holds(scheduler: str, engine: EngineSettings, groups: tuple[GroupShape, ...]) -> bool:
    """Whether a scheduler, as these settings make it, can hold blocks."""
    return hasattr(make_scheduler(scheduler, engine, CacheShape(1, True, groups)), "hold")

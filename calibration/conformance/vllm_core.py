"""An engine core of vLLM under way in a scenario, in the form in which the real engine was recorded.

Three forms, chosen by the scenario's own configuration:

- one *step* at a time: schedule, run, process the output (`depth` 1, one group of blocks);
- the same with *groups* of blocks, where the core also makes an empty step after the last request ended;
- *calls* of the core's loop with a queue of batches in flight (`async_scheduling`, `pp`, `depth`): a call schedules one
  batch and completes the oldest, or only one of the two.
"""

from collections.abc import Iterator
from typing import Any

from calibration.conformance.summary import Summary
from calibration.conformance.vllm_connector import ScriptedConnector
from calibration.conformance.vllm_requests import Timetable
from sim.deployment.engine import EngineSettings
from sim.event.batch_queue import BatchQueue


PATIENCE = 1000
"""Calls without progress, over one per token of the unfinished requests, after which a run is stuck."""


class Core:
    """One instance: the queue of batches around a scheduler, its connector, and what has happened so far."""

    def __init__(
        self,
        config: dict[str, Any],
        settings: EngineSettings,
        scheduler: Any,
        timetable: Timetable,
        connector: ScriptedConnector | None,
    ):
        self.scheduler = scheduler
        self.queue = BatchQueue(scheduler, settings.batches_in_flight, not settings.profile.nonempty_batch_returns)
        self.calls = "depth" in config or settings.batches_in_flight > 1
        self.groups = "groups" in config
        self.one_table = len(config.get("groups") or "1") == 1
        self.drafts = bool(config.get("spec"))
        self.timetable = timetable
        self.connector = connector
        self.names = timetable.names
        self.summary = Summary()
        self._unfinished: dict[int, Any] = {}
        self._furthest: dict[str, int] = {}
        self._last: dict[int, int] = {}
        self._quiet = 0
        self._idle = 0

    @property
    def dead(self) -> bool:
        """Of a stuck core: nothing is even scheduled any more."""
        return self._idle >= PATIENCE

    def make(self, at: int) -> dict[str, Any] | None:
        """One step or call; None if there is nothing to do."""
        made = self.call(at) if self.calls else self.step(at)
        if made is not None:
            self.summary.count(made)
        return made

    def step(self, at: int) -> dict[str, Any] | None:
        """Arrivals, aborts, schedule, output; None if there is nothing to do."""
        made = self._arrive(at)
        flushes = self.groups and self.queue.unflushed
        if not (self.scheduler.unfinished or flushes or self.scheduler.watches):
            self.summary.end(made)
            return None
        self.queue.unflushed = False
        if self.connector is not None:
            self.connector.now = at
        batch = self.scheduler.schedule()
        self._decided(made, batch)
        self.queue.in_flight.append(batch)
        self._complete(made)
        if self.connector is not None:
            self._transfer(made, self.connector)
        return made

    def call(self, at: int) -> dict[str, Any] | None:
        """One turn of the core's loop; None if it blocks for input."""
        made = self._arrive(at)
        number = self.summary.batches
        issued = self.queue.issue()
        waits = self.queue.waits(issued)
        if issued is None and not waits:
            return None
        made["issued"] = None if issued is None else number
        made["completed"] = number + (issued is not None) - len(self.queue.in_flight) if waits else None
        if issued is not None:
            self._decided(made, issued)
        if waits:
            ended = self._abort(at, waiting=True)
            if ended:
                made["abort_mid"] = ended
            self._complete(made)
        else:
            made["free_end"] = self.scheduler.free_blocks
        return made

    def _arrive(self, at: int) -> dict[str, Any]:
        """What comes in before a step: requests, then aborts."""
        added = self.timetable.arrivals(at)
        for request in added:
            self._unfinished[request.index] = request
            self.scheduler.add(request)
        made: dict[str, Any] = {"step": at, "added": [self.names[request.index] for request in added]}
        ended = self._abort(at)
        if ended:
            made["abort"] = ended
        if added or ended:
            self._quiet = 0
        return made

    def _abort(self, at: int, waiting: bool = False) -> list[str]:
        """Abort those that are due and not ended yet."""
        found = []
        for request in self.timetable.aborts(at, waiting):
            if self._unfinished.pop(request.index, None) is not None:
                self.queue.abort(request)
                found.append(self.names[request.index])
        return found

    def _decided(self, made: dict[str, Any], batch: Any) -> None:
        """What one call of schedule() decided."""
        names, rows = self.names, batch.rows
        made["sched"] = [self._row(row) for row in rows]
        made["tok"] = sum(row.tokens for row in rows)
        made["pre"] = [names[request.index] for request in batch.preempted]
        made["run"], made["wait"], made["free"] = batch.running, batch.waiting, batch.free_blocks
        made["nb"] = [row.blocks[0] if self.one_table and row.blocks else row.blocks for row in rows]
        if not self.groups:
            made["ncb"] = self.scheduler.common_prefix_blocks()

    def _row(self, row: Any) -> list[Any]:
        """A row as it is recorded; of a ghost, the runner still has the counter of the row before."""
        index, computed = row.request.index, row.computed
        if row.kind == "x":
            computed = self._last[index]
        self._last[index] = computed
        return [self.names[index], row.tokens, computed, row.kind]

    def _complete(self, made: dict[str, Any]) -> None:
        """Process the oldest batch."""
        names = self.names
        batch, ended = self.queue.complete()
        made["out"] = [[names[request.index], tokens] for request, tokens in batch.delivered]
        made["fin"] = [names[request.index] for request in ended]
        if batch.dropped:
            made["drop"] = [names[request.index] for request in batch.dropped]
        if self.drafts:
            made["spec"] = [
                [names[row.request.index], row.drafts, row.accepted] for row in batch.rows if row.emits and row.drafts
            ]
        for request in ended:
            self._unfinished.pop(request.index, None)
        made["free_end"] = self.scheduler.free_blocks

    def _transfer(self, made: dict[str, Any], connector: ScriptedConnector) -> None:
        """What the scheduler told the connector in a step, and what that reports at its end."""
        names, transfers = self.names, self.scheduler.transfers
        made["xs"] = [
            [names[request.index], tokens, blocks[0] if self.one_table else blocks]
            for request, tokens, blocks in connector.told
        ]
        made["remote"] = sum(request.loads for request in transfers.loading.values())
        if connector.dropped:
            made["dropped"] = [names[request.index] for request in connector.dropped]
        connector.told, connector.dropped = [], []
        reports = connector.report(self.scheduler)
        for key in ("recv", "sent", "fail", "err"):
            if key in reports or key in ("recv", "sent"):
                made[key] = [names[request.index] for request in reports.get(key, ())]
        if "inv" in reports:
            made["inv"] = reports["inv"]
        for request in reports.get("err", ()):
            self._unfinished.pop(request.index, None)
        made["held"] = [names[request.index] for request in transfers.held]
        made["free_end"] = self.scheduler.free_blocks
        if made["recv"] or made["sent"] or connector.open:
            self._quiet = 0

    def stalls(self, made: dict[str, Any]) -> bool:
        """Whether the run is stuck: for long no token has come out, and no request has got further than ever before."""
        self._idle = 0 if made.get("sched") else self._idle + 1
        if made.get("out") or made.get("fin") or self.timetable.open:
            self._quiet = 0
            self._furthest.clear()
            return False
        for name, tokens, computed, _ in made.get("sched", ()):
            if self._furthest.get(name, 0) < computed + tokens:
                self._furthest[name] = computed + tokens
                self._quiet = 0
        self._quiet += 1
        if self._quiet < PATIENCE:
            return False
        return self._quiet > PATIENCE + sum(request.known for request in self._unfinished.values())


class Run:
    """One instance alone."""

    def __init__(self, core: Core):
        self.core = core

    def steps(self) -> Iterator[dict[str, Any]]:
        """Step after step until nothing is left to do, or nothing will ever be done."""
        core = self.core
        at = 0
        stuck = False
        while not stuck:
            made = core.make(at)
            if made is None:
                following = core.timetable.next_arrival
                if following is None:
                    break
                at = max(at, following)
                continue
            yield made
            stuck = core.stalls(made)
            at += 1
        yield {"summary": core.summary.result(stuck) | {"dead": stuck and core.dead}}


class Turns:
    """A prefill and a decode instance that take turns; `requests` as they arrive at the first."""

    def __init__(self, prefill: Core, decode: Core, requests: list[dict[str, Any]], hop: int):
        self.prefill, self.decode = prefill, decode
        self.requests = requests
        self.hop = hop
        self._prefilled: dict[str, Any] = {}
        assert prefill.connector is not None
        self._connector = prefill.connector

    def steps(self) -> Iterator[dict[str, Any]]:
        """Turn after turn: the prefill instance, then the decode instance."""
        at = 0
        stuck = False
        while not stuck:
            quiet = []
            for name, core in (("P", self.prefill), ("D", self.decode)):
                made = core.make(at)
                if made is None:
                    continue
                self._hand_over(name, made, at)
                yield {**made, "inst": name}
                quiet.append(core.stalls(made))
            if quiet:
                stuck = all(quiet)
                at += 1
                continue
            arrivals = [core.timetable.next_arrival for core in (self.prefill, self.decode)]
            due = [step for step in arrivals if step is not None]
            if not due:
                break
            at = max(at, min(due))
        sides = {"P": self.prefill.summary.short(), "D": self.decode.summary.short()}
        dead = stuck and self.prefill.dead and self.decode.dead
        yield {"summary": {**sides, "stuck": stuck, "dead": dead}}

    def _hand_over(self, name: str, made: dict[str, Any], at: int) -> None:
        """What one side did that the other one hears of."""
        if name == "D":
            for request in made["recv"]:
                self._connector.sent_at(self._prefilled[request], at + 1)
            return
        for request in self._connector.kept:
            given = self.requests[request.index]
            self._prefilled[given["id"]] = request
            part = {"do": "decode", "recv": given["recv"]}
            self.decode.timetable.append({**given, "arrival_step": at + 1 + self.hop, "kv": part})
        self._connector.kept = []

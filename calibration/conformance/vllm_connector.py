"""The KV connector of a recorded vLLM scenario: what its requests can have from elsewhere, and when transfers end.

Time is the step. A load that begins in step t with `recv` d is reported with the output of the first step from t + d on
that is made; a request that ends on the prefill side in step f with `send` e is reported as read from f + e on. Several
in one step: those due first, then those begun first.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from calibration.conformance.scenario import Scenario, is_count, refuse
from sim.memory.cache import KVCache
from sim.scheduler.hooks import NOTHING, External
from sim.scheduler.vllm import RowBatching, RowRequest


MODES = ("pull", "storage")
POLICIES = ("fail", "recompute")
ROLES = {
    "prefill": ("send",),
    "decode": ("recv", "fail_at", "fail_req", "undetermined"),
    "sync": ("ext",),
}
"""What a request may have in `kv`, by what it does there."""


def check_connector(scenario: Scenario) -> None:
    """`Malformed` for a connector, or a request's part in it, that is none."""
    connector = scenario.config.get("connector")
    if connector is None:
        return
    if (
        not isinstance(connector, dict)
        or connector.get("mode") not in MODES
        or connector.get("policy", "fail") not in POLICIES
    ):
        wanted = f"null or a mode ({', '.join(MODES)}) and perhaps a policy ({', '.join(POLICIES)})"
        raise refuse(scenario, "config.connector", wanted, connector)
    for request in scenario.requests:
        kv = request.get("kv")
        if kv is None:
            continue
        if not isinstance(kv, dict) or kv.get("do") not in ROLES:
            raise refuse(scenario, f"kv of request {request['id']}", f"null or do, one of {', '.join(ROLES)}", kv)
        for key in set(kv) - {"do"}:
            if key not in ROLES[kv["do"]]:
                wanted = f"only what {kv['do']} has ({', '.join(ROLES[kv['do']])})"
                raise refuse(scenario, f"kv of request {request['id']}", wanted, kv)
            if not (is_count(kv[key]) or (key == "fail_req" and isinstance(kv[key], bool))):
                raise refuse(scenario, f"kv.{key} of request {request['id']}", "a whole number from 0", kv[key])


class ScriptedConnector:
    """Follows the `kv` of a scenario's requests (`sim.scheduler.hooks.Connector`).

    `requests` by index; more may come. `now` is the step under way. Since they were last emptied: who was `told` to
    have blocks for how many tokens from elsewhere, and which of them have no content yet, per group; who ended before
    its KV was asked for (`dropped`); whose blocks are `kept`.
    """

    def __init__(self, requests: list[dict[str, Any]], config: dict[str, Any]):
        self.fails = True
        self.recomputes = config.get("policy") == "recompute"
        self.now = 0
        self.told: list[tuple[RowRequest, int, list[list[int]]]] = []
        self.dropped: list[RowRequest] = []
        self.kept: list[RowRequest] = []
        self.cache: KVCache | None = None
        self._requests = requests
        self._asked: Counter[int] = Counter()
        self._pulled: dict[int, list[int]] = {}
        self._due_in: list[tuple[int, int, RowRequest]] = []
        self._due_out: list[tuple[int, int, RowRequest]] = []
        self._begun = 0

    def look_up(self, request: RowRequest, local_tokens: int) -> External | None:
        """A marked request loads the rest of its prompt, once; storage has whole blocks, whenever it is asked."""
        part = self._part(request)
        if part.get("do") not in ("sync", "decode"):
            return NOTHING
        if part["do"] == "sync":
            assert self.cache is not None
            size = self.cache.groups[0].block_size
            stored = min(part["ext"], request.prompt - 1) // size * size
            return External(max(0, stored - local_tokens))
        self._asked[request.index] += 1
        if self._asked[request.index] <= part.get("undetermined", 0):
            return None
        if request.index in self._pulled or request.prompt <= local_tokens:
            return NOTHING
        return External(request.prompt - local_tokens, loads=True)

    def allocated(self, request: RowRequest, external: External, blocks: Sequence[int]) -> None:
        """Note which blocks are to be filled; a load is due some steps later."""
        assert self.cache is not None
        hashes = self.cache.pool.hash_of
        unfilled = [[block for block in table if block and hashes[block] is None] for table in request.tables]
        self.told.append((request, external.tokens, unfilled))
        if not external.loads:
            return
        self._pulled[request.index] = unfilled[0]
        part = self._part(request)
        if part.get("recv") is not None:
            self._due_in.append((self.now + part["recv"], self._count(), request))

    def keeps(self, request: RowRequest, finished: bool) -> bool:
        """A finished prefill is held; a decode that never began to pull is told to the other side."""
        part = self._part(request)
        if part.get("do") == "decode" and request.index not in self._pulled:
            self.dropped.append(request)
        if part.get("do") != "prefill" or not finished:
            return False
        if part.get("send") is not None:
            self.sent_at(request, self.now + max(part["send"], 1))
        self.kept.append(request)
        return True

    def queued(self, request: RowRequest) -> None:
        """Nothing happens before it is looked up."""

    def preempted(self, request: RowRequest) -> None:
        """Nobody wants what it loses."""

    def sent_at(self, request: RowRequest, step: int) -> None:
        """The blocks of a request that is held have been read at a step."""
        self._due_out.append((step, self._count(), request))

    @property
    def open(self) -> bool:
        """Whether a report is still to come."""
        return bool(self._due_in or self._due_out)

    def report(self, scheduler: RowBatching) -> dict[str, Any]:
        """Report what is due in the step under way: fields of the trace, with requests for names."""
        received, self._due_in = _due(self._due_in, self.now)
        sent, self._due_out = _due(self._due_out, self.now)
        made: dict[str, Any] = {"recv": received, "sent": sent}
        invalid, failed = [], []
        for request in received:
            part = self._part(request)
            first = 0 if part.get("fail_req") else part.get("fail_at")
            if first is not None:
                invalid += self._pulled[request.index][first:]
            if part.get("fail_req"):
                failed.append(request)
        if invalid:
            made["inv"] = sorted(invalid)
        if failed:
            made["fail"] = failed
        errors = scheduler.transfers.report(received, sent, set(invalid), failed)
        if errors:
            made["err"] = errors
        return made

    def _part(self, request: RowRequest) -> dict[str, Any]:
        return self._requests[request.index].get("kv") or {}

    def _count(self) -> int:
        self._begun += 1
        return self._begun


def _due(entries: list[tuple[int, int, RowRequest]], now: int) -> tuple[list[RowRequest], list]:
    """The requests that are due, in order, and the entries that are not."""
    ready = sorted(entry[:2] + (entry[2].index,) for entry in entries if entry[0] <= now)
    by_index = {entry[2].index: entry[2] for entry in entries}
    return [by_index[index] for _, _, index in ready], [entry for entry in entries if entry[0] > now]

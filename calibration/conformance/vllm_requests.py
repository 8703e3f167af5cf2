"""The requests of a vLLM scenario, and the model runner as far as the scheduler sees it: drafts, acceptance, stops."""

from typing import Any

from calibration.conformance.scenario import Scenario, is_count, is_whole, output_base, prompt_tokens, refuse, token_ids
from sim.scheduler.base import Request


def check_requests(scenario: Scenario) -> None:
    """`Malformed` for a request whose optional keys hold something else than they should."""
    for request in scenario.requests:
        for key in ("abort_step", "abort_mid", "stop_after"):
            value = request.get(key)
            if value is not None and not is_count(value):
                raise refuse(scenario, f"{key} of request {request['id']}", "a whole number from 0", value)
        for key in ("accept", "draft_len"):
            pattern = request.get(key, [0])
            if not isinstance(pattern, list) or not pattern or not all(map(is_count, pattern)):
                raise refuse(scenario, f"{key} of request {request['id']}", "a list of whole numbers from 0", pattern)
        priority = request.get("priority", 0)
        if not is_whole(priority):
            raise refuse(scenario, f"priority of request {request['id']}", "a whole number", priority)


class RecordedProgress:
    """How far rows got when the engine was recorded (`sim.scheduler.hooks.Progress`).

    `accept` is a cycle over a request's rows that verify drafts, `draft_len` one over its proposals (n-gram only; EAGLE
    proposes k for every row, also after an unfinished prefill), `stop_after` the output that is a stop token.
    """

    foreseen = False

    def __init__(self, requests: list[dict[str, Any]], spec: dict[str, Any] | None, max_model_len: int):
        self._requests = requests
        self._most = spec["k"] if spec else 0
        self._always = spec is not None and spec["method"] != "ngram"
        self._max_model_len = max_model_len
        self._proposed = [0] * len(requests)
        self._verified = [0] * len(requests)

    def drafts(self, request: Request, known_tokens: int, emitted: int) -> int:
        """Drafts proposed after a row that emitted this many tokens."""
        if self._always or not self._most:
            return self._most
        if not emitted:
            return 0
        pattern = self._requests[request.index].get("draft_len") or [self._most]
        number = self._proposed[request.index]
        self._proposed[request.index] = number + 1
        return max(0, min(pattern[number % len(pattern)], self._most, self._max_model_len - known_tokens))

    def accepted(self, request: Request, drafts: int) -> int:
        """How many of a row's drafts were accepted."""
        pattern = self._requests[request.index].get("accept") or [0]
        number = self._verified[request.index]
        self._verified[request.index] = number + 1
        return min(pattern[number % len(pattern)], drafts)

    def stops(self, request: Request, emitted: int) -> bool:
        """Whether this output is the stop token."""
        return self._requests[request.index].get("stop_after") == emitted


class Timetable:
    """Who arrives and who is aborted, by step; `requests` in order of arrival."""

    def __init__(self, requests: list[dict[str, Any]], request_type: type):
        self.requests = requests
        self.names = [request["id"] for request in requests]
        self._type = request_type
        self._made: list[Any] = []
        steps: list[tuple[int, int, bool]] = []
        for index, request in enumerate(self.requests):
            if request.get("abort_step") is not None:
                steps.append((request["abort_step"], index, False))
            if request.get("abort_mid") is not None:
                steps.append((request["abort_mid"], index, True))
        self._aborts = sorted(steps)

    def append(self, request: dict[str, Any]) -> None:
        """One more arrival, not before those that are known."""
        self.requests.append(request)
        self.names.append(request["id"])

    @property
    def next_arrival(self) -> int | None:
        """The step of the next request, None after the last."""
        made = len(self._made)
        return self.requests[made]["arrival_step"] if made < len(self.requests) else None

    @property
    def open(self) -> bool:
        """Whether anything is still to come."""
        return bool(self._aborts) or len(self._made) < len(self.requests)

    def arrivals(self, step: int) -> list[Any]:
        """The requests that are there before this step's schedule."""
        found = []
        while (due := self.next_arrival) is not None and due <= step:
            given = self.requests[len(self._made)]
            request = self._type(
                len(self._made), prompt_tokens(given), given["max_tokens"], token_ids(given), given.get("priority", 0)
            )
            request.output_base = output_base(given)
            self._made.append(request)
            found.append(request)
        return found

    def aborts(self, step: int, waiting: bool = False) -> list[Any]:
        """Requests to abort before this step's schedule, or while it waits for its output."""
        now = [entry for entry in self._aborts if entry[0] < step or (entry[0] == step and entry[2] == waiting)]
        ready = [entry for entry in now if entry[1] < len(self._made)]
        if not ready:
            return []
        self._aborts = [entry for entry in self._aborts if entry not in ready]
        return [self._made[index] for _, index, _ in ready]

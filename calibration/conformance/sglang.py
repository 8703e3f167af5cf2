"""Plays an SGLang scenario in the form in which the real engine was recorded: one object per turn of its loop."""

from collections.abc import Iterator
from typing import Any

from calibration.conformance.keys import Keys
from calibration.conformance.scenario import (
    Scenario,
    Unsupported,
    is_count,
    is_whole,
    output_base,
    prompt_tokens,
    refuse,
    require,
    token_ids,
)
from sim.deployment.settings import load_engine
from sim.scheduler.options import read_options
from sim.scheduler.sglang import POLICIES, Options, SglangBatch, SglangRequest, SglangScheduler


EOS = -1
"""The token that ends a request before its length."""

CONFIG = ("page_size", "pool_tokens", "max_running_requests", "context_len", "max_prefill_tokens")
OPTIONS = {
    "conservativeness": "schedule_conservativeness",
    "mixed_chunk": "enable_mixed_chunk",
    "max_prefill_tokens": "max_prefill_tokens",
    "disable_radix": "disable_radix_cache",
    "priority": "enable_priority_scheduling",
    "low_first": "schedule_low_priority_values_first",
    "prio_threshold": "priority_scheduling_preemption_threshold",
    "disable_prio_preemption": "disable_priority_preemption",
    "retraction_policy": "retraction_policy",
}
OF_PRIORITY = ("schedule_low_priority_values_first", "disable_priority_preemption")
SHARED = (
    "page_size",
    "pool_tokens",
    "max_running_requests",
    "context_len",
    "chunked_prefill_size",
    "policy",
    "overlap",
)
SWITCHES = ("overlap", "mixed_chunk", "disable_radix", "priority", "low_first", "disable_prio_preemption")
KEYS = Keys(
    config={*CONFIG, *OPTIONS, *SHARED, *SWITCHES},
    request=("max_new_tokens", "ignore_eos", "eos_len"),
)
PATIENCE = 10_000
"""Turns without a token, with requests unfinished and none to come, after which a run is stuck."""


def play(scenario: Scenario, version: str) -> Iterator[dict[str, Any]]:
    """The turns that Headway makes of a scenario, as they would be recorded, and last `{"summary": ...}`.

    `Unsupported` for settings that this scheduler does not know; `Malformed` for a scenario that lacks some.
    """
    require(scenario, CONFIG, ("max_new_tokens",))
    check(scenario)
    return Run(scenario, make(scenario.config, version)).steps()


def check(scenario: Scenario) -> None:
    """`Malformed` for a scenario of SGLang whose optional keys hold something else than they should."""
    config = scenario.config
    for key in SWITCHES:
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise refuse(scenario, f"config.{key}", "true or false", config[key])
    for key in ("chunked_prefill_size", "prio_threshold"):
        if config.get(key) is not None and not is_whole(config[key]):
            raise refuse(scenario, f"config.{key}", "a whole number", config[key])
    scale = config.get("conservativeness")
    if scale is not None and not (isinstance(scale, int | float) and not isinstance(scale, bool) and scale >= 0):
        raise refuse(scenario, "config.conservativeness", "a number from 0", scale)
    for key in ("policy", "retraction_policy"):
        if not isinstance(config.get(key) or "", str):
            raise refuse(scenario, f"config.{key}", "a text", config[key])
    if config["page_size"] > config["pool_tokens"]:
        most = f"at most config.pool_tokens={config['pool_tokens']}"
        raise refuse(scenario, "config.page_size", most, config["page_size"])
    for request in scenario.requests:
        about = f"of request {request['id']}"
        if not is_whole(request.get("priority", 0)):
            raise refuse(scenario, f"priority {about}", "a whole number", request["priority"])
        if request.get("ignore_eos") is not None and not isinstance(request["ignore_eos"], bool):
            raise refuse(scenario, f"ignore_eos {about}", "true or false", request["ignore_eos"])
        ends = request.get("eos_len")
        if ends is not None and (not is_count(ends) or ends == 0):
            raise refuse(scenario, f"eos_len {about}", "a whole number from 1", ends)


def make(config: dict[str, Any], version: str) -> SglangScheduler:
    """The scheduler of a recorded configuration."""
    unknown = config.keys() - OPTIONS.keys() - set(SHARED)
    if unknown:
        raise Unsupported(f"the setting {min(unknown)} is not simulated")
    settings = {name: config[key] for key, name in OPTIONS.items() if config.get(key) is not None}
    if settings.get("retraction_policy") != "priority":
        settings.pop("retraction_policy", None)
    if not config.get("priority"):
        settings = {name: value for name, value in settings.items() if name not in OF_PRIORITY}
    chunk = config.get("chunked_prefill_size")  # as its server argument: not above 0, prompts are not cut
    policy = config.get("policy") or "fcfs"
    if policy not in POLICIES:
        raise Unsupported(f"the policy {policy} is not simulated")
    try:
        options = read_options(Options, settings)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    return SglangScheduler(
        config["pool_tokens"],
        config["page_size"],
        max_running=config["max_running_requests"],
        context_len=config["context_len"],
        chunk=chunk if chunk is not None and chunk > 0 else None,
        policy=policy,
        overlap=bool(config.get("overlap")),
        options=options,
        rules=load_engine("sglang", version).profile.sglang,
    )


class Run:
    """One scenario under way."""

    def __init__(self, scenario: Scenario, scheduler: SglangScheduler):
        self.scheduler = scheduler
        self.coming = scenario.arrivals()
        self.sent = 0
        self.pending: SglangBatch | None = None
        self.summary = Summary()
        self._quiet = 0

    def steps(self) -> Iterator[dict[str, Any]]:
        """Turn after turn until all requests have ended and the loop has seen that nothing is left."""
        at, stuck = self.coming[0]["arrival_step"], False
        while not stuck:
            made = self.turn(at)
            self.summary.count(made)
            yield made
            at += 1
            if self.idle:
                if self.sent == len(self.coming):
                    break
                at = max(at, self.coming[self.sent]["arrival_step"])
            self._quiet = 0 if made["nout"] or made["ext"] or self.sent < len(self.coming) else self._quiet + 1
            stuck = self._quiet > PATIENCE
        yield self.summary.result(stuck)

    def turn(self, at: int) -> dict[str, Any]:
        """Arrivals, schedule, launch, result: of this batch, with overlap of the one before."""
        scheduler = self.scheduler
        made: dict[str, Any] = {"step": at, "added": self.arrive(at)}
        batch = scheduler.schedule()
        self.idle = batch.idle
        made["mode"] = batch.mode
        made["ext"] = [[str(row.request.name), row.tokens, row.computed, row.kind] for row in batch.rows]
        made["dec"] = [request.name for request in batch.decoding.values()]
        made |= self.state("")
        made["run"], made["wait"], made["full"] = batch.running, batch.waiting, int(scheduler.full)
        if made["dec"]:
            made["dctx"] = batch.decode_sum
        preempted = [request.name for request in batch.preempted if request not in batch.retracted]
        for key, names in (("retract", [request.name for request in batch.retracted]), ("preempt", preempted)):
            if names:
                made[key] = names
        if batch.chunked is not None:
            made["chunked"] = batch.chunked.name
        due = batch
        if scheduler.overlap:
            due = self.pending or batch
            self.pending = batch if batch.tokens else None
        made["nout"], made["fin"] = 0, []
        if due is not batch or not scheduler.overlap or batch.idle:
            ended = scheduler.complete(due)
            made["nout"] = due.emitting - len(due.dropped)
            made["fin"] = [request.name for request in ended]
        return made | self.state("_end")

    def arrive(self, at: int) -> list[str]:
        """Requests that have come by this turn."""
        names = []
        while self.sent < len(self.coming) and self.coming[self.sent]["arrival_step"] <= at:
            given = self.coming[self.sent]
            most = given["max_new_tokens"]
            ends = None if given.get("ignore_eos") else given.get("eos_len")
            request = SglangRequest(
                self.sent,
                prompt_tokens(given),
                most if ends is None else min(most, ends),
                token_ids(given),
                given.get("priority", 0),
            )
            request.output_base = output_base(given)
            request.name = given["id"]
            request.last_token_id = EOS if ends is not None and ends <= most else None
            self.scheduler.enter(request, most, bool(given.get("ignore_eos")))
            names.append(given["id"])
            self.sent += 1
        return names

    def state(self, when: str) -> dict[str, Any]:
        """The pool and the new-token ratio as recorded."""
        scheduler = self.scheduler
        return {
            f"avail{when}": scheduler.pool.free,
            f"evict{when}": scheduler.pool.tree.evictable,
            f"ntr{when}": round(scheduler.ratio.value, 9),
        }


class Summary:
    """What a trace says of the whole run, counted from its turns."""

    def __init__(self) -> None:
        self.steps = self.prefill_tokens = self.decode_tokens = 0
        self.retractions: dict[str, int] = {}
        self.first_hit: dict[str, int] = {}
        self.ends: dict[str, int] = {}

    def count(self, turn: dict[str, Any]) -> None:
        """One turn, as it is recorded."""
        self.steps += 1
        self.prefill_tokens += sum(row[1] for row in turn["ext"])
        self.decode_tokens += len(turn["dec"])
        for name in turn.get("retract", ()):
            self.retractions[name] = self.retractions.get(name, 0) + 1
        for name, _, hit, kind in turn["ext"]:
            if kind == "n" and hit:
                self.first_hit[name] = hit
        for name in turn["fin"]:
            self.ends[name] = turn["step"]

    def result(self, stuck: bool) -> dict[str, Any]:
        """The line that ends a trace."""
        return {
            "summary": {
                "stuck": stuck,
                "steps": self.steps,
                "prefill_tokens": self.prefill_tokens,
                "decode_tokens": self.decode_tokens,
                "retractions": self.retractions,
                "first_hit": self.first_hit,
                "finish_step": self.ends,
            }
        }

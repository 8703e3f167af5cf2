"""Plays a vLLM scenario with the row scheduler, in the form in which the real engine was recorded.

Three forms, chosen by the scenario's own configuration:

- one *step* at a time: schedule, run, process the output (`depth` 1, one group of blocks);
- the same with *groups* of blocks, where the core also makes an empty step after the last request ended;
- *calls* of the core's loop with a queue of batches in flight (`async_scheduling`, `pp`, `depth`): a call schedules one
  batch and completes the oldest, or only one of the two.

Source: docs/conformance.md describes the files.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from calibration.conformance.keys import Keys
from calibration.conformance.scenario import Scenario, Unsupported, is_count, prompt_tokens, refuse, require
from calibration.conformance.summary import Summary
from calibration.conformance.vllm_requests import RecordedProgress, Timetable, check_requests
from sim.deployment.engine import EngineProfile, EngineSettings
from sim.deployment.settings import load_engine
from sim.event.batch_queue import BatchQueue
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.hooks import Drafting
from sim.scheduler.vllm import make_rows


CONFIG = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_gpu_blocks")
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
KEYS = Keys(
    config=(
        *(*CONFIG, *SWITCHES, "policy", "long_prefill_token_threshold", "spec", "watermark", "pp", "depth", "groups"),
        *("retention", "connector", "runner", "inst"),
    ),
    request=(
        *("max_tokens", "abort_step", "abort_mid", "stop_after", "accept", "draft_len"),
        *("kv", "recv", "inst"),
    ),
    inner={"spec": ("method", "k"), "groups": ("type", "bs", "window")},
)
"""`runner`, `inst`, `kv`, `recv`: recordings have them, for the real engine's driver and for KV connectors."""

MOST_BLOCKS = 1 << 24
MOST_IN_FLIGHT = 256
KINDS = ("full", "mla", "swa", "chunk", "mamba")
WINDOWED = ("swa", "chunk")
PATIENCE = 1000
"""Calls without progress, over one per token of the unfinished requests, after which a run is stuck."""


def play(scenario: Scenario, version: str) -> Iterator[dict[str, Any]]:
    """The steps or calls that Headway makes of a scenario, as they would be recorded, and last `{"summary": ...}`.

    `Unsupported` for KV connectors, and for what the version does not do; `Malformed` for a scenario without the keys
    this engine needs.
    """
    config = scenario.config
    if config.get("connector") or "config_p" in scenario.content:
        raise Unsupported("KV connectors are not simulated yet")
    check(scenario)
    spec = config.get("spec") or None
    settings = settings_of(config, profile_of(config, version))
    profile = settings.profile
    if settings.async_scheduling and not profile.async_by_default:
        raise Unsupported(f"async scheduling of vLLM {version} is not simulated")
    rows = make_rows(
        settings,
        shape_of(config, settings),
        progress=RecordedProgress(scenario.arrivals(), spec, settings.max_model_len),
        drafting=Drafting(spec["k"], spec["method"] != "ngram") if spec else None,
    )
    return Run(scenario, settings, rows).steps()


def check(scenario: Scenario) -> None:
    """`Malformed` for a scenario of vLLM that lacks something or holds something unknown."""
    config = scenario.config
    require(scenario, CONFIG, ("max_tokens",))
    check_requests(scenario)
    for request in scenario.requests:
        if prompt_tokens(request) > config["max_model_len"]:
            wanted = f"of at most config.max_model_len={config['max_model_len']} tokens"
            raise refuse(scenario, f"the prompt of request {request['id']}", wanted, prompt_tokens(request))
    if config["num_gpu_blocks"] > MOST_BLOCKS:
        raise refuse(scenario, "config.num_gpu_blocks", f"at most {MOST_BLOCKS:,}", config["num_gpu_blocks"])
    for key in SWITCHES:
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise refuse(scenario, f"config.{key}", "true or false", config[key])
    for key in ("pp", "depth"):
        if config.get(key) is not None and not (is_count(config[key]) and 1 <= config[key] <= MOST_IN_FLIGHT):
            raise refuse(scenario, f"config.{key}", f"a whole number from 1 to {MOST_IN_FLIGHT}", config[key])
    threshold = config.get("long_prefill_token_threshold")
    if threshold is not None and not is_count(threshold):
        raise refuse(scenario, "config.long_prefill_token_threshold", "a whole number from 0", threshold)
    watermark = config.get("watermark")
    if watermark is not None and not (
        isinstance(watermark, int | float) and not isinstance(watermark, bool) and 0 <= watermark < 1
    ):
        raise refuse(scenario, "config.watermark", "null or a number from 0 to below 1", watermark)
    if config.get("policy", "fcfs") not in ("fcfs", "priority"):
        raise refuse(scenario, "config.policy", "fcfs or priority", config["policy"])
    spec = config.get("spec")
    if spec is not None and not (
        isinstance(spec, dict) and spec.get("method") in ("eagle", "ngram") and is_count(spec.get("k"))
    ):
        raise refuse(scenario, "config.spec", "null or a method, eagle or ngram, and k drafts", spec)
    groups = config.get("groups", [])
    if not isinstance(groups, list) or not all(map(is_group, groups)) or ("groups" in config and not groups):
        raise refuse(scenario, "config.groups", f"a list of type ({', '.join(KINDS)}), bs and window", groups)


def is_group(group: Any) -> bool:
    """Whether a value describes a group of blocks."""
    if (
        not isinstance(group, dict)
        or group.get("type") not in KINDS
        or not is_count(group.get("bs"))
        or not group["bs"]
    ):
        return False
    window = group.get("window")
    if window is None:
        return group["type"] not in WINDOWED
    return is_count(window) and (window > 0 or group["type"] not in WINDOWED)


def profile_of(config: dict[str, Any], version: str) -> EngineProfile:
    """The version's facts, with how densely a sliding window registers its blocks as recorded (0.33)."""
    profile = load_engine("vllm", version).profile
    if "retention" in config and profile.cache.registration != "all":
        if config["retention"] not in (0, None):
            raise Unsupported(f"a retention interval of {config['retention']} tokens is not simulated")
        kept = "aligned" if config["retention"] is None else "sparse"
        return replace(profile, cache=replace(profile.cache, registration=kept))
    return profile


def settings_of(config: dict[str, Any], profile: EngineProfile) -> EngineSettings:
    """The engine settings that a recorded configuration stands for."""
    asynchronous, pipeline = bool(config.get("async_scheduling")), config.get("pp") or 1
    depth = max(pipeline, 2) if asynchronous else pipeline
    if asynchronous and profile.async_adds_depth:
        depth = pipeline + 1
    return EngineSettings(
        name="vllm",
        version=profile.version,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        block_size=config["block_size"],
        gpu_memory_utilization=0.9,
        prefix_caching=bool(config.get("enable_prefix_caching")),
        chunked_prefill=config.get("enable_chunked_prefill", True),
        async_scheduling=asynchronous,
        reserve_full_input=profile.reserve_full_input,
        graph_mode="NONE",
        graph_sizes=(),
        kv_bytes_per_element=2.0,
        profile=profile,
        batches_in_flight=config.get("depth") or depth,
        scheduling_policy=config.get("policy", "fcfs"),
        long_prefill_token_threshold=config.get("long_prefill_token_threshold") or 0,
        scheduler_options={"watermark": config["watermark"]} if config.get("watermark") else {},
        pipeline_parallel=pipeline,
    )


def shape_of(config: dict[str, Any], settings: EngineSettings) -> CacheShape:
    """The recorded pool: one block is the null block."""
    groups = config.get("groups") or [{"type": "full", "bs": config["block_size"]}]
    return CacheShape(
        config["num_gpu_blocks"] - 1,
        settings.prefix_caching,
        tuple(GroupShape(group["type"], group["bs"], group.get("window")) for group in groups),
    )


class Run:
    """One scenario under way: the queue of batches around a scheduler, and what has happened so far."""

    def __init__(self, scenario: Scenario, settings: EngineSettings, scheduler: Any):
        config = scenario.config
        self.scheduler = scheduler
        self.queue = BatchQueue(scheduler, settings.batches_in_flight, not settings.profile.nonempty_batch_returns)
        self.calls = "depth" in config or settings.batches_in_flight > 1
        self.groups = "groups" in config
        self.one_table = len(config.get("groups") or "1") == 1
        self.drafts = bool(config.get("spec"))
        self.timetable = Timetable(scenario, scheduler.request_type)
        self.names = self.timetable.names
        self.summary = Summary()
        self._unfinished: dict[int, Any] = {}
        self._furthest: dict[str, int] = {}
        self._last: dict[int, int] = {}
        self._quiet = 0

    def steps(self) -> Iterator[dict[str, Any]]:
        """Step after step until nothing is left to do, or nothing will ever be done."""
        make = self.call if self.calls else self.step
        at = 0
        stuck = False
        while not stuck:
            made = make(at)
            if made is None:
                following = self.timetable.next_arrival
                if following is None:
                    break
                at = max(at, following)
                continue
            self.summary.count(made)
            yield made
            stuck = self._stalls(made)
            at += 1
        yield self.summary.result(stuck)

    def step(self, at: int) -> dict[str, Any] | None:
        """Arrivals, aborts, schedule, output; None if there is nothing to do."""
        made = self._arrive(at)
        if not self.scheduler.unfinished and not (self.groups and self.queue.unflushed):
            self.summary.end(made)
            return None
        self.queue.unflushed = False
        batch = self.scheduler.schedule()
        self._decided(made, batch)
        self.queue.in_flight.append(batch)
        self._complete(made)
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

    def _stalls(self, made: dict[str, Any]) -> bool:
        """Whether the run is stuck: for long no token has come out, and no request has got further than ever before."""
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

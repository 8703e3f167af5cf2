"""What a lane may be asked to run: the job, its checks, its status, and which requests it can serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.deployment.graphs import MODES, full_graph_top
from sim.memory.shape import GroupShape
from sim.units import to_ns
from sim.workload.trace import Workload


class Status(IntEnum):
    """How a job ended."""

    OK = 0
    NEEDS_EXACT = 1
    TOO_MANY_SLOTS = 2
    ITERATIONS_USED_UP = 3
    BAD_PRICE = 4
    CLOCK_OVERFLOW = 5


HELP = {
    Status.OK: "the job ran to its end",
    Status.NEEDS_EXACT: "the job needs a rule that the compiled step does not have: run it with the exact engine",
    Status.TOO_MANY_SLOTS: "more requests decode at once than `slots` allows: raise `slots` or leave it out",
    Status.ITERATIONS_USED_UP: "the job did not end within `max_iterations`: raise it",
    Status.BAD_PRICE: "the price of a step is negative or not a number: check the price tables and the length terms",
    Status.CLOCK_OVERFLOW: "the run lasts longer than 2**53 ns (104 days), beyond which the clock is not exact",
}
"""A sentence for each status."""

MAX_CLOCK_NS = 2**53


@dataclass(frozen=True, eq=False)
class LaneJob:
    """One serving simulation: a workload, an engine, a price table.

    - `arrival_ns`, `prompt_tokens`, `output_tokens`: axis `request`, arrivals not decreasing. With `concurrency` K
      (closed loop) request i is sent at the later of its arrival and the end of the (i - K + 1)-th request to end.
    - `pickup_ns` pass between sending a request and its arrival in the engine's queue.
    - `usable_blocks`: KV blocks of `block_size` tokens that requests can have (without the null block).
    - `graph_mode`, `graph_sizes`: as in `EngineSettings`. `table`: index of the price table.
    - `replicas` equal engines behind `router`.
    - `needs_exact`: why the wide engine must not run this job; empty if it may.
    """

    arrival_ns: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    usable_blocks: int
    block_size: int = 16
    concurrency: int | None = None
    reserve_full_input: bool = False
    graph_mode: str = "NONE"
    graph_sizes: tuple[int, ...] = ()
    table: int = 0
    pickup_ns: int = 0
    replicas: int = 1
    router: str = "round_robin"
    needs_exact: str = ""

    @property
    def full_graph_top(self) -> int:
        """The largest full graph of a batch that decodes, in tokens."""
        return full_graph_top(self.graph_mode, self.graph_sizes, self.max_num_seqs)


def lane_job(
    workload: Workload,
    settings: EngineSettings,
    usable_blocks: int,
    *,
    table: int = 0,
    replicas: int = 1,
    router: str = "round_robin",
    scheduler: str = "vllm",
    groups: Sequence[GroupShape] = (),
    data_parallel: int = 1,
    ffn_devices: int = 0,
) -> LaneJob:
    """The job of a workload on resolved engine settings. `needs_exact` is filled where the wide engine lacks a rule.

    `groups` of KV blocks that share `usable_blocks`; none is one of full attention.
    """
    threshold = settings.long_prefill_token_threshold
    reasons = (
        (scheduler != "vllm", f"engine.scheduler is {scheduler}"),
        (settings.prefill_context_parallel > 1, "ranks divide the tokens of every prefill"),
        (settings.pipeline_parallel > 1, f"there are {settings.pipeline_parallel} pipeline stages"),
        (data_parallel > 1, f"a replica has {data_parallel} data-parallel ranks"),
        (settings.speculation is not None, "rows verify drafts"),
        (ffn_devices > 0, f"feed-forward parts are on {ffn_devices} devices of their own"),
        (len(groups) > 1, f"{len(groups)} groups of layers share the KV blocks"),
        (any(group.kind not in ("full", "mla") for group in groups), "layers give back KV blocks, or keep states"),
        (settings.scheduling_policy != "fcfs", f"engine.scheduling_policy is {settings.scheduling_policy}"),
        (threshold > 0, f"engine.long_prefill_token_threshold is {threshold}"),
        (bool(settings.scheduler_options), "engine.scheduler_options are set"),
        (settings.batches_in_flight > 1, f"{settings.batches_in_flight} batches are in flight"),
        (workload.abort_after_ns is not None, "clients give requests up"),
        (workload.sessions is not None, "requests are rounds of sessions"),
        (workload.pools, "requests end with their prompt"),
        (workload.retrieval is not None, "something is retrieved before the prompt"),
        (settings.prefix_caching and workload.has_content, "prefixes are reused"),
        (not settings.chunked_prefill, "chunked prefill is off"),
        (settings.profile.api_door_s > 0.0, "the API server takes requests one at a time"),
    )
    return LaneJob(
        arrival_ns=workload.arrival_ns,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        concurrency=workload.concurrency,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        usable_blocks=usable_blocks,
        block_size=settings.block_size,
        reserve_full_input=settings.reserve_full_input,
        graph_mode=settings.graph_mode,
        graph_sizes=settings.graph_sizes,
        table=table,
        pickup_ns=to_ns(settings.profile.api_pickup_s),
        replicas=replicas,
        router=router,
        needs_exact=next((reason for holds, reason in reasons if holds), ""),
    )


def check_job(job: LaneJob, tables: int) -> None:
    """Raise `ValueError` for input that no engine could run."""
    count = len(job.arrival_ns)
    if not count or len(job.prompt_tokens) != count or len(job.output_tokens) != count:
        raise ValueError(
            "a job needs as many arrival_ns as prompt_tokens and output_tokens, at least one, got "
            f"{count}, {len(job.prompt_tokens)} and {len(job.output_tokens)}"
        )
    if np.any(np.diff(job.arrival_ns) < 0) or job.arrival_ns[0] < 0:
        raise ValueError("arrival_ns must be >= 0 and must not decrease: sort the requests by arrival")
    for name in ("prompt_tokens", "output_tokens"):
        smallest = int(getattr(job, name).min())
        if smallest < 1:
            raise ValueError(f"{name} must be at least 1, got {smallest}")
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "replicas"):
        if getattr(job, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(job, name)}")
    if job.concurrency is not None and job.concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, or None for an open loop, got {job.concurrency}")
    if job.graph_mode not in MODES:
        raise ValueError(f"graph_mode must be one of {', '.join(MODES)}, got {job.graph_mode!r}")
    if not 0 <= job.table < tables:
        raise ValueError(f"table must be an index of the {tables} price tables, got {job.table}")


def why_exact(job: LaneJob, served: np.ndarray) -> str:
    """Why only the exact engine can run this job; empty if the wide one can. `served`: from `servable`."""
    if job.needs_exact:
        return job.needs_exact
    if job.max_num_batched_tokens < job.max_num_seqs:
        return "max_num_batched_tokens is below max_num_seqs"
    if job.replicas > 1 and job.router != "round_robin":
        return f"the router is {job.router}"
    if job.replicas > 1 and job.concurrency is not None:
        return "a closed loop couples the replicas"
    if job.concurrency is not None and job.pickup_ns > 0 and not served.all():
        return "requests are rejected in a closed loop with a pick-up delay"
    return ""


def servable(job: LaneJob) -> tuple[np.ndarray, np.ndarray]:
    """Which requests can be served at all, and the tokens each emits, cut at `max_model_len`. Axis `request`.

    A prompt needs room for one more token, and all tokens but the last must fit in the cache.
    """
    prompt = job.prompt_tokens.astype(np.int64)
    outputs = np.minimum(job.output_tokens.astype(np.int64), job.max_model_len - prompt)
    needed = -(-(prompt + outputs - 1) // job.block_size)
    return (outputs >= 1) & (needed <= job.usable_blocks), outputs


def expected_steps(
    arrival_ns: np.ndarray, prompt: np.ndarray, outputs: np.ndarray, job: LaneJob, token_s: np.ndarray
) -> float:
    """Rough number of steps of one replica, to start the longest lanes first.

    Outputs over the batch that the arrival rate keeps up (a few rounds of Little's law, with `token_s[tokens]` as the
    step's duration), cut by seats, concurrency and cache, plus the prefills' share of the budget.
    """
    count = len(arrival_ns)
    if not count:
        return 0.0
    mean_output, mean_prompt = float(outputs.mean()), float(prompt.mean())
    in_cache = job.usable_blocks * job.block_size / (mean_prompt + 0.5 * mean_output)
    batch = most = max(1.0, min(job.max_num_seqs, job.concurrency or count, in_cache, count))
    span_s = 1e-9 * float(arrival_ns[-1] - arrival_ns[0])
    if job.concurrency is None and span_s > 0.0:
        batch = 1.0
        for _ in range(8):
            step_s = float(token_s[min(len(token_s) - 1, int(batch * (1.0 + mean_prompt / mean_output)))])
            batch = min(max(1.0, count / span_s * mean_output * step_s), most)
    return float(outputs.sum()) / batch + float(prompt.sum()) / job.max_num_batched_tokens

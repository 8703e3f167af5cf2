"""What a run hands to the report: columns of numpy arrays, one row per request or per step."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.report.attention_ffn import AttentionFfn
from sim.report.moment import Moment
from sim.report.swap import SwapCount
from sim.report.tiers import TierCount
from sim.workload.trace import Workload


FINISHED, REJECTED, ABORTED, SHED, LOST, FAILED, UNSENT = 0, 1, 2, 3, 4, 5, 6
OPEN = -1
"""Of a request that has not ended: none, once a run is over."""
REQUEST_STATUS = ("finished", "rejected", "aborted", "shed", "lost", "failed", "unsent")


@dataclass
class RequestTable:
    """Axis `request`, in the workload's order: of arrival, or session by session.

    Times in ns on the run's clock, -1 where it never happened. `arrival`: sent by the client; `queued`: taken up by the
    engine loop; `scheduled`: first in a batch (when the scheduler put it there); `first_token`, `finish`: when the
    client has that token. `cached_tokens`: prompt tokens found in the prefix cache at the first admission. `status`
    indexes `REQUEST_STATUS`; `unsent` are the rounds of a session after one that did not finish. `retrieval_ns`: from
    `arrival` until the prompt went to the engine; None: at once.
    """

    arrival_ns: np.ndarray
    queued_ns: np.ndarray
    scheduled_ns: np.ndarray
    first_token_ns: np.ndarray
    finish_ns: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    preemptions: np.ndarray
    replica: np.ndarray
    status: np.ndarray
    retrieval_ns: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def asked_ns(self) -> np.ndarray:
        """When each prompt went to the engine (ns): sent by the client, and retrieved."""
        arrival_ns = np.asarray(self.arrival_ns, np.int64)
        return arrival_ns if self.retrieval_ns is None else arrival_ns + self.retrieval_ns

    @property
    def sent(self) -> np.ndarray:
        """Which requests were sent."""
        return np.asarray(self.status) != UNSENT

    @property
    def first_arrival_ns(self) -> int:
        """When the first request was sent."""
        return int(np.min(np.asarray(self.arrival_ns)[self.sent]))


LOOKUPS = ("lookups", "queries", "hits", "preempted_lookups", "preempted_queries", "preempted_hits")
"""The columns of `StepTable` that count look-ups in the prefix cache."""


@dataclass
class StepTable:
    """Axis `step`: one row per executed batch of one replica, in order of issue per replica.

    The batch columns are the fields of `sim.cost.BatchStats`; `start_ns`/`end_ns` bound the forward pass.
    `free_blocks`, `running`, `waiting` as after scheduling, at `issued_ns`; `preempted`: victims of this step.
    `ended` requests got their last token from it, and gave back `freed_blocks`. `accepted_tokens`: drafts that were
    right, each one more token of a row.

    Prefix-cache look-ups of the replica up to this decision, as the engine counts them: `lookups`, the tokens asked for
    (`queries`) and found (`hits`); those of requests that had been preempted stand apart.
    """

    replica: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    prefill_tokens: np.ndarray
    prefill_chunks: np.ndarray
    prefill_area: np.ndarray
    prefill_kv_tokens: np.ndarray
    prefill_max_tokens: np.ndarray
    decodes: np.ndarray
    decode_sum: np.ndarray
    decode_max: np.ndarray
    decode_sumsq: np.ndarray
    emitting: np.ndarray
    padded_tokens: np.ndarray
    graph_mode: np.ndarray
    draft_tokens: np.ndarray
    accepted_tokens: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    free_blocks: np.ndarray
    preempted: np.ndarray
    issued_ns: np.ndarray
    ended: np.ndarray
    freed_blocks: np.ndarray
    lookups: np.ndarray
    queries: np.ndarray
    hits: np.ndarray
    preempted_lookups: np.ndarray
    preempted_queries: np.ndarray
    preempted_hits: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of each step, without padding."""
        found: np.ndarray = np.asarray(self.prefill_tokens) + np.asarray(self.decodes) + np.asarray(self.draft_tokens)
        return found

    @property
    def kept_tokens(self) -> np.ndarray:
        """Tokens of each step whose KV stays: without the drafts that were wrong."""
        found: np.ndarray = self.tokens - np.asarray(self.draft_tokens) + np.asarray(self.accepted_tokens)
        return found

    @property
    def emitted(self) -> np.ndarray:
        """Tokens that each step emits."""
        found: np.ndarray = np.asarray(self.emitting) + np.asarray(self.accepted_tokens)
        return found


@dataclass
class StageTable:
    """Pipeline stages of the steps, axes `step stage`, rows as in the `StepTable`: when each stage ran each batch."""

    start_ns: np.ndarray
    end_ns: np.ndarray

    @property
    def stages(self) -> int:
        """How many."""
        return int(self.start_ns.shape[1])


@dataclass
class TransferTable:
    """The way from prefill to decode, axis `request` in arrival order, times in ns, -1 where it never happened.

    `source`, `target`: the two replicas. `prefilled`: the prompt's last token was computed; `queued`: the decode
    instance's loop took the request up; `allocated`: it had blocks for it, and asked for the KV; `begun`, `received`:
    its first and last byte; `seated`: it was in a batch there; `failed`: 1 where the KV could not be loaded. `blocks`,
    of all groups of layers, were filled with `bytes`, of all devices of the replica. `decode_first`: blocks were there
    before the prefill began, and KV was sent while it ran. `keeps_token`: the prefill's token is the first.
    """

    source: np.ndarray
    target: np.ndarray
    prefilled_ns: np.ndarray
    queued_ns: np.ndarray
    allocated_ns: np.ndarray
    begun_ns: np.ndarray
    received_ns: np.ndarray
    seated_ns: np.ndarray
    failed: np.ndarray
    blocks: np.ndarray
    bytes: np.ndarray
    decode_first: bool = False
    keeps_token: bool = False


@dataclass
class LinkTable:
    """Links that KV went over, axis `link`: what they can carry, what they did, and for how long at least one flow did.

    `most_flows`: at once. `change_link`, `change_ns`, `change_rate`: from when on how many bytes per second were sent
    over which link, in order of time, the first of them; `changes_left_out`: how many more there were.
    """

    names: list[str]
    bytes_per_s: np.ndarray
    bytes: np.ndarray
    busy_ns: np.ndarray
    most_flows: np.ndarray
    change_link: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    change_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    change_rate: np.ndarray = field(default_factory=lambda: np.zeros(0))
    changes_left_out: int = 0


@dataclass(frozen=True)
class LayerKind:
    """Layers of a model that are alike: their numbers, and the pipeline stage of each.

    `matrix_elements`: of the matrices of one of them, without routed experts; `experts`: whether it has such.
    """

    name: str
    stage_of: dict[int, int]
    matrix_elements: float
    experts: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which layers of the model."""
        return tuple(self.stage_of)


@dataclass(frozen=True)
class MemoryTerm:
    """One part of a device's memory: what it holds, how many bytes, the sum it comes from and who says so."""

    name: str
    bytes: float
    note: str = ""
    source: str = ""


@dataclass(frozen=True)
class MemoryReport:
    """The memory of one rank as plain rows: `terms`, in order, are parts that sum to `device_bytes`.

    `kv_term` names the one that is the KV cache; `verdict` is the sentence that says whether it fits.
    """

    terms: tuple[MemoryTerm, ...]
    device_bytes: float
    kv_term: str = "KV cache"
    verdict: str = ""


@dataclass(frozen=True)
class Claim:
    """What the cost model says of its own step times, over a whole run.

    - `rel_error`: expected relative error of the total, as if all kernels erred the same way.
    - `outside_share`: share of the time outside what a calibration has measured; 1 where nothing was calibrated.
    - `estimated`: whether no kernel of this device was calibrated.
    """

    rel_error: float
    outside_share: float
    estimated: bool


@dataclass
class ExpertTable:
    """How unevenly experts were spread. Axis `rank`: its share of all `rows`, seconds that it computes and waits.

    `imbalance` of each looked-at step: rows of the fullest rank over the mean of all, averaged over layers. `law` and
    `detail` as configured; seconds are of all steps, scaled up where only some were `looked_at`.
    """

    law: str
    detail: str
    rows: np.ndarray
    busy_s: np.ndarray
    wait_s: np.ndarray
    imbalance: np.ndarray
    looked_at: int


@dataclass(frozen=True)
class SpeculationTable:
    """Drafts of a run, axes `drafts accepted`: how many rows verified so many drafts, so many of which were right.

    `rows`: all rows that gave a client tokens, those without drafts too; `committed` tokens in all, after `cut` ones
    beyond a request's end were dropped.
    """

    method: str
    verified: np.ndarray
    rows: int
    committed: int
    cut: int


@dataclass
class PoolResult:
    """One pool of a fleet: the run as it saw it. Its `result` numbers its ranks from 0, the fleet from `first`."""

    name: str
    role: str
    first: int
    result: "SimulationResult"


@dataclass
class SimulationResult:
    """One run, whole: what happened, under which assumptions, and what was not modelled.

    - `itl_ns`, `itl_count`: the distribution of all inter-token latencies as values with multiplicities.
    - `components_s`: seconds per step by cost component (`sim.cost.step_cost.SECONDS`), axis `step` each; may be empty.
    - `engine`: "exact" or "wide"; `engine_label`: the engine that is simulated, "vLLM 0.19.0".
    - `gpus` over all `replicas`, each of `data_parallel` ranks; `num_gpu_blocks` and `block_size` (tokens) of one rank.
      The columns `replica` of the tables number the ranks through, replica by replica.
    - `settings`: the resolved engine settings by name (`max_num_seqs`, `max_num_batched_tokens`, `graph_sizes`, ...).
    - `slo_ms`: goodput bounds in ms by metric (ttft, tpot, itl, e2el).
    - `assumptions` rows are (what, value, source); `config` is the resolved configuration.
    - `checks`: name -> outcome of the invariants checked in the run.
    - `timing`: what the simulation itself took, units in the names.
    - `versions`: package -> version.
    - `stages`: the pipeline stages of the steps, where a replica has several; then steps overlap.
    - `claim`: what the cost model says of its step times.
    - `quantisation`: name of the format in which the model's weights are stored; "none": as they were trained.
    - `predictor`: the configuration's, which priced the steps; `taught`: whether measured servers or a run corrected
      its prices.
    - `pools`: of a fleet of several pools, each with its own result; the fields about one engine (`memory`,
      `settings`, `claim`, `stages`) are empty then, and `num_gpu_blocks` is that of the smallest. `transfers`, `links`:
      KV that went from prefill to decode instances. `retries`: how often requests were sent again because a replica
      failed.
    - `experts`: how unevenly tokens were spread over them; None where that was not drawn.
    - `speculation`: what became of drafts; None where there were none.
    - `cache_tiers`: what became of KV in tiers behind the caches; `swap`: of that of preempted requests in the host.
    - `attention_ffn`: of a deployment whose feed-forward parts run on devices of their own, what both sides did.
    - `unserved_ns`: how long requests waited because nobody who could take them was in service; those that did.
    - `moments`: what happened to requests and replicas at one moment: failures, starts, clients that gave up.
    - `layers`: the kinds of layers of the model.
    - `log`: format and rules of the engine's own log by name (`sim.deployment.rules.LogRules`; empty: not known), which
      has a line every `log_interval_s` where it goes by time.
    """

    requests: RequestTable
    steps: StepTable
    itl_ns: np.ndarray
    itl_count: np.ndarray
    components_s: dict[str, np.ndarray]
    engine: str
    model: str
    device: str
    engine_label: str
    gpus: int
    num_gpu_blocks: int
    block_size: int
    usd_per_gpu_hour: float
    memory: MemoryReport | None
    workload: Workload
    seed: int
    assumptions: list[tuple[str, str, str]] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    slo_ms: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    replicas: int = 1
    stages: StageTable | None = None
    log: dict[str, Any] = field(default_factory=dict)
    log_interval_s: float = 10.0
    claim: Claim | None = None
    data_parallel: int = 1
    quantisation: str = "none"
    predictor: str = ""
    taught: bool = False
    pools: tuple[PoolResult, ...] = ()
    transfers: TransferTable | None = None
    links: LinkTable | None = None
    retries: dict[int, int] = field(default_factory=dict)
    unserved_ns: dict[int, int] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    layers: tuple[LayerKind, ...] = ()
    experts: ExpertTable | None = None
    attention_ffn: AttentionFfn | None = None
    speculation: SpeculationTable | None = None
    cache_tiers: tuple[TierCount, ...] = ()
    swap: SwapCount | None = None

    @property
    def ranks(self) -> int:
        """Schedulers, each with a KV cache of its own: the data-parallel ranks of all replicas."""
        if self.pools:
            return sum(pool.result.ranks for pool in self.pools)
        return self.replicas * self.data_parallel

    @property
    def step_blocks(self) -> np.ndarray:
        """KV blocks of the rank that ran each step, axis `step`."""
        if self.pools:
            return np.concatenate([pool.result.step_blocks for pool in self.pools])
        return np.full(len(self.steps), self.num_gpu_blocks)

    @property
    def seen_tokens(self) -> np.ndarray:
        """Tokens that each step emits for a client, axis `step`: that of a prefill instance nobody sees."""
        if self.pools:
            parts = [np.asarray(p.result.steps.emitted) * (p.role != "prefill") for p in self.pools]
            return np.concatenate(parts)
        return np.asarray(self.steps.emitted)

    def rank_name(self, index: int) -> str:
        """What the rank of that number is called: `replica 1, rank 0`, or the one of the two that says all."""
        for pool in reversed(self.pools):
            if index >= pool.first:
                own = pool.result.rank_name(index - pool.first)
                return f"{pool.name}, {own}" if pool.result.ranks > 1 else pool.name
        replica, rank = divmod(index, self.data_parallel)
        if self.data_parallel == 1:
            return f"replica {replica}"
        return f"rank {rank}" if self.replicas == 1 else f"replica {replica}, rank {rank}"

    @property
    def busy_ns(self) -> np.ndarray:
        """Time that a device spends on each step, axis `step`: of pipeline stages the mean."""
        if self.pools:
            return np.concatenate([pool.result.busy_ns for pool in self.pools])
        if self.stages is None:
            return np.asarray(self.steps.end_ns) - np.asarray(self.steps.start_ns)
        busy: np.ndarray = (self.stages.end_ns - self.stages.start_ns).mean(axis=1)
        return busy

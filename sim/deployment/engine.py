"""Engine settings: what a user may set, and what an engine version does when they do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.deployment.graphs import full_graph_top
from sim.deployment.rules import (
    CacheRules,
    ConnectorRules,
    ContextRules,
    LogRules,
    ParallelRules,
    SchedulingRules,
    SglangRules,
)
from sim.deployment.speculation import Speculation, SpeculationConf


@dataclass
class LimitTier:
    """Default limits of one class of devices: the first tier whose conditions hold is taken.

    `min_memory_gib`: the least device memory; `excluded`: devices, by part of their name, that the tier leaves out;
    `llm_class_tokens` and `api_server_tokens`: `max_num_batched_tokens` of the offline class and of the server;
    `max_num_seqs`: sequences for both. `graph_top`, `graph_top_tp4`: largest captured size, and that of four ranks or
    more, where it depends on the device (0: it does not).
    """

    min_memory_gib: float = 0.0
    excluded: list[str] = field(default_factory=list)
    llm_class_tokens: int = 8192
    api_server_tokens: int = 2048
    max_num_seqs: int = 256
    graph_top: int = 0
    graph_top_tp4: int = 0


@dataclass
class EngineProfile:
    """Facts of one engine version: scheduler switches, defaults and memory constants (data, `conf/engine`).

    Scheduler switches are the numbered differences between versions of vLLM V1.

    **Fields:**

    - `version`: the version these facts were read from; empty: no profile loaded yet.
    - `reserve_full_input`: admission needs room for the whole input.
    - `async_by_default`, `async_adds_depth`: whether batches are scheduled ahead, and whether that adds one batch
      to a pipeline's own (`pp + 1` in flight) or only gives two to a single stage.
    - `async_with_stages`: whether batches can be scheduled ahead where the model has pipeline stages; otherwise that is
      off by default there, and asking for it is refused.
    - `async_stages_overlap`: a pipeline that is scheduled ahead starts a batch before the one before has left its last
      stage; otherwise the first stage receives the sampled tokens of every batch before it starts the next.
    - `graph_list`, `graph_top`, `graph_top_blackwell`: the rule of the captured sizes and its ceilings.
    - `prefill_graphs`: prefills have captured sizes of their own, by total tokens (SGLang).
    - `graph_mode`: default mode. `graph_memory_in_budget`: graphs are taken off the KV budget.
    - `default_gpu_memory_utilization`: 0 where the engine computes it (SGLang).
    - `memory_rule`: whose sum it is: `vllm`, `sglang` or `trtllm`.
    - `groups_rule`: version of the rules that turn layers into KV-cache groups. `hybrid_chunked`: chunked-local
      layers get groups of their own (otherwise they keep everything).
    - `limits`: default limits; `other_tokens`, `other_seqs`: those of any other usage.
    - `tokens_capped_always`: the default `max_num_batched_tokens` never exceeds `max_num_seqs` x length.
      `tokens_cover_length`: without chunked prefill it is at least the longest length, not a mistake.
    - `scheduling`, `connector`, `cache`, `log`, `sglang`: what this version's scheduler, its part in KV transfers, its
      block pool, log and, for SGLang, all of its scheduler do differently from others; `parallel`: what its
      data-parallel ranks do, `context` which context parallelism it has.
    - `idle_sleep_s`: slept after a turn of the loop that scheduled nothing; `nonempty_batch_returns`: only a
      batch with work lets the loop schedule ahead; `api_pickup_s`: from the client to the engine's queue, after
      `api_door_s`, for which the API server is busy with one request alone.
    - `eager_launches`: host time of a kernel that is launched one by one, over that of a bare launch (the device's
      `kernel_launch_s`): what the framework does around it. `expert_launches`: such launches for the experts of one
      layer, where one operator of the framework launches their kernels; 0: each kernel is one.
    - `pieces_s`: what the device loses on a step that is no graph as a whole, between pieces and single kernels.
    - `host_step_s`: host time per step: the device waits for it, or, where batches are scheduled ahead, only if
      the step before is shorter.
    - `drafters`: the methods of speculative decoding that it has and that are simulated.
    - `second_runner`: which models vLLM runs in its second-generation model runner: model types, `dense` (every model
      without experts and recurrent states) or `all`.
    - `memory`: constants of the memory sum, by name (units in the names). `sources`: where each fact was read.
    """

    version: str = ""
    reserve_full_input: bool = False
    async_by_default: bool = False
    async_adds_depth: bool = False
    async_with_stages: bool = True
    async_stages_overlap: bool = False
    graph_memory_in_budget: bool = False
    graph_list: str = "0.10.2"
    graph_top: int = 512
    graph_top_blackwell: int = 512
    graph_mode: str = "PIECEWISE"
    prefill_graphs: bool = False
    default_gpu_memory_utilization: float = 0.9
    memory_rule: str = "vllm"
    groups_rule: str = "0.10.2"
    hybrid_chunked: bool = False
    limits: list[LimitTier] = field(default_factory=list)
    other_tokens: int = 2048
    other_seqs: int = 128
    tokens_capped_always: bool = False
    tokens_cover_length: bool = False
    idle_sleep_s: float = 0.0
    api_pickup_s: float = 0.0
    api_door_s: float = 0.0
    host_step_s: float = 0.0
    eager_launches: float = 1.0
    expert_launches: float = 0.0
    pieces_s: float = 0.0
    nonempty_batch_returns: bool = True
    scheduling: SchedulingRules = field(default_factory=SchedulingRules)
    connector: ConnectorRules = field(default_factory=ConnectorRules)
    cache: CacheRules = field(default_factory=CacheRules)
    sglang: SglangRules = field(default_factory=SglangRules)
    log: LogRules = field(default_factory=LogRules)
    parallel: ParallelRules = field(default_factory=ParallelRules)
    context: ContextRules = field(default_factory=ContextRules)
    drafters: list[str] = field(default_factory=list)
    second_runner: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


@dataclass
class EngineConf:
    """Schema of `conf/engine/*.yaml`. `None` means: this version's own default.

    The keys are vLLM's. For SGLang, `max_num_seqs` is its `max_running_requests`, `max_num_batched_tokens` its
    `chunked_prefill_size`, `block_size` its `page_size` and `gpu_memory_utilization` its `mem_fraction_static`; for
    TensorRT-LLM, `max_batch_size`, `max_num_tokens`, `tokens_per_block` and `free_gpu_memory_fraction`.

    `usage`: `api_server`, `llm_class` (offline) or `other`; it decides the default limits.
    `hybrid_kv_cache`: one block table per kind of attention; `None` is on, except for chunked-local layers.
    `cuda_graph_sizes` is how vLLM 0.10.2 calls the captured sizes.

    `scheduling_policy` is the order in which the scheduler serves (vLLM: `fcfs` or `priority`; other schedulers have
    their own names), `long_prefill_token_threshold` the most prompt tokens of one request in one batch (0: no bound).
    `scheduler_options` are the further options of the scheduler chosen, by name. `speculation`: who drafts
    tokens that are then verified (`speculation=eagle3` and its like choose a method).
    """

    name: str = "vllm"
    version: str = "0.19.0"
    usage: str = "api_server"
    scheduler: str = "vllm"
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    scheduler_options: dict[str, Any] = field(default_factory=dict)
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: float | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_dtype: str = "auto"
    hybrid_kv_cache: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: list[int] | None = None
    max_cudagraph_capture_size: int | None = None
    cuda_graph_sizes: list[int] | None = None
    speculation: SpeculationConf = field(default_factory=SpeculationConf)
    profile: EngineProfile = field(default_factory=EngineProfile)


@dataclass(frozen=True)
class EngineSettings:
    """Resolved settings of one replica: every value filled, with where it came from in `origin`.

    `graph_sizes` are the captured token counts, ascending (empty: eager), `prefill_graph_sizes` those of batches with a
    prefill where they have their own. `graph_mode` is NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE.
    `batches_in_flight`: how many batches may be scheduled before the first of them returns (1: synchronous).
    `pipeline_parallel`: stages of the model. `prefill_context_parallel`: ranks that divide the tokens of a prefill.
    `block_size`: tokens of a block on all ranks that divide the KV cache. `gpu_memory_utilization` is the fraction in
    the engine's own sense (SGLang: of memory for weights and KV; TensorRT-LLM: of what is free after loading).
    `speculation`: who drafts how many tokens; None: nobody.
    """

    name: str
    version: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    gpu_memory_utilization: float
    prefix_caching: bool
    chunked_prefill: bool
    async_scheduling: bool
    reserve_full_input: bool
    graph_mode: str
    graph_sizes: tuple[int, ...]
    kv_bytes_per_element: float
    profile: EngineProfile
    origin: dict[str, str] = field(default_factory=dict)
    prefill_graph_sizes: tuple[int, ...] = ()
    batches_in_flight: int = 1
    pipeline_parallel: int = 1
    prefill_context_parallel: int = 1
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: float | None = None
    num_gpu_blocks_override: int | None = None
    hybrid_kv_cache: bool | None = None
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    speculation: Speculation | None = None
    notes: tuple[str, ...] = ()

    @property
    def full_graph_top(self) -> int:
        """The largest full graph of a batch that decodes, in tokens."""
        queries = 1 if self.speculation is None else self.speculation.query_tokens
        return full_graph_top(self.graph_mode, self.graph_sizes, self.max_num_seqs, queries)

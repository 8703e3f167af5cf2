"""Engine settings: what a user may set, and what an engine version does when they do not."""

from dataclasses import dataclass, field


@dataclass
class EngineProfile:
    """Facts of one engine version: scheduler switches, defaults and memory constants (data, `conf/engine`).

    Scheduler switches are the numbered differences between versions of vLLM V1.
    """

    reserve_full_input: bool = False
    async_by_default: bool = False
    graph_memory_in_budget: bool = False
    graph_list: str = "0.10.2"
    default_gpu_memory_utilization: float = 0.9
    idle_sleep_s: float = 0.0
    api_pickup_s: float = 0.0
    nonempty_batch_returns: bool = True
    memory: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


@dataclass
class EngineConf:
    """Schema of `conf/engine/*.yaml`. `None` means: this version's own default."""

    name: str = "vllm"
    version: str = "0.19.0"
    usage: str = "api_server"
    scheduler: str = "vllm"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: float | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: list[int] | None = None
    max_cudagraph_capture_size: int | None = None
    profile: EngineProfile = field(default_factory=EngineProfile)


@dataclass(frozen=True)
class EngineSettings:
    """Resolved settings of one replica: every value filled, with where it came from in `origin`.

    `graph_sizes` are the captured token counts, ascending (empty: eager). `graph_mode` is NONE,
    PIECEWISE, FULL or FULL_AND_PIECEWISE.
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

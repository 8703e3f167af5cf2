"""The schema of the Hydra group `deployment`, apart from the plan so that reading a configuration needs no jax."""

from dataclasses import dataclass, field
from typing import Any

from sim.deployment.tiers import TierConf


@dataclass
class FfnConf:
    """Feed-forward parts on devices of their own (attention/FFN disaggregation); 0 `devices`: with attention.

    The data-parallel ranks of a replica keep attention, KV cache, embedding and head, and send their activations to
    `devices` FFN devices in every layer. `hardware`: device of these (name or file); empty: the ranks'.
    `expert_parallel`: whole experts on each, instead of a slice of every expert; dense parts and shared experts are
    sliced. `micro_batches`: parts of a step that follow one another through attention, links and FFN.
    `dispatch_dtype`: of activations on their way to FFN devices, bf16 or fp8 (with a scale per 128); back it is bf16.
    """

    devices: int = 0
    hardware: str = ""
    expert_parallel: bool = True
    micro_batches: int = 2
    dispatch_dtype: str = "bf16"


@dataclass
class PoolConf:
    """Equal replicas with one job: a pool of a deployment that has several.

    - `role`: `both` (prefill and decode), `prefill` or `decode`.
    - `replicas`, `tensor_parallel`, `pipeline_parallel`, `data_parallel`, `prefill_context_parallel`,
      `decode_context_parallel`, `expert_parallel`, `all_to_all`, `redundant_experts`, `expert_placement`, `ffn`: as in
      `DeploymentConf`.
    - `hardware`, `engine`: the pool's own device and engine, by name (`vllm-0.19.0`) or file; empty: those of the run.
      One that only a folder of `--config-dir` or a file of `conf` has stands here as it was read.
    - `settings`: engine settings that differ, by key (`max_num_seqs: 64`).
    """

    role: str = "both"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    prefill_context_parallel: int = 1
    decode_context_parallel: int = 1
    expert_parallel: bool = False
    all_to_all: str = "auto"
    redundant_experts: int = 0
    expert_placement: str = "linear"
    ffn: FfnConf = field(default_factory=FfnConf)
    hardware: Any = ""
    engine: Any = ""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class TransferConf:
    """How KV gets from a prefill to a decode instance; None: what was measured (`sim/hardware/kv_transfer.yaml`).

    - `connector`: whose measured values hold: `nixl`, `mooncake`, `sglang` or `trtllm`; empty: the engine's.
    - `hand_over_s`: from the end of a prefill to the request's arrival at the decode side's server (proxy, responses);
      of an engine whose decode side comes first, from the request's arrival.
    - `setup_s`, `block_s`: before the first byte moves, per request and per block (descriptors, alignment).
    - `latency_s`, `efficiency`: of the transfer itself, and the share of the links' rate that it reaches.
    - `placement`: `packed`, pools of one device fill nodes one after the other, so that replicas may share a node;
      `separate`, every pool begins on a node of its own.
    - `failure_rate`: share of transfers that fail as a whole, drawn by seed and request; `load_failure_policy`: what
      the decode instance does then (vLLM's `kv_load_failure_policy`): `fail`, the request ends with an error, or
      `recompute`, it computes the prompt.
    - `lease_s`: a prefill instance frees blocks that nobody has begun to read so long after the prefill; None: the
      engine's own, which its decode instances renew.
    - `layerwise`: the KV of each layer leaves while others are computed (`sim.event.handover.layerwise`).
    - `oversubscription`: how much more all NICs of a node can send than its uplink carries (1: a full fat tree).
    """

    connector: str = ""
    hand_over_s: float | None = None
    setup_s: float | None = None
    block_s: float | None = None
    latency_s: float | None = None
    efficiency: float | None = None
    placement: str = "packed"
    oversubscription: float = 1.0
    layerwise: bool = False
    failure_rate: float = 0.0
    load_failure_policy: str = "fail"
    lease_s: float | None = None


@dataclass
class ElasticConf:
    """Replicas that come and go.

    - `events`: entries with `at_s`, `action` (start, drain or fail), `replica` (its number in its pool) and, where
      there are several, `pool`. A replica whose first event is a start begins out of service.
    - `on_failure`: what becomes of the requests of a replica that fails: `retry`, from their beginning, or `lose`.
    - `load_s`: from a start to service. `mtbf_s`: mean time between drawn failures of each replica (0: none);
      `repair_s`: from one to the start after it.
    """

    events: list[Any] = field(default_factory=list)
    on_failure: str = "retry"
    load_s: float = 60.0
    mtbf_s: float = 0.0
    repair_s: float = 0.0


@dataclass
class DeploymentConf:
    """Schema of `conf/deployment/*.yaml`: how many ranks, and who gets the next request.

    A replica has `data_parallel` x `tensor_parallel` x `prefill_context_parallel` x `pipeline_parallel` devices. Each
    of its `data_parallel` ranks has attention, KV cache and queue of its own; they share a model's experts.
    `prefill_context_parallel`: times as many devices, which divide the tokens of every prefill.
    `decode_context_parallel`: so many of the `tensor_parallel` devices divide the tokens of the KV cache, of which each
    would have a copy (`sim.deployment.context`).
    `expert_parallel`: whole experts on each device, instead of a slice of every expert. `all_to_all`: how tokens get
    to the experts of other ranks, `auto` being what the engine's version does (`sim.deployment.exchange`).
    `redundant_experts`: further copies of experts in each layer, over all ranks. `expert_placement`: `linear`, or
    `balanced` by popularity (`sim.deployment.placement`). `ffn`: devices of their own for the feed-forward parts.

    `pools`: several kinds of replicas instead of one, a `PoolConf` by name; the sizes above then say nothing. `router`
    (`sim.event.routing`, or a file of your own; `router_options` are its options) picks among the replicas that take
    requests from clients; `decode_router` among those that decode what others have
    prefilled, when the prefill ends, or when the request arrives if `pairing` is `at_arrival`. `transfer`: the way of
    the KV. `elastic`: replicas that come and go. `session_hold_s`: for so long the blocks of a round are held for the
    next of its session (`sim.event.holds`); 0: they are free and found until others take them, as engines do.
    `cache_tiers`: where KV lies behind the devices' own cache, a `TierConf` by name, the first looked into first.
    `kv_swap_gb`: host memory of each replica for the KV of its preempted requests, which comes back from there
    (`sim.event.swap`); 0: they compute it again.
    """

    name: str = "single"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    prefill_context_parallel: int = 1
    decode_context_parallel: int = 1
    expert_parallel: bool = False
    all_to_all: str = "auto"
    redundant_experts: int = 0
    expert_placement: str = "linear"
    ffn: FfnConf = field(default_factory=FfnConf)
    router: str = "round_robin"
    router_options: dict[str, Any] = field(default_factory=dict)
    pools: dict[str, Any] = field(default_factory=dict)
    decode_router: str = "least_outstanding"
    decode_router_options: dict[str, Any] = field(default_factory=dict)
    pairing: str = "after_prefill"
    transfer: TransferConf = field(default_factory=TransferConf)
    elastic: ElasticConf = field(default_factory=ElasticConf)
    session_hold_s: float = 0.0
    cache_tiers: dict[str, TierConf] = field(default_factory=dict)
    kv_swap_gb: float = 0.0

    @property
    def rank_devices(self) -> int:
        """Devices behind one scheduler, FFN devices apart."""
        return self.tensor_parallel * self.prefill_context_parallel * self.pipeline_parallel

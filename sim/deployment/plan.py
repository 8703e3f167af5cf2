"""The waist, third value: a deployment, compiled and checked.

`Plan` is what a person reads: model, device, parallel shape, engine settings. `PlanArrays` is what the cost
kernels read: one pytree of fixed padded shapes whatever the model or the parallel shape, so that different
deployments share one compilation and can be stacked along a leading `config` axis. Unused slots have `count` 0.
"""

from dataclasses import dataclass, field

import equinox as eqx
from jaxtyping import Array, Float

from sim.deployment.engine import EngineSettings
from sim.hardware.spec import DeviceConf
from sim.model.spec import ModelSpec


GEMM_SLOTS = 24
ATTENTION_SLOTS = 4
RECURRENT_SLOTS = 2
MOE_SLOTS = 2
COLLECTIVE_SLOTS = 4
PROTOCOLS = 3


class GemmSlots(eqx.Module):
    """Distinct weight products `[m, k] x [k, n]` of one rank; m = rows of the step.

    `emitting` is 1 where m is the number of emitting rows (LM head), 0 where it is the padded tokens.
    `flops_per_s` is the achieved ceiling at the product's dtype; `count` products of this shape per step.
    """

    count: Float[Array, "*config gemm"]
    n: Float[Array, "*config gemm"]
    k: Float[Array, "*config gemm"]
    weight_bytes_per_param: Float[Array, "*config gemm"]
    flops_per_s: Float[Array, "*config gemm"]
    emitting: Float[Array, "*config gemm"]


class AttentionSlots(eqx.Module):
    """Distinct attention kinds of one rank, by layer count.

    `window`: keys a row may look back (sliding or chunked), 1e12 if unlimited. `kv_bytes_per_token`: cache bytes one
    token of context adds per layer on this rank. `qk_dim`, `v_dim`: per-head dims of score and value
    products (MLA: the absorbed latent dims for decode, with `prefill_dim` the expanded sum).
    """

    count: Float[Array, "*config kind"]
    q_heads: Float[Array, "*config kind"]
    kv_heads: Float[Array, "*config kind"]
    qk_dim: Float[Array, "*config kind"]
    v_dim: Float[Array, "*config kind"]
    prefill_dim: Float[Array, "*config kind"]
    kv_bytes_per_token: Float[Array, "*config kind"]
    window: Float[Array, "*config kind"]
    flops_per_s: Float[Array, "*config kind"]


class RecurrentSlots(eqx.Module):
    """State layers (Mamba, linear attention): state bytes read and written per sequence, FLOPs per token."""

    count: Float[Array, "*config recurrent"]
    state_bytes: Float[Array, "*config recurrent"]
    flops_per_token: Float[Array, "*config recurrent"]
    flops_per_s: Float[Array, "*config recurrent"]


class MoeSlots(eqx.Module):
    """Routed experts of one rank. `matrices` is 3 for gated experts, 2 otherwise."""

    count: Float[Array, "*config moe"]
    experts: Float[Array, "*config moe"]
    local_experts: Float[Array, "*config moe"]
    top_k: Float[Array, "*config moe"]
    hidden: Float[Array, "*config moe"]
    inter: Float[Array, "*config moe"]
    matrices: Float[Array, "*config moe"]
    weight_bytes_per_param: Float[Array, "*config moe"]
    flops_per_s: Float[Array, "*config moe"]


class CollectiveSlots(eqx.Module):
    """Collectives of one step: `count` of them moving `bytes_per_token` x padded tokens each.

    Time is the minimum over protocols p of `a_s[p] + factor * bytes / bytes_per_s[p]`, the hop latencies
    of the group already inside `a_s`; `factor` is the algorithm's traffic, 2 (g - 1)/g for all-reduce.
    """

    count: Float[Array, "*config collective"]
    bytes_per_token: Float[Array, "*config collective"]
    factor: Float[Array, "*config collective"]
    a_s: Float[Array, "*config collective protocol"]
    bytes_per_s: Float[Array, "*config collective protocol"]


class DeviceArrays(eqx.Module):
    """Achieved rates and floors of the device, and the step's fixed host terms by graph mode.

    `elementwise_bytes_per_token` sums norms, rope, activations, residuals, embedding and cache writes over layers;
    `elementwise_kernels` counts them. `launch_s` has one entry per graph mode (eager, piecewise, full).
    """

    memory_bytes_per_s: Float[Array, "*config"]
    cache_bytes: Float[Array, "*config"]
    cache_bytes_per_s: Float[Array, "*config"]
    compute_units: Float[Array, "*config"]
    unit_stream_bytes_per_s: Float[Array, "*config"]
    kernel_floor_s: Float[Array, "*config"]
    elementwise_bytes_per_token: Float[Array, "*config"]
    elementwise_kernels: Float[Array, "*config"]
    sampler_bytes_per_row: Float[Array, "*config"]
    launch_s: Float[Array, "*config mode"]
    host_s: Float[Array, "*config"]


class PlanArrays(eqx.Module):
    """All that prices a step of one rank."""

    gemm: GemmSlots
    attention: AttentionSlots
    recurrent: RecurrentSlots
    moe: MoeSlots
    collective: CollectiveSlots
    device: DeviceArrays


@dataclass
class DeploymentConf:
    """Schema of `conf/deployment/*.yaml`: how many ranks, and who gets the next request."""

    name: str = "single"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    router: str = "round_robin"


@dataclass(frozen=True)
class Plan:
    """A compiled deployment: one kind of replica, `replicas` of them.

    `weight_bytes` per pipeline stage for one rank; `kv_specs` per stage, what each layer keeps;
    `assumptions` rows are (what, value, source).
    """

    model: ModelSpec
    device: DeviceConf
    engine: EngineSettings
    deployment: DeploymentConf
    arrays: PlanArrays
    weight_bytes: tuple[float, ...]
    kv_specs: tuple[tuple, ...]
    gpus: int
    assumptions: tuple[tuple[str, str, str], ...] = field(default=())
    not_modelled: tuple[str, ...] = field(default=())

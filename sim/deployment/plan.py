"""The waist, third value: a deployment, compiled and checked.

`Plan` is what a person reads: model, device, parallel shape, engine settings. `PlanArrays` is what the cost
kernels read: one pytree of fixed padded shapes whatever the model or the parallel shape, so that different
deployments share one compilation and can be stacked along a leading `config` axis. Unused slots have `count` 0.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from sim.deployment.conf import DeploymentConf as DeploymentConf
from sim.deployment.domains import Domains
from sim.deployment.engine import EngineSettings
from sim.hardware.spec import DeviceConf
from sim.model.sides import attention_side
from sim.model.spec import ModelSpec


GEMM_SLOTS = 16
ATTENTION_SLOTS = 4
RECURRENT_SLOTS = 2
MOE_SLOTS = 2
ELEMENTWISE_SLOTS = 8
ELEMENTWISE_KINDS = (
    "norm",
    "rotary",
    "activation",
    "cache_write",
    "embedding",
    "qk_norm",
    "add",
    "gate",
    "quantise",
)
"""What elementwise kernels do, in the order of their codes.

`norm` adds the residual; `gate`: gate and norm after a state layer's scan; `add`: outputs of routed and shared experts.
"""
COLLECTIVE_SLOTS = 4
CONTEXT_SLOTS = 8
PROTOCOLS = 3
UNLIMITED = 1e12


class GemmSlots(eqx.Module):
    """Distinct weight products `[m, k] x [k, n]` of one rank; m = rows of the step.

    `emitting` is 1 where m is the number of emitting rows (LM head), 0 where it is the padded tokens.
    `flops_per_s` is the achieved ceiling at the product's dtype; `count` products of this shape per step.
    `input_bytes` is the size of one element of the activation the product reads; `format` the code of the stored
    format in `sim.deployment.formats.FORMATS`. `beside` is 1 for shared experts, which may run beside the routed ones.
    """

    count: Float[Array, "*config gemm"]
    n: Float[Array, "*config gemm"]
    k: Float[Array, "*config gemm"]
    weight_bytes_per_param: Float[Array, "*config gemm"]
    input_bytes: Float[Array, "*config gemm"]
    flops_per_s: Float[Array, "*config gemm"]
    emitting: Float[Array, "*config gemm"]
    format: Float[Array, "*config gemm"]
    beside: Float[Array, "*config gemm"]


class AttentionSlots(eqx.Module):
    """Distinct attention kinds of one rank, by layer count.

    - `q_heads`, `kv_heads`: heads on this rank; latent attention has one KV head in decode.
    - `qk_dim`, `v_dim`: dims of the score and value products in decode (latent: the absorbed dims); `prefill_dim`:
      their sum in prefill (latent: the expanded dims).
    - `kv_bytes_per_token`: cache bytes one token of context adds per layer on this rank.
    - `context_flops`: FLOPs to expand one token of prior context before a prefill chunk can read it (latent only).
    - `window`: keys a row may look back, `UNLIMITED` without one; `chunked` is 1 where the window is the row's own
      chunk (keys start again at every multiple of `window`), 0 where it slides.
    - `flops_per_s`: rate that causal attention achieves.
    - `tile_rows`: query rows of one thread block; `packed` is 1 where the query heads of a KV head share a block in
      prefill and mixed batches; `wave` is 1 where blocks are scheduled in whole waves, 0 where work is balanced;
      `joint` is 1 where decodes ride in the prefill kernel, 0 where they have a kernel of their own.
    """

    count: Float[Array, "*config kind"]
    q_heads: Float[Array, "*config kind"]
    kv_heads: Float[Array, "*config kind"]
    qk_dim: Float[Array, "*config kind"]
    v_dim: Float[Array, "*config kind"]
    prefill_dim: Float[Array, "*config kind"]
    kv_bytes_per_token: Float[Array, "*config kind"]
    context_flops: Float[Array, "*config kind"]
    window: Float[Array, "*config kind"]
    chunked: Float[Array, "*config kind"]
    flops_per_s: Float[Array, "*config kind"]
    tile_rows: Float[Array, "*config kind"]
    packed: Float[Array, "*config kind"]
    wave: Float[Array, "*config kind"]
    joint: Float[Array, "*config kind"]


class RecurrentSlots(eqx.Module):
    """State layers (Mamba, linear attention): state bytes kept per sequence, FLOPs per prefilled token.

    `elements` of the recurrent state and `channels` of the convolution, both of one sequence on this rank; `delta` is 1
    for gated delta networks, 0 for state-space layers.
    """

    count: Float[Array, "*config recurrent"]
    state_bytes: Float[Array, "*config recurrent"]
    flops_per_token: Float[Array, "*config recurrent"]
    flops_per_s: Float[Array, "*config recurrent"]
    elements: Float[Array, "*config recurrent"]
    channels: Float[Array, "*config recurrent"]
    delta: Float[Array, "*config recurrent"]


class MoeSlots(eqx.Module):
    """Routed experts of one rank. `matrices` is 3 for gated experts, 2 otherwise; `format` as in `GemmSlots`."""

    count: Float[Array, "*config moe"]
    experts: Float[Array, "*config moe"]
    local_experts: Float[Array, "*config moe"]
    top_k: Float[Array, "*config moe"]
    hidden: Float[Array, "*config moe"]
    inter: Float[Array, "*config moe"]
    matrices: Float[Array, "*config moe"]
    weight_bytes_per_param: Float[Array, "*config moe"]
    flops_per_s: Float[Array, "*config moe"]
    format: Float[Array, "*config moe"]


class ElementwiseSlots(eqx.Module):
    """Kernels that only move activations: `count` kernels per step that each move `bytes_per_token` per token.

    `kind`: index in `ELEMENTWISE_KINDS`.
    """

    count: Float[Array, "*config elementwise"]
    bytes_per_token: Float[Array, "*config elementwise"]
    kind: Float[Array, "*config elementwise"]


class CollectiveSlots(eqx.Module):
    """Collectives of one step: `count` of them moving `bytes_per_token` x padded tokens each.

    Time is the minimum over protocols p of `a_s[p] + factor * bytes / bytes_per_s[p]`, the hop latencies
    of the group already inside `a_s`; `factor` is the algorithm's traffic, 2 (g - 1)/g for all-reduce. It is multiplied
    by the exponential of `log_ratio`, interpolated over `log_sent`, the logarithm of `factor * bytes` at measured sizes
    (rising; unused points at the end repeat the last ratio). `rel_error`: mean error to expect; `estimated` is 1 where
    nobody measured this operation, group and device; `largest`: bytes sent beyond which it is extrapolated.
    `emitting` is 1 where the rows are the emitting ones (gathered logits), 0 where they are the padded tokens.
    """

    count: Float[Array, "*config collective"]
    bytes_per_token: Float[Array, "*config collective"]
    factor: Float[Array, "*config collective"]
    a_s: Float[Array, "*config collective protocol"]
    bytes_per_s: Float[Array, "*config collective protocol"]
    emitting: Float[Array, "*config collective"]
    log_sent: Float[Array, "*config collective point"]
    log_ratio: Float[Array, "*config collective point"]
    rel_error: Float[Array, "*config collective"]
    estimated: Float[Array, "*config collective"]
    largest: Float[Array, "*config collective"]


class ContextSlots(CollectiveSlots):
    """Collectives of context-parallel ranks for attention, whose rows follow from the lengths of a batch.

    Rows: `prefills` x prefilled tokens + `decodes` x rows that decode + `prior` x tokens before the chunks.
    """

    prefills: Float[Array, "*config collective"]
    decodes: Float[Array, "*config collective"]
    prior: Float[Array, "*config collective"]


class ContextArrays(eqx.Module):
    """How context-parallel ranks divide attention (`sim.deployment.context`).

    - `query_ranks`: ranks that divide the tokens of a prefill; routed experts run on the tokens of all of them.
    - `key_ranks`: ranks that take the tokens of the KV cache in turn, each keeping its own.
    - `moved`: what they send each other.
    """

    query_ranks: Float[Array, "*config"]
    key_ranks: Float[Array, "*config"]
    moved: ContextSlots


class DeviceArrays(eqx.Module):
    """Achieved rates and floors of the device, and the step's fixed host terms by graph mode.

    `launch_s`: CPU seconds to submit one step in each graph mode (eager, piecewise, full); `gap_s`: the part of it
    that the device always waits for. `sampler_kernels` turn logits into tokens; they move `sampler_bytes_per_row` per
    emitting row `sampler_passes` times. `*_time`: factors on the time of kernels that servers were seen to take
    (`sim.cost.service`), 1 where none was measured.
    """

    memory_bytes_per_s: Float[Array, "*config"]
    cache_bytes: Float[Array, "*config"]
    cache_bytes_per_s: Float[Array, "*config"]
    compute_units: Float[Array, "*config"]
    unit_stream_bytes_per_s: Float[Array, "*config"]
    kernel_floor_s: Float[Array, "*config"]
    sampler_kernels: Float[Array, "*config"]
    sampler_bytes_per_row: Float[Array, "*config"]
    sampler_passes: Float[Array, "*config"]
    launch_s: Float[Array, "*config mode"]
    gap_s: Float[Array, "*config mode"]
    host_s: Float[Array, "*config"]
    product_time: Float[Array, "*config"]
    prefill_attention_time: Float[Array, "*config"]
    decode_attention_time: Float[Array, "*config"]
    expert_time: Float[Array, "*config"]
    elementwise_time: Float[Array, "*config"]


class PlanArrays(eqx.Module):
    """All that prices a step of one rank.

    `query_tokens`: of a decode row that verifies drafts, 1 + their most. `context`, `query_tokens`: None only in
    `trimmed` plans that have no context parallelism, or no drafts.
    """

    gemm: GemmSlots
    attention: AttentionSlots
    recurrent: RecurrentSlots
    moe: MoeSlots
    elementwise: ElementwiseSlots
    collective: CollectiveSlots
    context: ContextArrays | None
    device: DeviceArrays
    query_tokens: Float[Array, "*config"] | None


LEAST_SLOTS = {"gemm": 8, "elementwise": 8, "collective": 2}


def trimmed(arrays: PlanArrays, few_shapes: bool = False) -> PlanArrays:
    """The same plan (or stack of plans) without the slots that none of them uses, numpy leaves.

    Kernels take any number of slots: a sweep over one model gets several times cheaper, for one more compilation.
    `few_shapes`: keep some unused ones, to powers of two and at least `LEAST_SLOTS`, so that less is compiled.
    """

    def cut(group: Any, least: int = 0) -> Any:
        count = np.asarray(group.count)
        axis = count.ndim - 1
        any_use = count.reshape(-1, count.shape[axis]).any(axis=0)
        used = np.flatnonzero(any_use)
        if few_shapes:
            power = 1 << (len(used) - 1).bit_length() if len(used) else 0
            kept = min(max(power, least), count.shape[axis])
            used = np.sort(np.concatenate([used, np.flatnonzero(~any_use)[: kept - len(used)]]))
        return jax.tree.map(lambda leaf: np.take(np.asarray(leaf), used, axis=axis), group)

    context = arrays.context
    if context is not None:
        alone = np.all(np.asarray(context.query_ranks) == 1) and np.all(np.asarray(context.key_ranks) == 1)
        context = None if alone else replace(context, moved=cut(context.moved))
    verified = arrays.query_tokens
    if verified is not None and np.all(np.asarray(verified) == 1):
        verified = None
    names = set(PlanArrays.__dataclass_fields__) - {"context", "device", "query_tokens"}
    groups = {name: cut(getattr(arrays, name), LEAST_SLOTS.get(name, 0)) for name in names}
    return PlanArrays(context=context, device=arrays.device, query_tokens=verified, **groups)


FEWEST, MOST = "fewest", "most"


class ExchangeRule(eqx.Module):
    """Whose tokens the exchange of data-parallel ranks waits for, and how it is priced.

    - `decides`: the rank with the `fewest` tokens, which gathers the most of others, or the one with the `most`, where
      each sends its own.
    - `prefill`: the collectives of steps in which a rank prefills; None: those of all steps.
    """

    decides: str = eqx.field(static=True, default=FEWEST)
    prefill: CollectiveSlots | None = None


GATHERS = ExchangeRule()


@dataclass(frozen=True)
class Way:
    """Activations between the two sides, in one direction: `bytes_per_token`, and the transfer as each side sees it.

    `attention` is priced by the tokens of one instance, `ffn` by those of all.
    """

    bytes_per_token: float
    attention: CollectiveSlots
    ffn: CollectiveSlots


@dataclass(frozen=True)
class FfnPlan:
    """The feed-forward parts of a plan, where they run on devices of their own.

    - `device`, `devices`, `domains`: of the FFN side. `instances`: attention instances; `micro_batches` of a step.
    - `ends`: what a rank runs before the first and after the last layer. `mixers`, `feeds`: one layer without its
      feed-forward part, and such a part alone, one of each kind. `layers`: of every layer in turn, the numbers of the
      two; None where it has no feed-forward part.
    - `there`, `back`: activations between the sides; `link`, `link_source`: what they go over, and who says how fast.
    - `launch_s`: what the host of the FFN side needs to submit one micro-batch, by graph mode.
    """

    device: DeviceConf
    devices: int
    domains: Domains
    instances: int
    micro_batches: int
    ends: PlanArrays
    mixers: tuple[PlanArrays, ...]
    feeds: tuple[PlanArrays, ...]
    layers: tuple[tuple[int, int | None], ...]
    there: Way
    back: Way
    link: str
    link_source: str
    launch_s: np.ndarray

    @property
    def visits(self) -> int:
        """Layers whose activations go to the FFN devices and come back."""
        return sum(feed is not None for _, feed in self.layers)

    @property
    def parts(self) -> tuple[PlanArrays, ...]:
        """All that is priced apart."""
        return self.ends, *self.mixers, *self.feeds

    @property
    def priced(self) -> tuple[Any, ...]:
        """All arrays that decide the prices."""
        ways = self.there.attention, self.there.ffn, self.back.attention, self.back.ffn
        return self.ends, self.mixers, self.feeds, ways, self.launch_s


@dataclass(frozen=True)
class DraftPlan:
    """One rank's drafter: a `first` pass after each step, then `passes` times the `later` one.

    `first` runs over the tokens of the step (`of_rows`: over one token of each row), `later` over one of each row.
    `graphs`: whether it is captured in piecewise graphs where the engine has them.
    """

    first: PlanArrays
    later: PlanArrays
    passes: int
    of_rows: bool
    graphs: bool


@dataclass(frozen=True)
class Plan:
    """A compiled deployment: one kind of replica, `replicas` of them.

    `stages`: one rank of each pipeline stage; between stages, the transfers `hand_over`, and from the last to the first
    `tokens_back` (both None with one stage). `shared`: what the data-parallel ranks of a replica run together, priced
    by the tokens of all of them; None where they have nothing to share. `exchange`: how theirs is priced. `ffn`: the
    feed-forward parts, where they run on devices of their own; `held` is then the model without them. `draft`: the
    model that drafts, where there is one. `gpus` over all replicas, FFN devices included; `assumptions` rows are (what,
    value, source).
    """

    model: ModelSpec
    device: DeviceConf
    engine: EngineSettings
    deployment: DeploymentConf
    stages: tuple[PlanArrays, ...]
    gpus: int
    assumptions: tuple[tuple[str, str, str], ...] = field(default=())
    not_modelled: tuple[str, ...] = field(default=())
    hand_over: CollectiveSlots | None = None
    tokens_back: CollectiveSlots | None = None
    domains: Domains = Domains()
    shared: PlanArrays | None = None
    exchange: ExchangeRule = GATHERS
    ffn: FfnPlan | None = None
    draft: DraftPlan | None = None

    @property
    def held(self) -> ModelSpec:
        """What of the model the ranks hold."""
        return self.model if self.ffn is None else attention_side(self.model)

    @property
    def ffn_gpus(self) -> int:
        """FFN devices of all replicas."""
        return 0 if self.ffn is None else self.ffn.devices * self.deployment.replicas

    @property
    def usd_per_gpu_hour(self) -> float:
        """Mean price of a device, 0 if that of one kind is not known."""
        if self.ffn is None or self.ffn.device.name == self.device.name:
            return self.device.usd_per_hour
        prices = self.device.usd_per_hour, self.ffn.device.usd_per_hour
        if not all(prices):
            return 0.0
        return (prices[0] * (self.gpus - self.ffn_gpus) + prices[1] * self.ffn_gpus) / self.gpus

    @property
    def arrays(self) -> PlanArrays:
        """All that prices a step, where there is one stage; of the first stage, where there are several."""
        return self.stages[0]

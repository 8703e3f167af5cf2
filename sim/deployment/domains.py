"""How the ranks of a pipeline stage share its layers: attention and experts are two domains over the same ranks.

Attention is shared by `tp_attn` ranks at a time, and there are `dp_attn` such groups, each with batches of its own. The
experts are shared by all `tp_ffn x ep_ffn = tp_attn x dp_attn` ranks: `ep_ffn` groups hold whole experts, and inside
a group every expert is divided. So experts see the tokens of all `dp_attn` batches, and these run every step
together. Ranks of a model without experts have nothing to share: each of them is an engine that runs for itself.
Ranks that divide the tokens of prefills are `prefill_context` groups with one batch, whose experts are shared by all.
"""

from dataclasses import dataclass

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineProfile
from sim.model.shards import Shards
from sim.model.spec import ModelSpec, MoE
from sim.model.weights import check as check_weights


@dataclass(frozen=True)
class Domains:
    """Parallel sizes of one stage.

    `gathers_dense`: dense feed-forward parts belong to the domain of the experts. `redundant`: further copies of
    experts in each layer. `prefill_context`: ranks that divide the tokens of a prefill; `decode_context`: ranks of
    `tp_attn` that divide the tokens of the KV cache.
    """

    tp_attn: int = 1
    dp_attn: int = 1
    tp_ffn: int = 1
    ep_ffn: int = 1
    gathers_dense: bool = False
    redundant: int = 0
    prefill_context: int = 1
    decode_context: int = 1

    def __post_init__(self) -> None:
        if self.ranks != self.tp_ffn * self.ep_ffn:
            raise ValueError(
                f"attention has {self.tp_attn} x {self.ranks // self.tp_attn} ranks, the experts {self.tp_ffn} x "
                f"{self.ep_ffn}: one role needs the same number for both."
            )

    @property
    def ranks(self) -> int:
        """Devices of one stage."""
        return self.tp_attn * self.dp_attn * self.prefill_context

    @property
    def lockstep(self) -> bool:
        """Whether several batches share the experts, and so every step."""
        return self.dp_attn > 1

    @property
    def shards(self) -> Shards:
        """Ranks that share each part of a layer."""
        dense = self.ranks if self.gathers_dense else self.tp_attn
        return Shards(self.tp_attn, dense, self.ranks, self.ep_ffn, self.redundant)


def domains_of(model: ModelSpec, deployment: DeploymentConf, profile: EngineProfile) -> Domains:
    """The domains of a stage of this deployment, by the rules of the engine's version."""
    tensor = deployment.tensor_parallel
    data = deployment.data_parallel if model.is_moe else 1
    ranks = tensor * data * deployment.prefill_context_parallel
    experts = ranks if deployment.expert_parallel and model.is_moe else 1
    gathers = data > 1 and profile.parallel.gathers_dense
    context = deployment.prefill_context_parallel, deployment.decode_context_parallel
    return Domains(tensor, data, ranks // experts, experts, gathers, deployment.redundant_experts, *context)


def check_domains(model: ModelSpec, domains: Domains, pipeline_parallel: int) -> None:
    """Raise `ValueError`, one sentence, where the ranks do not divide the model."""
    units = {layer.ffn.inter for layer in model.layers if isinstance(layer.ffn, MoE)}
    for inter in sorted(units):
        if _several(domains) and inter % domains.tp_ffn:
            raise ValueError(
                f"{model.name}: the {domains.ranks} ranks of {_product(domains)} cannot divide the {inter} units of an "
                f"expert; set deployment.expert_parallel=true, or lower {_product(domains).split()[-1]}."
            )
    experts = max((layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, MoE)), default=0)
    if _several(domains) and experts and domains.ep_ffn > experts:
        raise ValueError(
            f"{model.name}: the {domains.ranks} ranks of {_product(domains)} are more than its {experts} routed "
            f"experts; lower {_product(domains).split()[-1]}."
        )
    _check_redundant(experts, domains)
    check_weights(model, domains.shards, pipeline_parallel)


def _several(domains: Domains) -> bool:
    """Whether the experts are shared by more than one tensor-parallel group."""
    return domains.ranks > domains.tp_attn


def _product(domains: Domains) -> str:
    """The keys whose product is the number of ranks."""
    other = "data_parallel" if domains.lockstep else "prefill_context_parallel"
    return f"deployment.tensor_parallel x deployment.{other}"


def _check_redundant(experts: int, domains: Domains) -> None:
    """Raise `ValueError` for copies of experts that no rank can have."""
    copies, ranks = domains.redundant, domains.ep_ffn
    if not copies:
        return
    if ranks == 1:
        raise ValueError(
            f"deployment.redundant_experts={copies} has no effect while every rank has all experts: set "
            "deployment.expert_parallel=true on several ranks, or leave it out."
        )
    if (experts + copies) % ranks:
        low = copies - (experts + copies) % ranks
        fits = " or ".join(str(size) for size in (low, low + ranks) if size >= 0)
        raise ValueError(
            f"deployment.redundant_experts={copies}: {experts} experts and {copies} copies do not divide over {ranks} "
            f"ranks; {fits} would."
        )

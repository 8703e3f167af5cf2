"""What a forward pass and a sampler need beside the weights at their peak, as vLLM's profiling run sees it."""

from dataclasses import dataclass

from sim.deployment.all_to_all import exchange_of
from sim.deployment.conf import DeploymentConf
from sim.deployment.domains import Domains, domains_of
from sim.deployment.engine import EngineSettings
from sim.deployment.rules import ParallelRules
from sim.memory.exchange import expert_rows
from sim.memory.runner import memory_constants
from sim.model.feedforward import Dense, MoE
from sim.model.linear import DTYPE_BYTES
from sim.model.spec import MLA, Layer, ModelSpec
from sim.units import MIB


INDEXER_REQUESTS = 5
INDEXER_LOGITS = 512.0 * MIB
"""vLLM 0.28.0, read: prefill workspace of sparse latent attention, and the most its indexer scores at once."""


@dataclass(frozen=True)
class Peak:
    """Peak activation of one rank in bytes, in words what makes it up, and which constant decides it."""

    total_bytes: float
    formula: str
    constant: str


def peak_activation(model: ModelSpec, engine: EngineSettings, deployment: DeploymentConf, stage: int) -> Peak:
    """Peak of a profiling run of `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows on one rank.

    T tokens, S sequences, h hidden, V padded vocabulary, e bytes per activation:

    - sampler, on the last stage: `S V (c + e) + j T h e + fixed`, `c` by version (sorting works on copies), `j` live
      copies of the hidden state;
    - forward: `T e (units + k h)`, `units` those of the widest feed-forward part (gate, up and product), `k` live
      copies of the hidden state; with bitsandbytes, the largest matrix unpacked;
    - the experts' two workspaces stay allocated between the two: `T top_k e (max(I, h) + max(2 I, h))`, for the tokens
      of all data-parallel ranks, or those that reach this one (`expert_rows`); experts in the MXFP4 format run in
      kernels that keep none;
    - sparse latent attention shares that room for keys unpacked to 16 bits, of 5 requests of the longest length, and
      its forward pass scores 512 MiB at a time;
    - with pipeline stages, the tensors passed between them: `2 T h e`;
    - with a vision tower, on the first stage, embeddings of as many image tokens as a batch holds: `T h e + fixed`.

    Peak = workspaces + passed tensors + image embeddings + max(sampler, forward). An engine that counts what the
    framework has reserved, not what it has given out, adds `forward_kept` of the smaller of the two.
    """
    pp = deployment.pipeline_parallel
    domains = domains_of(model, deployment, engine.profile)
    layers, last = model.stages(pp)[stage], stage == pp - 1
    constants = memory_constants(model, engine)
    tokens, seqs, hidden = engine.max_num_batched_tokens, engine.max_num_seqs, model.hidden
    element = DTYPE_BYTES[model.dtype] if DTYPE_BYTES[model.dtype] >= 2 else 2.0
    row = tokens * hidden * element
    per_logit = constants["sampler_bytes_per_logit"]
    sampled = seqs * model.padded_vocab * (per_logit + element)
    sampler = sampled + constants["sampler_hidden_copies"] * row + constants["activation_fixed_bytes"]
    sampler = sampler if last and per_logit else 0.0
    units = max((_units(layer, hidden, domains.tp_attn) for layer in dict.fromkeys(layers)), default=0)
    forward = tokens * element * units + constants["forward_hidden_copies"] * row
    if model.quantisation.startswith("bitsandbytes"):
        forward += element * max(
            (_largest(layer, hidden, domains.tp_attn) for layer in dict.fromkeys(layers)), default=0
        )
    kept = 0.0
    if model.quantisation != "mxfp4":
        rules = engine.profile.parallel
        way = exchange_of(deployment, rules)
        kept = max(_workspace(layer, hidden, domains, rules, way, tokens) for layer in dict.fromkeys(layers))
    workspace = constants["expert_workspace_kept"] * kept * element
    scan = max((_indexer_bytes(layer, engine.max_model_len) for layer in dict.fromkeys(layers)), default=0.0)
    workspace, forward = max(workspace, scan), forward + (INDEXER_LOGITS if scan else 0.0)
    passed = 2 * row if pp > 1 else 0.0
    images = row + constants["image_fixed_bytes"] if model.tower_params and stage == 0 else 0.0
    parts = ["the sampler's dummy run" if sampler > forward else "the forward pass"]
    parts += ["the indexer's workspace" if scan == workspace else "the experts' workspaces"] if workspace else []
    parts += ["the tensors passed between stages"] if passed else []
    parts += ["image embeddings"] if images else []
    decides = "sampler_bytes_per_logit" if sampler > forward else "forward_hidden_copies"
    both = max(sampler, forward) + constants["forward_kept"] * min(sampler, forward)
    return Peak(workspace + passed + images + both, " + ".join(parts), decides)


def _units(layer: Layer, hidden: int, tp: int) -> int:
    """Numbers per token alive at the widest point of a dense or shared feed-forward part: its matrices' outputs."""
    ffn = layer.ffn
    inter = ffn.inter if isinstance(ffn, Dense) else ffn.shared_inter
    return (3 if ffn.gated else 2) * inter // tp


def _largest(layer: Layer, hidden: int, tp: int) -> int:
    """Numbers in the largest matrix of a layer, which bitsandbytes unpacks before each product."""
    return max((matrix.n * matrix.k for matrix in layer.linears(hidden, tp)), default=0)


def _indexer_bytes(layer: Layer, max_model_len: int) -> float:
    """Workspace of sparse latent attention: latents and rotary keys in 16 bits; 0 for other layers."""
    mixer = layer.mixer
    if not isinstance(mixer, MLA) or mixer.indexer is None:
        return 0.0
    return INDEXER_REQUESTS * max_model_len * (mixer.kv_rank + mixer.rope_dim) * 2.0


def _workspace(layer: Layer, hidden: int, domains: Domains, rules: ParallelRules, way: str, tokens: int) -> float:
    """Numbers in the two buffers of a layer's routed experts, for batches of `tokens` tokens on every rank."""
    if not isinstance(layer.ffn, MoE):
        return 0.0
    experts = layer.ffn.routed(hidden, domains.ranks, domains.ep_ffn, domains.redundant)
    rows = expert_rows(way, rules, domains, tokens, experts.top_k, experts.experts)
    return rows * (max(experts.inter, hidden) + max((experts.matrices - 1) * experts.inter, hidden))

"""What a forward pass and a sampler need beside the weights at their peak, as vLLM's profiling run sees it."""

from dataclasses import dataclass

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineSettings
from sim.model.feedforward import Dense, MoE
from sim.model.linear import DTYPE_BYTES
from sim.model.spec import Layer, ModelSpec


@dataclass(frozen=True)
class Peak:
    """Peak activation of one rank in bytes, in words what makes it up, and which constant decides it."""

    total_bytes: float
    formula: str
    constant: str


def peak_activation(model: ModelSpec, engine: EngineSettings, deployment: DeploymentConf, stage: int) -> Peak:
    """Peak of a profiling run of `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows on one rank.

    T tokens, S sequences, h hidden, V padded vocabulary, e bytes per activation:

    - sampler, on the last stage: `S V (c + e) + T h e + fixed`, `c` by version (sorting works on copies);
    - forward: `T e (units + k h)`, `units` those of the widest feed-forward part (gate, up and product), `k` live
      copies of the hidden state;
    - the experts' two workspaces stay allocated between the two: `T top_k e (max(I, h) + max(2 I, h))`; experts
      in the MXFP4 format run in kernels that keep none;
    - with pipeline stages, the tensors passed between them: `2 T h e`;
    - with a vision tower, on the first stage, embeddings of as many image tokens as a batch holds: `T h e + fixed`.

    Peak = workspaces + passed tensors + image embeddings + max(sampler, forward).
    """
    tp, pp = deployment.tensor_parallel, deployment.pipeline_parallel
    ep = tp if deployment.expert_parallel else 1
    layers, last = model.stages(pp)[stage], stage == pp - 1
    constants = engine.profile.memory
    tokens, seqs, hidden = engine.max_num_batched_tokens, engine.max_num_seqs, model.hidden
    element = DTYPE_BYTES[model.dtype] if DTYPE_BYTES[model.dtype] >= 2 else 2.0
    row = tokens * hidden * element
    per_logit = constants["sampler_bytes_per_logit"]
    sampler = seqs * model.padded_vocab * (per_logit + element) + row + constants["activation_fixed_bytes"]
    sampler = sampler if last and per_logit else 0.0
    units = max((_units(layer, hidden, tp) for layer in dict.fromkeys(layers)), default=0)
    forward = tokens * element * units + constants["forward_hidden_copies"] * row
    kept = 0
    if model.quantisation != "mxfp4":
        kept = max((_workspace(layer, hidden, tp, ep) for layer in dict.fromkeys(layers)), default=0)
    workspace = constants["expert_workspace_kept"] * kept * tokens * element
    passed = 2 * row if pp > 1 else 0.0
    images = row + constants["image_fixed_bytes"] if model.tower_params and stage == 0 else 0.0
    parts = ["the sampler's dummy run" if sampler > forward else "the forward pass"]
    parts += ["the experts' workspaces"] if workspace else []
    parts += ["the tensors passed between stages"] if passed else []
    parts += ["image embeddings"] if images else []
    decides = "sampler_bytes_per_logit" if sampler > forward else "forward_hidden_copies"
    return Peak(workspace + passed + images + max(sampler, forward), " + ".join(parts), decides)


def _units(layer: Layer, hidden: int, tp: int) -> int:
    """Numbers per token alive at the widest point of a dense or shared feed-forward part: its matrices' outputs."""
    ffn = layer.ffn
    inter = ffn.inter if isinstance(ffn, Dense) else ffn.shared_inter
    return (3 if ffn.gated else 2) * inter // tp


def _workspace(layer: Layer, hidden: int, tp: int, ep: int) -> int:
    """Numbers per token in the two buffers of a layer's routed experts."""
    if not isinstance(layer.ffn, MoE):
        return 0
    experts = layer.ffn.routed(hidden, tp, ep)
    return experts.top_k * (max(experts.inter, hidden) + max((experts.matrices - 1) * experts.inter, hidden))

"""Qwen mixtures of experts: Qwen1.5/2-MoE (gated shared expert), Qwen3-MoE (none)."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.families.llama import qwen_kinds
from sim.model.parts import decoder, experts, gated_mlp, grouped_attention, layer_count, rotary, window
from sim.model.quantisation import Quantisation
from sim.model.spec import Dense, Layer, ModelSpec, MoE


@family("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text")
def qwen_moe(config: Config, quant: Quantisation) -> ModelSpec:
    """Every `decoder_sparse_step`-th layer routes, except those in `mlp_only_layers`."""
    count, second = layer_count(config), config.text("model_type") == "qwen2_moe"
    kinds, keys = qwen_kinds(config, count), window(config)
    layers = []
    for i in range(count):
        bias = config.flag("qkv_bias", "attention_bias", default=second)
        mixer = grouped_attention(
            config,
            quant,
            i,
            qkv_bias=bias,
            o_bias=bias and not second,
            qk_norm="none" if second else "head",
            window=keys if kinds[i] == "sliding_attention" else None,
        )
        layers.append(Layer(mixer, routed_or_dense(config, quant, i)))
    return decoder(config, quant, layers, rotary(config))


def routed_or_dense(config: Config, quant: Quantisation, layer: int) -> Dense | MoE:
    """The feed-forward part of one layer of a Qwen model."""
    every = config.integer("decoder_sparse_step", default=1)
    dense = config.sequence("mlp_only_layers", of=int, default=[])
    if layer in dense or (layer + 1) % every or config.integer("num_experts", default=0, least=0) == 0:
        return gated_mlp(config, quant, layer, bias=False)
    config.repeats("intermediate_size")
    shared = config.integer("shared_expert_intermediate_size", default=0, least=0)
    return experts(
        config,
        quant,
        layer,
        inter=config.integer("moe_intermediate_size"),
        shared="shared_expert",
        shared_inter=shared,
        shared_gate=shared > 0,
    )

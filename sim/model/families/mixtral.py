"""Mixtures of experts without shared experts: Mixtral, Phi-3.5-MoE, MiniMax-M2."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, experts, grouped_attention, layer_count, rotary, window
from sim.model.quantisation import Quantisation
from sim.model.spec import Layer, ModelSpec


@family("mixtral")
def mixtral(config: Config, quant: Quantisation) -> ModelSpec:
    """All layers routed."""
    keys = window(config)
    layers = [
        Layer(grouped_attention(config, quant, i, window=keys), experts(config, quant, i, "block_sparse_moe"))
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, rotary(config))


@family("phimoe")
def phimoe(config: Config, quant: Quantisation) -> ModelSpec:
    """Mixtral with layer norms, biases on attention and head, and a window that covers the trained length."""
    keys = window(config)
    keys = keys if keys and keys < config.integer("max_position_embeddings") else None
    layers = [
        Layer(
            grouped_attention(config, quant, i, window=keys),
            experts(config, quant, i, "block_sparse_moe"),
            norm_bias=True,
        )
        for i in range(layer_count(config))
    ]
    bias = config.flag("lm_head_bias", default=False)
    return decoder(config, quant, layers, rotary(config), norm_bias=True, head_bias=bias)


@family("minimax_m2")
def minimax(config: Config, quant: Quantisation) -> ModelSpec:
    """All layers routed with a balance bias; query and key normed over all heads; MTP modules drafted."""
    # a shared size of 0; MTP modules are layers like the others
    config.repeats("shared_intermediate_size", "mtp_transformer_layers", "qk_norm_type", "attn_type_list")
    norm = "all" if config.flag("use_qk_norm", default=False) else "none"
    biased = config.flag("use_routing_bias", default=False)
    layers = [
        Layer(
            grouped_attention(config, quant, i, qk_norm=norm),
            experts(config, quant, i, "block_sparse_moe", router_bias=biased),
        )
        for i in range(layer_count(config))
    ]
    rotary_dim = config.integer("rotary_dim", default=rotary(config))
    drafts = config.integer("num_mtp_modules", default=0, least=0) if config.flag("use_mtp", default=False) else 0
    draft = Layer(layers[-1].mixer, layers[-1].ffn, norms=3, joins=True)
    return decoder(config, quant, layers, rotary_dim, draft_layers=(draft,) * drafts)

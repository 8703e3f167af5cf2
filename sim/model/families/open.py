"""Dense decoders that differ from Llama in norms or biases: OLMo-2, Cohere Command R, StarCoder2."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.families.classic import plain_mlp
from sim.model.parts import decoder, gated_mlp, grouped_attention, layer_count, rotary, window
from sim.model.quantisation import Quantisation
from sim.model.spec import Layer, ModelSpec


@family("olmo2")
def olmo2(config: Config, quant: Quantisation) -> ModelSpec:
    """Norms after each part, and of query and key over all heads."""
    layers = [
        Layer(grouped_attention(config, quant, i, qk_norm="all"), gated_mlp(config, quant, i))
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, rotary(config))


@family("cohere")
def cohere(config: Config, quant: Quantisation) -> ModelSpec:
    """Attention and MLP in parallel behind one norm without bias; tied head."""
    norm = "all" if config.flag("use_qk_norm", default=False) else "none"
    layers = [
        Layer(grouped_attention(config, quant, i, qk_norm=norm), gated_mlp(config, quant, i), norms=1)
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, rotary(config), tied=config.flag("tie_word_embeddings", default=True))


@family("starcoder2")
def starcoder2(config: Config, quant: Quantisation) -> ModelSpec:
    """Layer norms, a plain MLP, biases everywhere (`use_bias`), tied head."""
    bias, keys, inter = config.flag("use_bias", default=True), window(config), config.integer("intermediate_size")
    layers = [
        Layer(
            grouped_attention(config, quant, i, qkv_bias=bias, o_bias=bias, window=keys),
            plain_mlp(quant, i, inter, bias, "mlp.c_fc", "mlp.c_proj"),
            norm_bias=True,
        )
        for i in range(layer_count(config))
    ]
    tied = config.flag("tie_word_embeddings", default=True)
    return decoder(config, quant, layers, rotary(config), norm_bias=True, tied=tied)

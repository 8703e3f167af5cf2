"""gpt-oss: alternating sliding and full attention with sinks, and experts with biases."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, experts, grouped_attention, layer_count, layer_kinds, rotary, window
from sim.model.quantisation import Quantisation
from sim.model.spec import Layer, ModelSpec


@family("gpt_oss")
def gpt_oss(config: Config, quant: Quantisation) -> ModelSpec:
    """`layer_types`, or sliding first and then in turn."""
    count, keys = layer_count(config), window(config)
    kinds = layer_kinds(config, count, ["full_attention" if i % 2 else "sliding_attention" for i in range(count)])
    bias = config.flag("attention_bias", default=True)
    layers = []
    for i in range(count):
        limit = keys if kinds[i] == "sliding_attention" else None
        mixer = grouped_attention(config, quant, i, qkv_bias=bias, o_bias=bias, sinks=True, window=limit)
        layers.append(Layer(mixer, experts(config, quant, i, bias=True, router_bias=True)))
    return decoder(config, quant, layers, rotary(config))

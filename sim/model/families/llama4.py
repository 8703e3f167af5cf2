"""Llama 4: chunked local attention on three of four layers, one routed and one shared expert per token."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, experts, gated_mlp, grouped_attention, layer_count, layer_kinds, rotary
from sim.model.quantisation import Quantisation
from sim.model.spec import Dense, Layer, ModelSpec, MoE


@family("llama4", "llama4_text")
def llama4(config: Config, quant: Quantisation) -> ModelSpec:
    """Layers without rotary position (every 4th, or `no_rope_layers` 0) see everything, the others their chunk.

    The norm on query and key has no weights. Layers between the routed ones (`interleave_moe_layer_step`) are dense.
    """
    count = layer_count(config)
    chunk = config.integer("attention_chunk_size", default=8192)
    every = config.integer("no_rope_layer_interval", default=4)
    rotated = config.sequence("no_rope_layers", of=int, default=[])
    rotated = rotated or [int((i + 1) % every != 0) for i in range(count)]
    if len(rotated) < count:
        raise ValueError(f"{config.where}: 'no_rope_layers' must have one entry for each of {count} layers.")
    default = ["chunked_attention" if rotated[i] else "full_attention" for i in range(count)]
    kinds = layer_kinds(config, count, default, ("full_attention", "chunked_attention"))
    step = config.integer("interleave_moe_layer_step", default=1)
    routed = config.sequence("moe_layers", of=int, default=list(range(step - 1, count, step)))
    inter = config.integer("intermediate_size")
    config.repeats("use_qk_norm", "intermediate_size_mlp", "moe_layers")
    layers = []
    for i in range(count):
        mixer = grouped_attention(config, quant, i, chunk=chunk if kinds[i] == "chunked_attention" else None)
        ffn: Dense | MoE
        if i in routed:
            ffn = experts(config, quant, i, "feed_forward", "shared_expert", inter=inter, shared_inter=inter)
        else:
            ffn = gated_mlp(config, quant, i, config.integer("intermediate_size_mlp"))
        layers.append(Layer(mixer, ffn))
    return decoder(config, quant, layers, rotary(config))

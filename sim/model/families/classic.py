"""Decoders with layer norms and plain MLPs: GPT-2 (and GPT-3 in its shape), OPT, GPT-NeoX, Phi-1.5/2."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, grouped_attention, head_count, hidden_size, layer_count, positions, rotary
from sim.model.quantisation import Quantisation
from sim.model.spec import Dense, Layer, ModelSpec


def plain_mlp(quant: Quantisation, layer: int, inter: int, bias: bool, up: str, down: str) -> Dense:
    """Up and down with one activation between."""
    return Dense(inter, gated=False, bias=bias, formats=quant.formats(layer, up=up, down=down))


@family("gpt2")
def gpt2(config: Config, quant: Quantisation) -> ModelSpec:
    """Learned positions, biases everywhere, tied head."""
    inter = config.integer("n_inner", "intermediate_size", default=4 * hidden_size(config))
    layers = [
        Layer(
            grouped_attention(config, quant, i, qkv_bias=True, o_bias=True),
            plain_mlp(quant, i, inter, True, "mlp.c_fc", "mlp.c_proj"),
            norm_bias=True,
        )
        for i in range(layer_count(config))
    ]
    tied = config.flag("tie_word_embeddings", default=True)
    return decoder(config, quant, layers, norm_bias=True, positions=positions(config), tied=tied)


@family("opt")
def opt(config: Config, quant: Quantisation) -> ModelSpec:
    """Learned positions with two unused rows; the embedding may be narrower than the model (OPT-350M)."""
    bias = config.flag("enable_bias", default=True)
    before = config.flag("do_layer_norm_before", default=True)
    inter = config.integer("ffn_dim")
    layers = [
        Layer(
            grouped_attention(config, quant, i, qkv_bias=bias, o_bias=bias),
            plain_mlp(quant, i, inter, bias, "fc1", "fc2"),
            norm_bias=True,
        )
        for i in range(layer_count(config))
    ]
    return decoder(
        config,
        quant,
        layers,
        positions=positions(config) + 2,
        norm_bias=True,
        final_norm=before,
        embedding_dim=config.integer("word_embed_proj_dim", default=None),
        tied=config.flag("tie_word_embeddings", default=True),
    )


@family("gpt_neox")
def gpt_neox(config: Config, quant: Quantisation) -> ModelSpec:
    """Attention and MLP in parallel, each with its norm."""
    inter = config.integer("intermediate_size")
    layers = [
        Layer(
            grouped_attention(config, quant, i, qkv_bias=True, o_bias=True),
            plain_mlp(quant, i, inter, True, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
            norm_bias=True,
        )
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, rotary(config, 0.25), norm_bias=True)


@family("phi")
def phi(config: Config, quant: Quantisation) -> ModelSpec:
    """Attention and MLP in parallel behind one norm; biases everywhere, also on the head."""
    inter = config.integer("intermediate_size", default=4 * hidden_size(config))
    # older configs give the number of KV heads as null: as many as heads
    kv_heads = config.integer("num_key_value_heads", default=head_count(config))
    norm = "head" if config.flag("qk_layernorm", default=False) else "none"
    layers = [
        Layer(
            grouped_attention(config, quant, i, kv_heads=kv_heads, qkv_bias=True, o_bias=True, qk_norm=norm),
            plain_mlp(quant, i, inter, True, "mlp.fc1", "mlp.fc2"),
            norms=1,
            norm_bias=True,
        )
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, rotary(config, 0.5), norm_bias=True, head_bias=True)

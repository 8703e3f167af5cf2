"""Dense decoders with RMS norms, grouped-query attention and a gated MLP: Llama, Mistral, Qwen2/3, Phi-3, Granite..."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, gated_mlp, grouped_attention, layer_count, layer_kinds, rotary, window
from sim.model.quantisation import Quantisation
from sim.model.spec import Layer, ModelSpec


@family("llama", "mistral", "ministral", "phi3", "granite", "mimo", "seed_oss", "internlm2")
def llama(config: Config, quant: Quantisation) -> ModelSpec:
    """A window, where the config has one, holds for every layer unless `layer_types` says otherwise."""
    count, keys = layer_count(config), window(config)
    kinds = layer_kinds(config, count, ["sliding_attention" if keys else "full_attention"] * count)
    qkv_bias = config.flag("attention_bias", "qkv_bias", default=False)
    o_bias = config.flag("attention_out_bias", default=qkv_bias)
    layers = []
    for i in range(count):
        limit = keys if kinds[i] == "sliding_attention" else None
        mixer = grouped_attention(config, quant, i, window=limit, qkv_bias=qkv_bias, o_bias=o_bias)
        layers.append(Layer(mixer, gated_mlp(config, quant, i)))
    drafts = config.integer("num_nextn_predict_layers", default=0, least=0)
    draft = Layer(layers[-1].mixer, layers[-1].ffn, norms=3, joins=True)
    return decoder(config, quant, layers, rotary(config), draft_layers=(draft,) * drafts)


@family("qwen2", "qwen3", "qwen3_vl_text", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl_text")
def qwen(config: Config, quant: Quantisation) -> ModelSpec:
    """Qwen2 has biases on qkv; Qwen3 has none, but norms on query and key of each head."""
    count, second = layer_count(config), config.text("model_type").startswith("qwen2")
    kinds = qwen_kinds(config, count)
    keys = window(config)
    layers = []
    for i in range(count):
        bias = second or config.flag("attention_bias", default=False)
        mixer = grouped_attention(
            config,
            quant,
            i,
            qkv_bias=bias,
            o_bias=bias and not second,
            qk_norm="none" if second else "head",
            window=keys if kinds[i] == "sliding_attention" else None,
        )
        layers.append(Layer(mixer, gated_mlp(config, quant, i, bias=False)))
    return decoder(config, quant, layers, rotary(config))


def qwen_kinds(config: Config, count: int) -> list[str]:
    """Full attention unless `use_sliding_window`, and then only the layers from `max_window_layers` on slide."""
    first = config.integer("max_window_layers", default=count, least=0)
    slides = config.flag("use_sliding_window", default=False)
    kinds = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(count)]
    return layer_kinds(config, count, kinds)

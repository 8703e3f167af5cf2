"""GLM-4 mixtures of experts (GLM-4.5, 4.6, Air): grouped-query attention, DeepSeek's feed-forward parts."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.families.deepseek import feed_forward, routed_layer
from sim.model.parts import decoder, grouped_attention, layer_count, rotary
from sim.model.quantisation import Quantisation
from sim.model.spec import Layer, ModelSpec


@family("glm4_moe")
def glm(config: Config, quant: Quantisation) -> ModelSpec:
    """Biases on qkv only; query and key normed per head in the large one."""
    count = layer_count(config)
    norm = "head" if config.flag("use_qk_norm", default=False) else "none"
    bias = config.flag("attention_bias", default=False)

    def layer(i: int, routed: bool, **changes) -> Layer:
        mixer = grouped_attention(config, quant, i, qkv_bias=bias, o_bias=False, qk_norm=norm)
        return Layer(mixer, feed_forward(config, quant, i, routed), **changes)

    layers = [layer(i, routed_layer(config, i)) for i in range(count)]
    drafts = config.integer("num_nextn_predict_layers", default=0, least=0)
    extra = (layer(count, True, norms=3, joins=True),) * drafts
    return decoder(config, quant, layers, rotary(config, 0.5), draft_layers=extra)

"""Qwen hybrids: three layers of gated delta rule for each of (gated) full attention: Qwen3-Next, Qwen3.5."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.families.qwen_moe import routed_or_dense
from sim.model.linear import DTYPE_BYTES
from sim.model.parts import decoder, grouped_attention, layer_count, layer_kinds, rotary
from sim.model.quantisation import Quantisation, read_dtype
from sim.model.spec import Attention, GatedDelta, Layer, ModelSpec


@family("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")
def qwen_next(config: Config, quant: Quantisation) -> ModelSpec:
    """`layer_types`, or every `full_attention_interval`-th layer full."""
    count, every = layer_count(config), config.integer("full_attention_interval", default=4)
    default = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    kinds = layer_kinds(config, count, default, ("full_attention", "linear_attention"))
    layers = []
    for i in range(count):
        mixer = attention(config, quant, i) if kinds[i] == "full_attention" else delta(config, quant, i)
        layers.append(Layer(mixer, routed_or_dense(config, quant, i)))
    drafts = config.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)
    draft = Layer(attention(config, quant, count - 1), layers[-1].ffn, norms=3, joins=True)
    return decoder(config, quant, layers, rotary(config, 0.25), draft_layers=(draft,) * drafts)


def attention(config: Config, quant: Quantisation, layer: int) -> Attention:
    """Grouped-query attention with a norm per head and an output gate."""
    gate = config.flag("attn_output_gate", default=True)
    return grouped_attention(config, quant, layer, qk_norm="head", gate=gate)


def delta(config: Config, quant: Quantisation, layer: int) -> GatedDelta:
    """The linear-attention layer; its state is kept in `mamba_ssm_dtype` where given, else in the activations' type."""
    name = config.text("mamba_ssm_dtype", default=None)
    state = read_dtype(name, config.where, "mamba_ssm_dtype") if name else quant.base.dtype
    return GatedDelta(
        conv_kernel=config.integer("linear_conv_kernel_dim"),
        conv_bytes_per_element=DTYPE_BYTES[quant.base.dtype],
        state_bytes_per_element=DTYPE_BYTES[state],
        conv_bias=False,
        k_heads=config.integer("linear_num_key_heads"),
        v_heads=config.integer("linear_num_value_heads"),
        k_dim=config.integer("linear_key_head_dim"),
        v_dim=config.integer("linear_value_head_dim"),
        formats=quant.formats(
            layer,
            qkvz="linear_attn.in_proj_qkv" + ("z" if config.text("model_type") == "qwen3_next" else ""),
            out="linear_attn.out_proj",
        ),
    )

"""Step-3: one KV head, queries through a shared low-rank projection (MFA), wide experts with a shared one."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, experts, gated_mlp, grouped_attention, layer_count, rotary
from sim.model.quantisation import Quantisation
from sim.model.spec import Dense, Layer, ModelSpec, MoE


@family("step3_text", "step3")
def step3(config: Config, quant: Quantisation) -> ModelSpec:
    """`moe_layers_enum` lists the routed layers."""
    count = layer_count(config)
    listed = config.text("moe_layers_enum", default=None)
    try:
        routed = set(range(1, count)) if listed is None else {int(i) for i in listed.split(",")}
    except ValueError:
        raise ValueError(
            f"{config.where}: 'moe_layers_enum' must be layer numbers with commas between, got {listed!r}."
        ) from None
    layers = []
    for i in range(count):
        mixer = grouped_attention(
            config,
            quant,
            i,
            kv_heads=config.integer("num_attention_groups", "num_key_value_heads"),
            q_rank=config.integer("share_q_dim"),
            formats=quant.formats(i, qkv_a="self_attn.q_proj", q_b="self_attn.wq", o="self_attn.o_proj"),
        )
        ffn: Dense | MoE
        if i in routed:
            shared = config.integer("share_expert_dim", "shared_expert_intermediate_size")
            ffn = experts(config, quant, i, "moe", "share_expert", shared_inter=shared)
        else:
            ffn = gated_mlp(config, quant, i)
        layers.append(Layer(mixer, ffn))
    return decoder(config, quant, layers, rotary(config))

"""Latent attention and fine-grained experts: DeepSeek-V2/V3/R1/V3.2, Kimi-K2, GLM-5."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, experts, gated_mlp, head_count, layer_count
from sim.model.quantisation import Quantisation
from sim.model.spec import MLA, Dense, Indexer, Layer, ModelSpec, MoE


@family("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite")
def deepseek(config: Config, quant: Quantisation) -> ModelSpec:
    """The first `first_k_dense_replace` layers are dense, then every `moe_layer_freq`-th layer routes."""
    count = layer_count(config)
    # heads of the latent, and sums of the parts below
    config.repeats(
        "num_key_value_heads", "head_dim", "qk_head_dim", "mlp_layer_types", "layer_types", "index_topk_freq"
    )
    layers = [
        Layer(latent_attention(config, quant, i), feed_forward(config, quant, i, routed_layer(config, i)))
        for i in range(count)
    ]
    drafts = config.integer("num_nextn_predict_layers", default=0, least=0)
    draft = Layer(latent_attention(config, quant, count), feed_forward(config, quant, count, True), norms=3, joins=True)
    return decoder(
        config, quant, layers, config.integer("qk_rope_head_dim"), draft_layers=(draft,) * drafts if drafts else ()
    )


def latent_attention(config: Config, quant: Quantisation, layer: int) -> MLA:
    """MLA of one layer, with the sparse indexer where the config has one."""
    indexer = None
    if config.integer("index_topk", default=0, least=0):
        kinds = config.sequence("indexer_types", of=str, default=[])
        indexer = Indexer(
            heads=config.integer("index_n_heads"),
            dim=config.integer("index_head_dim"),
            top_k=config.integer("index_topk"),
            shared=layer < len(kinds) and kinds[layer] == "shared",
        )
    return MLA(
        heads=head_count(config),
        q_rank=config.integer("q_lora_rank", default=None),
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        v_dim=config.integer("v_head_dim"),
        qkv_bias=config.flag("attention_bias", default=False),
        indexer=indexer,
        formats=quant.formats(
            layer,
            q="self_attn.q_proj",
            kv_a="self_attn.kv_a_proj_with_mqa",
            qkv_a="self_attn.q_a_proj",
            q_b="self_attn.q_b_proj",
            kv_b="self_attn.kv_b_proj",
            o="self_attn.o_proj",
            index_q="self_attn.indexer.wq_b",
            index_k="self_attn.indexer.wk",
        ),
    )


def routed_layer(config: Config, layer: int) -> bool:
    """Whether a layer has experts."""
    first = config.integer("first_k_dense_replace", default=0, least=0)
    every = config.integer("moe_layer_freq", default=1)
    return layer >= first and layer % every == 0


def feed_forward(config: Config, quant: Quantisation, layer: int, routed: bool) -> Dense | MoE:
    """Experts with their shared ones fused to one wide expert, or a dense MLP."""
    if not routed or not config.integer("n_routed_experts", default=0, least=0):
        return gated_mlp(config, quant, layer)
    inter = config.integer("moe_intermediate_size")
    return experts(
        config,
        quant,
        layer,
        inter=inter,
        shared_inter=inter * config.integer("n_shared_experts", default=0, least=0),
        router_bias=config.text("topk_method", default="") == "noaux_tc",
    )

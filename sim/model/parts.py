"""What most families read alike: the outer frame of a decoder, grouped-query attention, a gated MLP, layer kinds."""

from typing import Any

from sim.model.config import Config
from sim.model.quantisation import Quantisation
from sim.model.rope import partial_factor, reach, rope_tables
from sim.model.spec import Attention, Dense, Layer, ModelSpec, MoE, RopeTable


POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
    "model_max_length",
)
MOST_LAYERS = 10_000
UNTRAINED = 2048


def hidden_size(config: Config) -> int:
    """The width of the residual stream."""
    return int(config.integer("hidden_size", "n_embd", "d_model"))


def layer_count(config: Config) -> int:
    """The number of decoder layers."""
    return int(config.integer("num_hidden_layers", "n_layer", "num_layers", most=MOST_LAYERS))


def positions(config: Config) -> int:
    """Trained positions."""
    return int(config.integer(*POSITIONS, default=UNTRAINED))


def head_count(config: Config) -> int:
    """The number of attention heads."""
    return int(config.integer("num_attention_heads", "n_head"))


def decoder(
    config: Config, quant: Quantisation, layers: list[Layer], rotary_dim: int | None = None, **changes: Any
) -> ModelSpec:
    """The model around its layers: sizes, tied head, rope tables, formats; `changes` are more fields of `ModelSpec`.

    `rotary_dim` None: no rotary table.
    """
    trained = positions(config)
    tables: tuple[RopeTable, ...] = ()
    length = trained
    if rotary_dim is not None:
        tables, length = rope_tables(config, rotary_dim, trained), reach(config, trained)
    fields: dict[str, Any] = {
        "name": config.where,
        "model_type": config.text("model_type", default=""),
        "hidden": hidden_size(config),
        "vocab": config.integer("vocab_size"),
        "max_model_len": length,
        "layers": tuple(layers),
        "tied": config.flag("tie_word_embeddings", default=False),
        "ropes": tables,
        "dtype": quant.base.dtype,
        "head_format": quant.of("lm_head"),
        "quantisation": quant.name,
        "kv_dtype": quant.kv_dtype or quant.base.dtype,
    }
    model = ModelSpec(**{**fields, **changes})
    if not any(key in config.values for key in POSITIONS):
        model = model.noted(f"the config names no trained length: {UNTRAINED} tokens taken, as vLLM does")
    return model


def grouped_attention(config: Config, quant: Quantisation, layer: int, **changes: Any) -> Attention:
    """Attention with `num_attention_heads`, `num_key_value_heads` and `head_dim` in their usual keys."""
    heads = head_count(config)
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ValueError(
            f"{config.where}: 'num_key_value_heads' must divide the {heads} 'num_attention_heads', got {kv_heads}."
        )
    bias = config.flag("attention_bias", "qkv_bias", default=False)
    fields: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim(config),
        "qkv_bias": bias,
        "o_bias": bias,
        "formats": quant.formats(layer, qkv="self_attn.q_proj", o="self_attn.o_proj"),
    }
    return Attention(**{**fields, **changes})


def head_dim(config: Config) -> int:
    """`head_dim`, or `hidden_size / num_attention_heads`."""
    given = config.integer("head_dim", "attention_head_dim", "kv_channels", default=None)
    if given is not None:
        return int(given)
    hidden, heads = hidden_size(config), head_count(config)
    if hidden % heads:
        raise ValueError(
            f"{config.where}: 'hidden_size' {hidden} is no multiple of 'num_attention_heads' {heads}; give 'head_dim'."
        )
    return hidden // heads


def rotary(config: Config, default: float = 1.0) -> int:
    """Rotated dims of one head."""
    return round(head_dim(config) * partial_factor(config, default))


def gated_mlp(config: Config, quant: Quantisation, layer: int, inter: int | None = None, **changes: Any) -> Dense:
    """A gated MLP of `intermediate_size` units."""
    units = inter if inter is not None else config.integer("intermediate_size")
    formats = quant.formats(layer, gate_up="mlp.gate_proj", down="mlp.down_proj")
    bias = changes.pop("bias", None)
    if bias is None:
        bias = config.flag("mlp_bias", default=False)
    return Dense(units, bias=bias, formats=formats, **changes)


def experts(
    config: Config, quant: Quantisation, layer: int, prefix: str = "mlp", shared: str = "shared_experts", **changes: Any
) -> MoE:
    """A mixture of experts; counts and sizes in any of their usual keys.

    `prefix` is its module in a layer, `shared` the shared expert's inside that.
    """
    modules = {"experts": f"{prefix}.experts.0.down_proj"}
    if changes.get("shared_inter"):
        up = f"{prefix}.{shared}.up_proj"
        modules |= {"shared_gate_up": up, "shared_up": up, "shared_down": f"{prefix}.{shared}.down_proj"}
    formats = quant.formats(layer, **modules)
    count = config.integer("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    top_k = config.integer("num_experts_per_tok", "experts_per_token", "moe_top_k", "num_experts_per_token")
    if top_k > count:
        raise ValueError(f"{config.where}: 'num_experts_per_tok' must be at most the {count} experts, got {top_k}.")
    inter = changes.pop("inter", None) or config.integer("moe_intermediate_size", "intermediate_size")
    return MoE(count, top_k, inter, formats=formats, **changes)


def layer_kinds(
    config: Config, count: int, default: list[str], known: tuple[str, ...] = ("full_attention", "sliding_attention")
) -> list[str]:
    """`layer_types`, or `default`; ValueError for a kind that is not `known`, or if there are fewer than `count`."""
    kinds: list[str] = config.sequence("layer_types", of=str, default=default)
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise ValueError(f"{config.where}: 'layer_types' must be of {', '.join(known)}, got {unknown[0]!r}.")
    if len(kinds) < count:
        raise ValueError(
            f"{config.where}: 'layer_types' must have one entry for each of {count} layers, got {len(kinds)}."
        )
    return kinds[:count]


def window(config: Config) -> int | None:
    """`sliding_window` in tokens, where there is one."""
    return config.integer("sliding_window", "attention_window", default=None)

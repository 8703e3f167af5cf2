"""State-space models and their hybrids with attention: Mamba, Mamba-2, Jamba, Bamba, Nemotron-H."""

from dataclasses import replace

from sim.model.config import Config
from sim.model.families import family
from sim.model.linear import DTYPE_BYTES
from sim.model.parts import decoder, experts, gated_mlp, grouped_attention, hidden_size, layer_count, rotary
from sim.model.quantisation import Quantisation, read_dtype
from sim.model.spec import NO_FEEDFORWARD, Dense, Layer, Mamba, Mamba2, ModelSpec, MoE


def state_width(config: Config, quant: Quantisation) -> float:
    """Bytes per element of the recurrent state: `mamba_ssm_dtype`, or the activations' type."""
    name = config.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default=None)
    return DTYPE_BYTES[read_dtype(name, config.where, "mamba_ssm_dtype") if name else quant.base.dtype]


def mamba_layer(config: Config, quant: Quantisation, layer: int, prefix: str, inner_norms: bool) -> Mamba:
    """A Mamba-1 mixer; the step rank is `hidden / 16` where it is 'auto' or not given."""
    hidden = hidden_size(config)
    expand = config.integer("mamba_expand", "expand", default=2)
    auto = -(-hidden // 16)
    _, rank = config.get("mamba_dt_rank", "time_step_rank", default=auto)
    return Mamba(
        conv_kernel=config.integer("mamba_d_conv", "conv_kernel", default=4),
        conv_bytes_per_element=DTYPE_BYTES[quant.base.dtype],
        state_bytes_per_element=state_width(config, quant),
        conv_bias=config.flag("mamba_conv_bias", "use_conv_bias", default=True),
        inner=config.integer("intermediate_size", default=expand * hidden) if prefix == "mixer" else expand * hidden,
        state=config.integer("mamba_d_state", "state_size", default=16),
        dt_rank=auto if rank == "auto" else config.integer("mamba_dt_rank", "time_step_rank", default=auto),
        proj_bias=config.flag("mamba_proj_bias", "use_bias", default=False),
        inner_norms=inner_norms,
        formats=quant.formats(layer, **{"in": f"{prefix}.in_proj", "out": f"{prefix}.out_proj"}),
    )


def mamba2_layer(config: Config, quant: Quantisation, layer: int, prefix: str) -> Mamba2:
    """A Mamba-2 mixer."""
    heads = config.integer("mamba_n_heads", "mamba_num_heads", "num_heads")
    dim = config.get("mamba_d_head", "mamba_head_dim", "head_dim")[1]
    if dim == "auto":
        dim = config.integer("mamba_expand", default=2) * hidden_size(config) // heads
    else:
        dim = config.integer("mamba_d_head", "mamba_head_dim", "head_dim")
    return Mamba2(
        conv_kernel=config.integer("mamba_d_conv", "conv_kernel", default=4),
        conv_bytes_per_element=DTYPE_BYTES[quant.base.dtype],
        state_bytes_per_element=state_width(config, quant),
        conv_bias=config.flag("mamba_conv_bias", "use_conv_bias", default=True),
        heads=heads,
        head_dim=dim,
        groups=config.integer("mamba_n_groups", "n_groups", default=1),
        state=config.integer("mamba_d_state", "ssm_state_size", "state_size"),
        proj_bias=config.flag("mamba_proj_bias", "use_bias", default=False),
        formats=quant.formats(layer, **{"in": f"{prefix}.in_proj", "out": f"{prefix}.out_proj"}),
    )


@family("mamba", "falcon_mamba")
def mamba(config: Config, quant: Quantisation) -> ModelSpec:
    """Mixers only, one norm each."""
    layers = [
        Layer(mamba_layer(config, quant, i, "mixer", False), NO_FEEDFORWARD, norms=1)
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, tied=config.flag("tie_word_embeddings", default=True))


@family("mamba2")
def mamba2(config: Config, quant: Quantisation) -> ModelSpec:
    """Mixers only, one norm each."""
    layers = [
        Layer(mamba2_layer(config, quant, i, "mixer"), NO_FEEDFORWARD, norms=1) for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers)


@family("jamba")
def jamba(config: Config, quant: Quantisation) -> ModelSpec:
    """Attention (without position) and experts at their periods and offsets, Mamba and dense MLPs elsewhere."""
    attention_at = config.integer("attn_layer_period"), config.integer("attn_layer_offset", least=0)
    experts_at = config.integer("expert_layer_period"), config.integer("expert_layer_offset", least=0)
    inter = config.integer("intermediate_size")
    layers = []
    for i in range(layer_count(config)):
        attends = i % attention_at[0] == attention_at[1]
        mixer = grouped_attention(config, quant, i) if attends else mamba_layer(config, quant, i, "mamba", True)
        routed = i % experts_at[0] == experts_at[1] and config.integer("num_experts") > 1
        ffn = experts(config, quant, i, "feed_forward", inter=inter) if routed else gated_mlp(config, quant, i, inter)
        layers.append(Layer(mixer, ffn))
    return decoder(config, quant, layers)


@family("bamba")
def bamba(config: Config, quant: Quantisation) -> ModelSpec:
    """Mamba-2 with attention at `attn_layer_indices`; a dense MLP in every layer."""
    attends = config.sequence("attn_layer_indices", of=int, default=[])
    layers = [
        Layer(
            grouped_attention(config, quant, i) if i in attends else mamba2_layer(config, quant, i, "mamba"),
            gated_mlp(config, quant, i),
        )
        for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, rotary(config, 0.5))


@family("nemotron_h")
def nemotron_h(config: Config, quant: Quantisation) -> ModelSpec:
    """Blocks of one part each in the order of `hybrid_override_pattern`: M Mamba-2, * attention, - MLP, E experts.

    A block M or * and the - or E after it make one layer here. Attention has no positions.
    """
    config.repeats("num_hidden_layers", "expand", "partial_rotary_factor", "n_shared_experts", "intermediate_size")
    config.repeats("moe_shared_expert_overlap", "mlp_bias")
    pattern = nemotron_pattern(config, "hybrid_override_pattern", "layers_block_type")
    layers = nemotron_layers(config, quant, pattern)
    drafts: list[Layer] = []
    if config.integer("num_nextn_predict_layers", default=0, least=0):
        extra = nemotron_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
        drafts = [replace(layer, joins=i == 0) for i, layer in enumerate(nemotron_layers(config, quant, extra))]
    note = f"{len(pattern)} blocks of the checkpoint are counted as {len(layers)} layers (pipeline stages divide these)"
    return decoder(config, quant, layers, draft_layers=tuple(drafts)).noted(note)


def nemotron_pattern(config: Config, key: str, list_key: str) -> str:
    """The order of blocks as a text of M, *, - and E, from that text or from a list of names."""
    names = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
    listed = config.sequence(list_key, of=str, default=None)
    unknown = sorted(set(listed or ()) - set(names))
    if unknown:
        raise ValueError(f"{config.where}: '{list_key}' must be of {', '.join(names)}, got {unknown[0]!r}.")
    pattern = "".join(names[name] for name in listed) if listed else str(config.text(key))
    pairs = zip(pattern, pattern[1:], strict=False)
    if not pattern or set(pattern) - set("M*-E") or pattern[0] in "-E" or any({*pair} <= {*"-E"} for pair in pairs):
        raise ValueError(
            f"{config.where}: '{key}' must be blocks M or *, each with at most one - or E after it, got {pattern!r}."
        )
    return pattern


def nemotron_layers(config: Config, quant: Quantisation, pattern: str) -> list[Layer]:
    """Layers of a pattern; a block after a mixer becomes its feed-forward part."""
    layers: list[Layer] = []
    for i, block in enumerate(pattern):
        if block in "M*":
            mixer = mamba2_layer(config, quant, i, "mixer") if block == "M" else grouped_attention(config, quant, i)
            layers.append(Layer(mixer, NO_FEEDFORWARD, norms=1))
            continue
        ffn = nemotron_experts(config, quant, i) if block == "E" else nemotron_mlp(config, quant, i)
        layers[-1] = Layer(layers[-1].mixer, ffn, norms=2)
    return layers


def nemotron_mlp(config: Config, quant: Quantisation, layer: int) -> Dense:
    """Up and down with a squared ReLU between."""
    formats = quant.formats(layer, up="mixer.up_proj", down="mixer.down_proj")
    bias = config.flag("mlp_bias", default=False)
    return Dense(config.integer("intermediate_size"), gated=False, bias=bias, formats=formats)


def nemotron_experts(config: Config, quant: Quantisation, layer: int) -> MoE:
    """Ungated experts, in a narrower space where `moe_latent_size` is given, with one shared expert."""
    return experts(
        config,
        quant,
        layer,
        "mixer",
        gated=False,
        latent=config.integer("moe_latent_size", default=None),
        inter=config.integer("moe_intermediate_size"),
        shared_inter=config.integer("moe_shared_expert_intermediate_size", default=0, least=0),
        router_bias=True,
    )

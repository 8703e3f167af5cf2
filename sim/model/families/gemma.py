"""Gemma 1-3: tied embeddings, wide heads, four norms from Gemma 2 on, sliding layers between full ones."""

from sim.model.config import Config
from sim.model.families import family
from sim.model.parts import decoder, gated_mlp, grouped_attention, head_dim, layer_count, layer_kinds, positions, window
from sim.model.quantisation import Quantisation
from sim.model.rope import rows_of
from sim.model.spec import Layer, ModelSpec, RopeTable


# what the published Gemma-3 configs leave to the defaults of their class
GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}


@family("gemma")
def gemma(config: Config, quant: Quantisation) -> ModelSpec:
    """Full attention, two norms."""
    layers = [
        Layer(grouped_attention(config, quant, i), gated_mlp(config, quant, i)) for i in range(layer_count(config))
    ]
    return decoder(config, quant, layers, head_dim(config), tied=config.flag("tie_word_embeddings", default=True))


@family("gemma2")
def gemma2(config: Config, quant: Quantisation) -> ModelSpec:
    """Sliding and full in turn, sliding first; norms before and after each part."""
    count, keys = layer_count(config), window(config)
    kinds = layer_kinds(config, count, ["full_attention" if i % 2 else "sliding_attention" for i in range(count)])
    layers = [
        Layer(
            grouped_attention(config, quant, i, window=keys if kinds[i] == "sliding_attention" else None),
            gated_mlp(config, quant, i),
            norms=4,
        )
        for i in range(count)
    ]
    return decoder(config, quant, layers, head_dim(config), tied=config.flag("tie_word_embeddings", default=True))


@family("gemma3_text", "gemma3")
def gemma3(config: Config, quant: Quantisation) -> ModelSpec:
    """Every `sliding_window_pattern`-th layer full; query and key normed; an unscaled rope table for sliding layers."""
    taken = {key: value for key, value in GEMMA3_DEFAULTS.items() if key not in config.values}
    config.values |= taken
    count, keys = layer_count(config), window(config)
    every = config.integer("sliding_window_pattern", "_sliding_window_pattern")
    default = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    kinds = layer_kinds(config, count, default)
    layers = [
        Layer(
            grouped_attention(
                config, quant, i, qk_norm="head", window=keys if kinds[i] == "sliding_attention" else None
            ),
            gated_mlp(config, quant, i),
            norms=4,
        )
        for i in range(count)
    ]
    trained = positions(config)
    scaling = config.mapping("rope_scaling", default=None)
    tables: tuple[RopeTable, ...] = (RopeTable(trained, head_dim(config)),)
    if scaling is not None:
        tables += (RopeTable(rows_of(scaling, trained, config.where), head_dim(config)),)
    tied = config.flag("tie_word_embeddings", default=True)
    # the scaling reaches the trained length; it is not beyond it
    model = decoder(config, quant, layers, None, tied=tied, ropes=tables)
    return model.noted(f"not in the config, taken from the class's defaults: {', '.join(taken)}") if taken else model

"""What one rank computes in a layer: shapes from a model's config.json, divided over ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


VOCAB_PADDING = 64

UNGATED = ("opt", "phi", "gpt2", "gpt_neox", "starcoder2", "nemotron_h")
"""Model types whose feed-forward part has two matrices."""


@dataclass(frozen=True)
class Product:
    """`[m, k] x [k, n]` of one rank, for each token of a batch."""

    op: str
    n: int
    k: int


@dataclass(frozen=True)
class Heads:
    """Attention of one rank; `window`: keys that a row sees at most, None without a limit."""

    q_heads: int
    kv_heads: int
    dim: int
    window: int | None = None


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer: of the model, `inter` before `tp` divides it; `matrices` 3 gated, 2 otherwise."""

    experts: int
    top_k: int
    hidden: int
    inter: int
    tp: int
    ep: int
    matrices: int = 3

    @property
    def local(self) -> int:
        """Experts of this rank."""
        return self.experts // self.ep


@dataclass(frozen=True)
class Shapes:
    """One rank of a model. `vocab` is the rank's share of the padded vocabulary, `whole_vocab` all of it.

    `heads` is None for latent attention, whose kernels torch does not have. `dense` and `routed` count the layers with
    a dense feed-forward part and with experts; `products` are those of both kinds, each once.
    """

    name: str
    hidden: int
    layers: int
    vocab: int
    whole_vocab: int
    tied: bool
    heads: Heads | None
    products: tuple[Product, ...]
    inter: int = 0
    dense: int = 0
    routed: int = 0
    experts: Experts | None = None
    notes: tuple[str, ...] = field(default=())


def read_shapes(config: Mapping[str, Any], name: str, tp: int = 1, ep: int = 1) -> Shapes:
    """Shapes of one rank of `tp`, whose experts are shared out over `ep` ranks: each divided over `tp / ep` of them.

    **Raises:** ValueError, one sentence, for a missing key or ranks that do not divide the model.
    """
    inner = config.get("text_config")
    keys = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    hidden, layers = whole(keys, name, "hidden_size"), whole(keys, name, "num_hidden_layers")
    vocab = -(-whole(keys, name, "vocab_size") // VOCAB_PADDING) * VOCAB_PADDING
    if tp < 1 or ep < 1 or tp % ep:
        raise ValueError(f"--ep must divide --tp, got --tp {tp} and --ep {ep}.")
    matrices = 2 if keys.get("model_type") in UNGATED else 3
    heads, products, notes = attention(keys, name, hidden, tp)
    experts = routed_experts(keys, name, hidden, tp, ep, matrices)
    first = int(keys.get("first_k_dense_replace") or 0)
    routed = layers - first if experts else 0
    inter = int(keys.get("intermediate_size") or keys.get("ffn_dim") or 0)
    if routed < layers:
        if not inter:
            raise ValueError(f"{name}: 'intermediate_size' is missing.")
        products += feed_forward(hidden, divided(inter, tp, "intermediate units"), matrices, "")
    if experts:
        products.append(Product("router", experts.experts, hidden))
        shared = shared_units(keys, experts)
        if shared:
            products += feed_forward(hidden, divided(shared, tp, "shared expert units"), matrices, "shared_")
    return Shapes(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=divided(vocab, tp, "rows of the padded vocabulary"),
        whole_vocab=vocab,
        tied=bool(keys.get("tie_word_embeddings", False)),
        heads=heads,
        products=tuple(products),
        inter=inter // tp,
        dense=layers - routed,
        routed=routed,
        experts=experts,
        notes=tuple(notes),
    )


def attention(
    keys: Mapping[str, Any], name: str, hidden: int, tp: int
) -> tuple[Heads | None, list[Product], list[str]]:
    """Heads of one rank and the products around them; for latent attention only the products, with a note."""
    q_heads = whole(keys, name, "num_attention_heads")
    mine = divided(q_heads, tp, "attention heads")
    if keys.get("kv_lora_rank"):
        latent = int(keys["kv_lora_rank"]) + int(keys["qk_rope_head_dim"])
        query = mine * (int(keys["qk_nope_head_dim"]) + int(keys["qk_rope_head_dim"]))
        values = mine * int(keys["v_head_dim"])
        rank = keys.get("q_lora_rank")
        products = [Product("kv_b_proj", mine * int(keys["qk_nope_head_dim"]) + values, int(keys["kv_lora_rank"]))]
        if rank:
            products += [Product("qkv_a_proj", int(rank) + latent, hidden), Product("q_b_proj", query, int(rank))]
        else:
            products += [Product("q_proj", query, hidden), Product("kv_a_proj", latent, hidden)]
        products.append(Product("o_proj", hidden, values))
        return None, products, ["torch has no kernel of latent attention: its products are measured, it is not"]
    kv_heads = int(keys.get("num_key_value_heads") or q_heads)
    dim = int(keys.get("head_dim") or hidden // q_heads)
    kept = max(1, kv_heads // tp)
    window = keys.get("sliding_window") if keys.get("use_sliding_window", True) else None
    heads = Heads(mine, kept, dim, int(window) if window else None)
    products = [Product("qkv_proj", (mine + 2 * kept) * dim, hidden), Product("o_proj", hidden, mine * dim)]
    return heads, products, []


def routed_experts(keys: Mapping[str, Any], name: str, hidden: int, tp: int, ep: int, matrices: int) -> Experts | None:
    """The routed experts, None for a model without; divided in groups of `tp / ep` ranks."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((int(keys[key]) for key in names if keys.get(key)), 0)
    if count < 2:
        return None
    inter = int(keys.get("moe_intermediate_size") or whole(keys, name, "intermediate_size"))
    top_k = whole(keys, name, "num_experts_per_tok")
    divided(count, ep, "experts")
    divided(inter, tp // ep, "units of an expert")
    return Experts(count, top_k, hidden, inter, tp // ep, ep, matrices)


def shared_units(keys: Mapping[str, Any], experts: Experts) -> int:
    """Units of the experts that every token visits."""
    if keys.get("shared_expert_intermediate_size"):
        return int(keys["shared_expert_intermediate_size"])
    return int(keys.get("n_shared_experts") or 0) * experts.inter


def feed_forward(hidden: int, inter: int, matrices: int, prefix: str) -> list[Product]:
    """Up (with gate) and down of `inter` units."""
    if matrices == 3:
        return [Product(f"{prefix}gate_up_proj", 2 * inter, hidden), Product(f"{prefix}down_proj", hidden, inter)]
    return [Product(f"{prefix}fc1", inter, hidden), Product(f"{prefix}fc2", hidden, inter)]


def divided(count: int, ranks: int, what: str) -> int:
    """`count / ranks`; ValueError naming what does not divide."""
    if count % ranks:
        raise ValueError(f"{ranks} ranks do not divide the {count} {what}: change --tp or --ep.")
    return count // ranks


def whole(keys: Mapping[str, Any], name: str, key: str) -> int:
    """A whole number of at least 1 of a config; ValueError naming the key."""
    value = keys.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: '{key}' must be a whole number of at least 1, got {value!r:.40}.")
    return value

"""Shapes of one model's kernels on one tensor-parallel rank, by the name of the layer."""

import json
from dataclasses import dataclass
from pathlib import Path

from calibration.tables.rows import DTYPE_NAMES


ELEMENT_BYTES = 2.0
"""Activations are 16 bit in every profile that is read here."""


@dataclass(frozen=True)
class Dimensions:
    """What of a model decides the shapes of its kernels; `experts` 0 without any, `expert_inter` of one of them."""

    hidden: int
    inter: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dtype: str = "bf16"
    gated: bool = True
    window: float = float("inf")
    experts: int = 0
    top_k: int = 0
    expert_inter: int = 0

    def gemm(self, op: str, tp: int) -> tuple[float, float] | None:
        """Output and input width of a product on one rank, nothing for what is no product.

        `qkv_norm_proj` normalises queries and keys too; `expert_...` is one expert.
        """
        q, kv = self.q_heads * self.head_dim / tp, max(self.kv_heads / tp, 1.0) * self.head_dim
        hidden, inter, expert = float(self.hidden), self.inter / tp, self.expert_inter / tp
        shapes = {
            "qkv_proj": (q + 2.0 * kv, hidden),
            "q_proj": (q, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, q),
            "gate_up_proj": ((2.0 if self.gated else 1.0) * inter, hidden),
            "gate_proj": (inter, hidden),
            "up_proj": (inter, hidden),
            "down_proj": (hidden, inter),
            "qkv_norm_proj": (q + 2.0 * kv, hidden),
            "mtp_proj": (hidden, 2.0 * hidden),
            "router": (float(self.experts), hidden),
            "expert_gate_proj": (expert, hidden),
            "expert_up_proj": (expert, hidden),
            "expert_down_proj": (hidden, expert),
        }
        return shapes.get(op)

    def elementwise(self, op: str, tp: int) -> float | None:
        """Bytes read and written per token, nothing for what moves no activations alone.

        `norm` adds the residual, `norm_only` does not; `embedding_shard` finds one token in `tp` among its rows.
        """
        q, kv = self.q_heads * self.head_dim / tp, max(self.kv_heads / tp, 1.0) * self.head_dim
        elements = {
            "embedding": 2.0 * self.hidden,
            "embedding_shard": (1.0 + 1.0 / tp) * self.hidden,
            "norm": 4.0 * self.hidden,
            "norm_only": 2.0 * self.hidden,
            "final_norm": 4.0 * self.hidden,
            "rotary": 2.0 * (q + kv),
            "qk_norm": 2.0 * (self.q_heads + self.kv_heads) * self.head_dim,  # not split in a profile: `tp_stable`
            "activation": (3.0 if self.gated else 2.0) * (self.expert_inter or self.inter) / tp,
            "add": 3.0 * self.hidden,
            "cache_write": 4.0 * kv,
        }
        return elements[op] * ELEMENT_BYTES if op in elements else None


def from_config(path: Path) -> Dimensions:
    """Dimensions from a model's HuggingFace `config.json`.

    **Raises:** ValueError where a number is missing.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        inter = int(config["intermediate_size"])
        return Dimensions(
            hidden=hidden,
            inter=inter,
            q_heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab=int(config["vocab_size"]),
            dtype=DTYPE_NAMES.get(str(config.get("torch_dtype")), "bf16"),
            experts=experts,
            top_k=int(config.get("num_experts_per_tok") or 0),
            expert_inter=int(config.get("moe_intermediate_size") or inter) if experts else 0,
        )
    except KeyError as error:
        raise ValueError(f"{path} must be a model's config.json, the key {error} is missing.") from None


def config_of(model: str, inside: Path) -> Path:
    """The model's config.json: `configs/model/<model>.json` in a folder above, or `config.json` beside the profile.

    **Raises:** ValueError where there is none.
    """
    places = [inside.parent / "config.json", *(up / "configs/model" / f"{model}.json" for up in inside.parents)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ValueError(f"{inside} needs the dimensions of {model}: put its config.json into {inside.parent}.")
    return found

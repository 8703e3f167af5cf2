"""What runs: a decoder described by its layers, down to each weight matrix of one rank.

Everything here is static: frozen dataclasses of integers. A layer is a *mixer* (attention,
latent attention, or a recurrent state) and a feed-forward part. Each of them answers
the same questions for one tensor-parallel rank: which matrices, how many cache bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"]
CacheKind = Literal["full", "swa", "chunk", "mla", "mamba"]


@dataclass(frozen=True)
class Linear:
    """One weight matrix of one rank, `y[n] = x[k] W (+ b)`.

    `dtype` is the stored type; `bytes_per_param` includes the scales of a quantised format.
    `rows` says which tokens pass through it: every token of the batch, or those that emit.
    """

    name: str
    k: int
    n: int
    dtype: Dtype = "bf16"
    bytes_per_param: float = 2.0
    bias: bool = False
    rows: Literal["tokens", "emitting"] = "tokens"

    @property
    def params(self) -> int:
        """`n k`, plus `n` with a bias."""
        return self.n * self.k + (self.n if self.bias else 0)

    @property
    def weight_bytes(self) -> float:
        """Stored bytes; a bias stays in 16 bits."""
        return self.n * self.k * self.bytes_per_param + (2 * self.n if self.bias else 0)


@dataclass(frozen=True)
class CacheSpec:
    """What a mixer keeps per sequence on one rank.

    `bytes_per_token` for caches that grow, `state_bytes` for those that do not. `window`: only the
    last `window` tokens are needed (swa), or only those of the current chunk (chunk).
    """

    kind: CacheKind
    kv_heads: int = 0
    head_dim: int = 0
    bytes_per_token: float = 0.0
    state_bytes: int = 0
    window: int | None = None

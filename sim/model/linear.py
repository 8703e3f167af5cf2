"""The atoms a layer is made of: weight formats, one rank's matrices and vectors, its cache, its attention shapes."""

from dataclasses import dataclass
from typing import Literal


Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"]
CacheKind = Literal["full", "swa", "chunk", "mla", "mamba"]

DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}


@dataclass(frozen=True)
class WeightFormat:
    """How a matrix is stored: element type and bytes per parameter, scales included."""

    dtype: Dtype = "bf16"
    bytes_per_param: float = 2.0


BF16 = WeightFormat()


@dataclass(frozen=True)
class Formats:
    """The formats of a part's matrices: one default, and exceptions by matrix name."""

    default: WeightFormat = BF16
    exceptions: tuple[tuple[str, WeightFormat], ...] = ()

    def of(self, name: str) -> WeightFormat:
        """The format of matrix `name`."""
        return dict(self.exceptions).get(name, self.default)


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


def linear(name: str, k: int, n: int, formats: Formats, bias: bool = False) -> Linear:
    """A matrix stored as `formats` says for its name."""
    stored = formats.of(name)
    return Linear(name, k, n, stored.dtype, stored.bytes_per_param, bias)


@dataclass(frozen=True)
class Vector:
    """A weight that no matrix product uses (norm, sink, convolution, decay), on one rank."""

    name: str
    params: int
    bytes_per_param: float = 2.0

    @property
    def weight_bytes(self) -> float:
        """Stored bytes."""
        return self.params * self.bytes_per_param


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


@dataclass(frozen=True)
class HeadShape:
    """One score-and-value product over the cached tokens, per layer on one rank.

    For a query row against `j` keys: `2 q_heads j (qk_dim + v_dim)` FLOPs and `kv_bytes_per_token j` bytes read.
    MLA decodes in the latent (absorbed) dims `qk_dim`, `v_dim` and prefills expanded: `prefill_dim` is the sum of its
    per-head score and value dims (for plain attention `qk_dim + v_dim`). `keys` limits how many keys a row reads: the
    last `keys` (window), those of its own chunk of `keys` (`chunked`), or the best `keys` (sparse); None: all.
    """

    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    prefill_dim: int
    kv_bytes_per_token: float
    keys: int | None = None
    chunked: bool = False


@dataclass(frozen=True)
class RoutedExperts:
    """The routed experts of one layer on one rank.

    A token visits `top_k` of `experts`; this rank holds `local_experts` of them, each with `matrices` products between
    `hidden` and `inter` (3 gated: gate, up, down; 2 otherwise). `inter` is the part of a unit dimension that this rank
    holds: already divided when tensor parallelism splits every expert.
    """

    experts: int
    local_experts: int
    top_k: int
    hidden: int
    inter: int
    matrices: int
    dtype: Dtype = "bf16"
    bytes_per_param: float = 2.0
    bias: bool = False

    @property
    def expert_params(self) -> int:
        """Parameters of one expert on this rank."""
        biases = (self.matrices - 1) * self.inter + self.hidden if self.bias else 0
        return self.matrices * self.hidden * self.inter + biases

    @property
    def params(self) -> int:
        """Parameters of all experts on this rank."""
        return self.local_experts * self.expert_params

    @property
    def weight_bytes(self) -> float:
        """Stored bytes of all experts on this rank; biases stay in 16 bits."""
        matrix = self.matrices * self.hidden * self.inter
        return self.local_experts * (matrix * self.bytes_per_param + 2 * (self.expert_params - matrix))


def share(count: int, what: str, tensor_parallel: int) -> int:
    """`count / tensor_parallel`; ValueError naming `what` when it does not divide."""
    if count % tensor_parallel:
        raise ValueError(
            f"tensor parallel size {tensor_parallel} does not divide the {count} {what}; "
            "change deployment.tensor_parallel."
        )
    return count // tensor_parallel


def kv_share(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads of one rank: `max(1, kv_heads / tp)`; heads are copied when there are more ranks than heads.

    ValueError unless one of the two numbers divides the other.
    """
    large, small = max(kv_heads, tensor_parallel), min(kv_heads, tensor_parallel)
    if large % small:
        raise ValueError(
            f"{kv_heads} KV heads cannot be divided over, or copied to, {tensor_parallel} tensor-parallel ranks; "
            "change deployment.tensor_parallel."
        )
    return max(1, kv_heads // tensor_parallel)


__all__ = [
    "BF16",
    "DTYPE_BYTES",
    "CacheKind",
    "CacheSpec",
    "Dtype",
    "Formats",
    "HeadShape",
    "Linear",
    "RoutedExperts",
    "Vector",
    "WeightFormat",
    "kv_share",
    "linear",
    "share",
]

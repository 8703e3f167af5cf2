"""Mixers with a cache that grows: softmax attention in its variants, and latent attention (MLA)."""

from dataclasses import dataclass, field
from typing import Literal

from sim.model.linear import CacheSpec, Formats, HeadShape, Linear, Vector, kv_share, linear, share


@dataclass(frozen=True)
class Attention:
    """Softmax attention: MHA, GQA or MQA by `heads` and `kv_heads`; full, sliding (`window`) or chunked (`chunk`).

    `v_dim` is the value dim where it differs from `head_dim`. `qk_norm`: a norm of one head's dim, or over all heads.
    `gate` doubles the query projection (an elementwise output gate). `q_rank` makes the query low-rank: a shared
    down-projection to `q_rank`, a norm, and a per-head up-projection (MFA).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int | None = None
    window: int | None = None
    chunk: int | None = None
    q_rank: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "all"] = "none"
    sinks: bool = False
    gate: bool = False
    formats: Formats = field(default_factory=Formats)

    @property
    def value_dim(self) -> int:
        """Dim of one value head."""
        return self.head_dim if self.v_dim is None else self.v_dim

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Fused qkv and o of one rank; with `q_rank` the shared qkv_a is on every rank and q_b is divided."""
        heads = share(self.heads, "attention heads", tensor_parallel)
        kv = kv_share(self.kv_heads, tensor_parallel) * (self.head_dim + self.value_dim)
        o = linear("o", heads * self.value_dim, hidden, self.formats, self.o_bias)
        if self.q_rank is not None:
            # one KV head for all queries: its projection is computed on every rank
            qkv_a = linear("qkv_a", hidden, self.q_rank + kv, self.formats, self.qkv_bias)
            return qkv_a, linear("q_b", self.q_rank, heads * self.head_dim, self.formats), o
        queries = heads * self.head_dim * (2 if self.gate else 1)
        return linear("qkv", hidden, queries + kv, self.formats, self.qkv_bias), o

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """Norms of query and key, the norm between a low-rank query's matrices, sinks."""
        heads, kv_heads = (
            share(self.heads, "attention heads", tensor_parallel),
            kv_share(self.kv_heads, tensor_parallel),
        )
        parts = []
        if self.qk_norm == "head":
            parts.append(Vector("qk_norm", 2 * self.head_dim))
        if self.qk_norm == "all":
            parts.append(Vector("qk_norm", (heads + kv_heads) * self.head_dim))
        if self.q_rank is not None:
            parts.append(Vector("q_norm", self.q_rank))
        if self.sinks:
            parts.append(Vector("sinks", heads))
        return tuple(parts)

    def cache(self, tensor_parallel: int, kv_bytes_per_element: float) -> CacheSpec:
        """Keys and values of this rank's KV heads; a window or chunk if the layer has one."""
        heads = kv_share(self.kv_heads, tensor_parallel)
        kind: Literal["full", "swa", "chunk"] = "swa" if self.window else "chunk" if self.chunk else "full"
        per_token = heads * (self.head_dim + self.value_dim) * kv_bytes_per_element
        return CacheSpec(kind, heads, self.head_dim, per_token, window=self.window or self.chunk)

    def shapes(self, tensor_parallel: int, kv_bytes_per_element: float) -> tuple[HeadShape, ...]:
        """The one score-and-value product of this layer."""
        cache = self.cache(tensor_parallel, kv_bytes_per_element)
        return (
            HeadShape(
                q_heads=share(self.heads, "attention heads", tensor_parallel),
                kv_heads=cache.kv_heads,
                qk_dim=self.head_dim,
                v_dim=self.value_dim,
                prefill_dim=self.head_dim + self.value_dim,
                kv_bytes_per_token=cache.bytes_per_token,
                keys=cache.window,
                chunked=cache.kind == "chunk",
            ),
        )


@dataclass(frozen=True)
class Indexer:
    """Chooses the `top_k` tokens a sparse-attention row reads: `heads` cheap scores of `dim` over the whole context.

    Its keys are cached in one byte per element with one float scale per `scale_group`. `shared`: the
    layer reuses the choice of an earlier layer and has no indexer weights of its own.
    """

    heads: int
    dim: int
    top_k: int
    scale_group: int = 128
    shared: bool = False

    @property
    def bytes_per_token(self) -> float:
        """Cached key bytes of one token."""
        return 0.0 if self.shared else self.dim + 4 * self.dim / self.scale_group


@dataclass(frozen=True)
class MLA:
    """Multi-head latent attention: the cache holds one latent of `kv_rank` and one rotary key of `rope_dim` per token.

    Prefill expands the latent per head (`nope_dim + rope_dim` scores, `v_dim` values); decode scores in the latent
    itself, with the `kv_b` matrix folded into query and output, which costs the same as one pass through `kv_b`.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    qkv_bias: bool = False
    indexer: Indexer | None = None
    formats: Formats = field(default_factory=Formats)

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Down-projections (on every rank), q_b or q, kv_b and o by heads, the indexer's (on every rank)."""
        heads = share(self.heads, "attention heads", tensor_parallel)
        latent, query = self.kv_rank + self.rope_dim, heads * (self.nope_dim + self.rope_dim)
        parts = []
        if self.q_rank is None:
            parts += [
                linear("q", hidden, query, self.formats),
                linear("kv_a", hidden, latent, self.formats, self.qkv_bias),
            ]
        else:
            parts += [
                linear("qkv_a", hidden, self.q_rank + latent, self.formats, self.qkv_bias),
                linear("q_b", self.q_rank, query, self.formats),
            ]
        parts += [
            linear("kv_b", self.kv_rank, heads * (self.nope_dim + self.v_dim), self.formats),
            linear("o", heads * self.v_dim, hidden, self.formats, self.qkv_bias),
        ]
        if self.indexer is not None and not self.indexer.shared:
            parts += [
                linear("index_q", self.q_rank or hidden, self.indexer.heads * self.indexer.dim, self.formats),
                linear("index_k", hidden, self.indexer.dim, self.formats),
                linear("index_weights", hidden, self.indexer.heads, self.formats),
            ]
        return tuple(parts)

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """Norms of the latents, and of the indexer's key (weight and bias)."""
        parts = [Vector("latent_norm", self.kv_rank + (self.q_rank or 0))]
        if self.indexer is not None and not self.indexer.shared:
            parts.append(Vector("index_norm", 2 * self.indexer.dim))
        return tuple(parts)

    def latent_bytes_per_token(self, kv_bytes_per_element: float) -> float:
        """Cache bytes of one token without the indexer's keys.

        In one byte per element a sparse model keeps a float scale per 128 latent elements, the rotary key in 16 bits.
        """
        if self.indexer is not None and kv_bytes_per_element == 1:
            return self.kv_rank + 4 * self.kv_rank / 128 + 2 * self.rope_dim
        return (self.kv_rank + self.rope_dim) * kv_bytes_per_element

    def cache(self, tensor_parallel: int, kv_bytes_per_element: float) -> CacheSpec:
        """The latent, the same on every rank, with the indexer's keys."""
        index = self.indexer.bytes_per_token if self.indexer else 0.0
        per_token = self.latent_bytes_per_token(kv_bytes_per_element) + index
        return CacheSpec("mla", 1, self.kv_rank + self.rope_dim, per_token)

    def shapes(self, tensor_parallel: int, kv_bytes_per_element: float) -> tuple[HeadShape, ...]:
        """The latent product and, for a sparse model, the indexer's scan of the whole context."""
        latent = HeadShape(
            q_heads=share(self.heads, "attention heads", tensor_parallel),
            kv_heads=1,
            qk_dim=self.kv_rank + self.rope_dim,
            v_dim=self.kv_rank,
            prefill_dim=self.nope_dim + self.rope_dim + self.v_dim,
            kv_bytes_per_token=self.latent_bytes_per_token(kv_bytes_per_element),
            keys=self.indexer.top_k if self.indexer else None,
        )
        if self.indexer is None or self.indexer.shared:
            return (latent,)
        scan = HeadShape(
            q_heads=self.indexer.heads,
            kv_heads=1,
            qk_dim=self.indexer.dim,
            v_dim=0,
            prefill_dim=self.indexer.dim,
            kv_bytes_per_token=self.indexer.bytes_per_token,
        )
        return latent, scan


@dataclass(frozen=True)
class NoMixer:
    """The mixer of a feed-forward part that stands alone, on devices of its own: nothing to compute or to keep."""

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """None."""
        return ()

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """None."""
        return ()

    def cache(self, tensor_parallel: int, kv_bytes_per_element: float) -> CacheSpec:
        """No bytes."""
        return CacheSpec("full")

    def shapes(self, tensor_parallel: int, kv_bytes_per_element: float) -> tuple[HeadShape, ...]:
        """None."""
        return ()

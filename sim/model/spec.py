"""What runs: a decoder described by its layers, down to each weight matrix of one rank.

Everything here is static: frozen dataclasses of integers. A layer is a *mixer* (attention,
latent attention, or a recurrent state) and a feed-forward part. Each of them answers
the same questions for one tensor-parallel rank: which matrices, how many cache bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sim.model import weights
from sim.model.attention import MLA, Attention, Indexer, NoMixer
from sim.model.feedforward import NO_FEEDFORWARD, Dense, MoE
from sim.model.linear import (
    BF16,
    DTYPE_BYTES,
    CacheKind,
    CacheSpec,
    Dtype,
    Formats,
    HeadShape,
    Linear,
    RoutedExperts,
    Vector,
    WeightFormat,
    kv_share,
    linear,
    share,
)
from sim.model.recurrent import GatedDelta, Mamba, Mamba2, Recurrent
from sim.model.shards import Shards


Mixer = Attention | MLA | Recurrent | NoMixer
FeedForward = Dense | MoE

VOCAB_PADDING = 64


@dataclass
class ModelConf:
    """Schema of `conf/model/*.yaml`: a config.json's keys that matter (`config`), or a `path` to one.

    `published_params` is the count its makers print, without draft layers and vision tower; `source` says where
    the facts were read. `path` may name a config.json, a folder that holds one, or another of these files.
    """

    name: str = "model"
    hf_id: str = ""
    source: str = ""
    published_params: float | None = None
    published_active_params: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    kv_dtype: str = "auto"


@dataclass(frozen=True)
class RopeTable:
    """A precomputed table of rotary angles that an engine keeps with the weights: `rows x dim` numbers per rank."""

    rows: int
    dim: int


@dataclass(frozen=True)
class Layer:
    """One decoder layer: a mixer and a feed-forward part with `norms` norm vectors of the hidden size.

    `joins`: a draft layer that first projects `[hidden; hidden]` to `hidden` (MTP), with two more norms.
    """

    mixer: Mixer
    ffn: FeedForward
    norms: int = 2
    norm_bias: bool = False
    joins: bool = False

    def mixers(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """The matrices of one rank outside the feed-forward part, in order."""
        join = (Linear("join", 2 * hidden, hidden),) if self.joins else ()
        return join + self.mixer.linears(hidden, tensor_parallel)

    def linears(self, hidden: int, tensor_parallel: int, dense_parallel: int | None = None) -> tuple[Linear, ...]:
        """All matrices of one rank in order, without routed experts.

        `dense_parallel`: ranks that share the feed-forward part, where they are not those that share the mixer.
        """
        return self.mixers(hidden, tensor_parallel) + self.ffn.linears(hidden, dense_parallel or tensor_parallel)

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """All other weights of one rank; those of a feed-forward part are on every rank."""
        norms = Vector("norms", (self.norms + 2 * self.joins) * hidden * (2 if self.norm_bias else 1))
        return (norms, *self.mixer.vectors(hidden, tensor_parallel), *self.ffn.vectors(hidden, tensor_parallel))

    def params(self, hidden: int, active: bool = False) -> float:
        """Parameters of the whole layer; `active`: only those one token uses (`top_k` of the experts)."""
        count: float = sum(x.params for x in self.linears(hidden, 1)) + sum(x.params for x in self.vectors(hidden, 1))
        routed = self.ffn.routed(hidden, 1)
        if routed is not None:
            count += routed.expert_params * (routed.top_k if active else routed.experts)
        return count


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model.

    `draft_layers` (MTP) are loaded only when speculation uses them. `positions` are rows of a learned position table.
    `embedding_dim` differs from `hidden` when the embedding is projected. `tied`: the LM head is the embedding. `dtype`
    is the type of activations and unquantised weights, `quantisation` the name of the weights' format, `kv_dtype` what
    the cache holds unless the engine says otherwise. `tower_params`: a vision tower loaded beside it. `notes` say what
    this description leaves out or assumes; every report shows them.
    """

    name: str
    model_type: str
    hidden: int
    vocab: int
    max_model_len: int
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    tied: bool = False
    head_bias: bool = False
    positions: int = 0
    embedding_dim: int | None = None
    final_norm: bool = True
    norm_bias: bool = False
    embedding_norm: bool = False
    ropes: tuple[RopeTable, ...] = ()
    dtype: Dtype = "bf16"
    head_format: WeightFormat = BF16
    quantisation: str = "none"
    kv_dtype: Dtype = "bf16"
    tower_params: int = 0
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def padded_vocab(self) -> int:
        """The vocabulary rounded up to a multiple of 64, as it is stored."""
        return -(-self.vocab // VOCAB_PADDING) * VOCAB_PADDING

    @property
    def kv_bytes_per_element(self) -> float:
        """Bytes per cache element of `kv_dtype`."""
        return DTYPE_BYTES[self.kv_dtype]

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(layer.ffn, MoE) for layer in self.layers)

    def lm_head(self, tensor_parallel: int) -> Linear:
        """The vocabulary projection of one rank, used by emitting rows."""
        rows = share(self.padded_vocab, "rows of the padded vocabulary", tensor_parallel)
        stored = self.head_format
        return Linear(
            "lm_head",
            self.embedding_dim or self.hidden,
            rows,
            stored.dtype,
            stored.bytes_per_param,
            self.head_bias,
            "emitting",
        )

    def ends(self) -> tuple[Linear, ...]:
        """Projections between embedding and hidden size, where they differ (on every rank)."""
        if self.embedding_dim is None or self.embedding_dim == self.hidden:
            return ()
        return Linear("project_in", self.embedding_dim, self.hidden), Linear(
            "project_out", self.hidden, self.embedding_dim
        )

    def params(self) -> int:
        """All parameters as published: without draft layers, vocabulary unpadded, a tied head once."""
        return round(
            sum(layer.params(self.hidden) for layer in self.layers) + self._outer_params(1 if self.tied else 2)
        )

    def active_params(self) -> int:
        """Parameters one token is multiplied with: `top_k` of the experts, the head, not the embedding (a look-up)."""
        return round(sum(layer.params(self.hidden, active=True) for layer in self.layers) + self._outer_params(1))

    def draft_params(self) -> int:
        """Parameters of the draft layers, which share embedding and head."""
        return round(sum(layer.params(self.hidden) for layer in self.draft_layers))

    def _outer_params(self, tables: int) -> int:
        width = self.embedding_dim or self.hidden
        norms = (self.final_norm + self.embedding_norm) * self.hidden * (1 + self.norm_bias)
        head_bias = self.vocab if self.head_bias else 0
        return (
            tables * self.vocab * width
            + self.positions * self.hidden
            + norms
            + head_bias
            + sum(x.params for x in self.ends())
        )

    def kv_bytes_per_token(self, tensor_parallel: int = 1, kv_bytes_per_element: float | None = None) -> float:
        """Cache bytes one token adds on one rank, all layers, windows not considered."""
        element = self.kv_bytes_per_element if kv_bytes_per_element is None else kv_bytes_per_element
        return sum(layer.mixer.cache(tensor_parallel, element).bytes_per_token for layer in self.layers)

    def state_bytes_per_sequence(self, tensor_parallel: int = 1) -> int:
        """Bytes of the recurrent states of one sequence on one rank."""
        return sum(layer.mixer.cache(tensor_parallel, 2.0).state_bytes for layer in self.layers)

    def stages(self, pipeline_parallel: int) -> tuple[tuple[Layer, ...], ...]:
        """Layers of each pipeline stage, by the rule of vLLM: `layers // pp` each, a remainder to the middle.

        The remainder goes one by one to the stage before the last, the one before it, and so on: the last stage,
        which holds the head, gets none, and the first, which holds the embedding, gets one last.
        """
        if not 1 <= pipeline_parallel <= len(self.layers):
            raise ValueError(
                f"{self.name}: pipeline parallel size must be between 1 and the {len(self.layers)} layers, "
                f"got {pipeline_parallel}; change deployment.pipeline_parallel."
            )
        each, rest = divmod(len(self.layers), pipeline_parallel)
        counts = [each] * pipeline_parallel
        for i in range(rest):
            counts[-2 - i] += 1
        starts = [sum(counts[:i]) for i in range(pipeline_parallel)]
        return tuple(self.layers[start : start + count] for start, count in zip(starts, counts, strict=True))

    def check(self, tensor_parallel: int, pipeline_parallel: int = 1, expert_parallel: int = 1) -> None:
        """ValueError with one sentence if this model cannot be divided so; see `tensor_parallel_sizes`."""
        weights.check(self, Shards.tensor(tensor_parallel, expert_parallel), pipeline_parallel)

    def tensor_parallel_sizes(self, most: int = 64) -> tuple[int, ...]:
        """All tensor-parallel sizes up to `most` that divide this model."""
        return tuple(tp for tp in range(1, most + 1) if weights.divides(self, Shards.tensor(tp)) is None)

    def parameter_bytes(
        self, tensor_parallel: int = 1, pipeline_parallel: int = 1, expert_parallel: int = 1, draft: bool = False
    ) -> tuple[float, ...]:
        """Stored bytes of the weights of one rank, per pipeline stage."""
        return weights.parameter_bytes(self, Shards.tensor(tensor_parallel, expert_parallel), pipeline_parallel, draft)

    def weight_bytes(
        self, tensor_parallel: int = 1, pipeline_parallel: int = 1, expert_parallel: int = 1, draft: bool = False
    ) -> tuple[float, ...]:
        """Bytes an engine reports after loading, one rank, per pipeline stage.

        `parameter_bytes` with rope tables and the CUDA allocator's rounding.
        """
        return weights.weight_bytes(self, Shards.tensor(tensor_parallel, expert_parallel), pipeline_parallel, draft)

    def noted(self, *notes: str) -> "ModelSpec":
        """The same model with more notes."""
        return replace(self, notes=(*self.notes, *(note for note in notes if note not in self.notes)))

    def groups(self) -> Iterator[tuple[Layer, int]]:
        """Distinct layers with how often they occur, in order of first occurrence."""
        counts: dict[Layer, int] = {}
        for layer in self.layers:
            counts[layer] = counts.get(layer, 0) + 1
        yield from counts.items()


__all__ = [
    "BF16",
    "DTYPE_BYTES",
    "MLA",
    "NO_FEEDFORWARD",
    "Attention",
    "CacheKind",
    "CacheSpec",
    "Dense",
    "Dtype",
    "FeedForward",
    "Formats",
    "GatedDelta",
    "HeadShape",
    "Indexer",
    "Layer",
    "Linear",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MoE",
    "ModelConf",
    "ModelSpec",
    "NoMixer",
    "Recurrent",
    "RopeTable",
    "RoutedExperts",
    "Shards",
    "Vector",
    "WeightFormat",
    "kv_share",
    "linear",
    "share",
]

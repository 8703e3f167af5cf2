"""Models that draft for another one: EAGLE heads, MTP modules, Medusa heads, built from the model they draft for.

An EAGLE head is one layer of the target's kind, with weights of 16 bits, that reads the target's last hidden state and
the embedding of the token after it (EAGLE), or both side by side in its attention, the hidden states of three layers
fused before (EAGLE-3). Embedding and LM head are the target's; a head with a vocabulary of its own has an LM head of
its own. An MTP module is a draft layer of the target. A Medusa head is one block and an LM head for each position.

Sources: arXiv 2401.15077 (EAGLE), 2503.01840 (EAGLE-3), 2412.19437 (MTP), 2401.10774 (Medusa).
"""

from dataclasses import dataclass, replace

from sim.model.attention import MLA, Attention, NoMixer
from sim.model.feedforward import NO_FEEDFORWARD, Dense
from sim.model.linear import BF16, Formats, Linear, linear, share
from sim.model.spec import Layer, ModelSpec


FUSED = 3
"""Layers of the target whose hidden states an EAGLE-3 head reads."""


@dataclass(frozen=True)
class WideAttention(Attention):
    """Attention that reads embedding and hidden state side by side; `fused` hidden states are projected to one."""

    fused: int = 0

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """The matrices of attention, with an input twice as wide, after the projection."""
        _, o = super().linears(hidden, tensor_parallel)
        qkv, _ = super().linears(2 * hidden, tensor_parallel)
        fuse = (linear("fuse", self.fused * hidden, hidden, self.formats),) if self.fused else ()
        return *fuse, qkv, o


@dataclass(frozen=True)
class MedusaBlock(NoMixer):
    """One Medusa head: a residual block and an LM head."""

    vocab: int = 0

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """The block is on every rank, the LM head is divided."""
        rows = share(self.vocab, "rows of the padded vocabulary", tensor_parallel)
        return Linear("medusa_block", hidden, hidden, bias=True), Linear("medusa_head", hidden, rows)


def eagle_head(target: ModelSpec, draft_vocab: int | None = None, head: ModelSpec | None = None) -> ModelSpec:
    """The EAGLE head of a model; `head`: its own shape, where it is not that of a layer of the target.

    **Raises:** `ValueError` if the target has no layer of the kind: attention and a dense feed-forward part.
    """
    return _one_layer(target, replace(_dense_layer(target, head), joins=True), draft_vocab, head)


def eagle3_heads(
    target: ModelSpec, draft_vocab: int | None = None, head: ModelSpec | None = None
) -> tuple[ModelSpec, ModelSpec]:
    """The EAGLE-3 head in its first pass, which fuses the target's hidden states, and in those after it."""
    layer = _dense_layer(target, head)
    if not isinstance(layer.mixer, Attention) or layer.mixer.q_rank is not None:
        raise ValueError(
            f"an EAGLE-3 head is built for grouped-query attention, not for that of {target.name}: choose "
            "engine.speculation.method=eagle, or mtp."
        )
    fields = {name: getattr(layer.mixer, name) for name in Attention.__dataclass_fields__}
    first, later = (replace(layer, mixer=WideAttention(**fields, fused=fused)) for fused in (FUSED, 0))
    return _one_layer(target, first, draft_vocab, head), _one_layer(target, later, draft_vocab, head)


def mtp_modules(target: ModelSpec) -> tuple[ModelSpec, ...]:
    """The draft layers of a model, module by module: each begins with a layer that joins.

    **Raises:** `ValueError` if it has none.
    """
    starts = [place for place, layer in enumerate(target.draft_layers) if layer.joins]
    if not starts:
        raise ValueError(f"{target.name} has no MTP layers to draft with: choose another engine.speculation.method.")
    ends = [*starts[1:], len(target.draft_layers)]
    return tuple(
        replace(target, layers=target.draft_layers[a:b], draft_layers=(), tower_params=0)
        for a, b in zip(starts, ends, strict=True)
    )


def medusa_heads(target: ModelSpec, heads: int) -> ModelSpec:
    """So many heads, one a layer, in 16 bits."""
    layer = Layer(MedusaBlock(target.padded_vocab), NO_FEEDFORWARD, norms=0)
    return replace(target, layers=(layer,) * heads, draft_layers=(), tower_params=0)


def _dense_layer(target: ModelSpec, head: ModelSpec | None) -> Layer:
    """A layer with attention and a dense feed-forward part, without a window, in 16 bits."""
    for layer in (head or target).layers:
        mixer, ffn = layer.mixer, layer.ffn
        if isinstance(mixer, Attention | MLA) and isinstance(ffn, Dense):
            plain: Attention | MLA = replace(mixer, formats=Formats())
            if isinstance(plain, Attention):
                plain = replace(plain, window=None, chunk=None)
            return replace(layer, mixer=plain, ffn=replace(ffn, formats=Formats()))
    raise ValueError(
        f"an EAGLE head of {target.name} is not like one of its layers, none of which has attention and a dense "
        "feed-forward part: give the config.json of the head, engine.speculation.draft_model=PATH."
    )


def _one_layer(target: ModelSpec, layer: Layer, draft_vocab: int | None, head: ModelSpec | None) -> ModelSpec:
    width = target.hidden if head is None else head.hidden
    model = replace(target, layers=(layer,), draft_layers=(), tower_params=0, hidden=width)
    return model if draft_vocab is None else replace(model, vocab=draft_vocab, head_format=BF16)


__all__ = ["MedusaBlock", "WideAttention", "eagle3_heads", "eagle_head", "medusa_heads", "mtp_modules"]

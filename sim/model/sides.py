"""A model cut in two: what attention devices hold, and what FFN devices hold.

With attention go mixers, norms with the residual, embedding and head; to the other side dense feed-forward parts, and
routers with routed and shared experts.
"""

from dataclasses import replace

from sim.model.attention import NoMixer
from sim.model.feedforward import NO_FEEDFORWARD
from sim.model.spec import Layer, ModelSpec


def has_feedforward(layer: Layer) -> bool:
    """Whether a layer has anything to compute after its mixer."""
    return layer.ffn != NO_FEEDFORWARD


def mixer_part(layer: Layer) -> Layer:
    """The layer without its feed-forward part; the norm before that stays."""
    return replace(layer, ffn=NO_FEEDFORWARD)


def feedforward_part(layer: Layer) -> Layer:
    """The feed-forward part alone."""
    return Layer(NoMixer(), layer.ffn, norms=0)


def attention_side(model: ModelSpec) -> ModelSpec:
    """The model without feed-forward parts."""
    return replace(model, layers=tuple(map(mixer_part, model.layers)), draft_layers=())


def feedforward_side(model: ModelSpec) -> ModelSpec:
    """The feed-forward parts of the layers that have one."""
    return replace(model, layers=tuple(feedforward_part(layer) for layer in model.layers if has_feedforward(layer)))

"""What the drafter of speculative decoding keeps on each rank: its weights, and KV of its own."""

from sim.deployment.engine import EngineSettings
from sim.memory.terms import Term, term
from sim.model.shards import Shards
from sim.model.spec import Layer


def draft_terms(engine: EngineSettings, shards: Shards) -> tuple[Term, ...]:
    """The row of its weights; none where no model drafts."""
    speculation = engine.speculation
    if speculation is None or speculation.drafter is None:
        return ()
    drafter = speculation.drafter
    with_it = "embedding and LM head of its own" if drafter.whole else "an LM head of its own" if drafter.head else ""
    count = len(draft_layers(engine))
    layers = f"{count} layer{'s' * (count > 1)} of {speculation.method}"
    words = f"{layers}, {with_it}" if with_it else layers
    return (term("drafter", drafter.weight_bytes(shards), words, "model file, tensor by tensor", 0.002),)


def draft_layers(engine: EngineSettings) -> tuple[Layer, ...]:
    """Its layers, whose KV shares the blocks."""
    speculation = engine.speculation
    if speculation is None or speculation.drafter is None:
        return ()
    return tuple(layer for model in speculation.drafter.held for layer in model.layers)

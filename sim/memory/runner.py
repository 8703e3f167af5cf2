"""vLLM's two model runners: which one a model gets, and the constants of the memory sum there."""

from collections.abc import Mapping

from sim.deployment.engine import EngineSettings
from sim.model.recurrent import Recurrent
from sim.model.spec import ModelSpec


SECOND = "second_"
"""What begins the name of a constant that takes the place of another in the second-generation runner."""


def in_second_runner(model: ModelSpec, engine: EngineSettings) -> bool:
    """Whether this version runs the model in its second-generation runner (`EngineProfile.second_runner`)."""
    kinds = engine.profile.second_runner
    hybrid = any(isinstance(layer.mixer, Recurrent) for layer in model.layers)
    if "all" in kinds or ("dense" in kinds and not model.is_moe and not hybrid):
        return True
    plain = model.quantisation == "none" or engine.profile.memory.get("second_runner_quantised", 1.0) > 0
    return model.model_type in kinds and plain


def memory_constants(model: ModelSpec, engine: EngineSettings) -> Mapping[str, float]:
    """Constants by name; in the second runner, `second_NAME` stands for `NAME`."""
    constants = engine.profile.memory
    if not in_second_runner(model, engine):
        return constants
    theirs = {key.removeprefix(SECOND): value for key, value in constants.items() if key.startswith(SECOND)}
    return {**constants, **theirs}


def graphs_counted(model: ModelSpec, engine: EngineSettings) -> bool:
    """Whether CUDA graphs are taken off the budget: by version, and in the second runner since it estimates them."""
    if not engine.profile.graph_memory_in_budget:
        return False
    return not in_second_runner(model, engine) or engine.profile.memory.get("second_graphs_estimated", 0.0) > 0

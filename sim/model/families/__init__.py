"""One file per family of architectures; `model_type` -> reader. A new family is one new file here."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from sim.model.config import Config
from sim.model.quantisation import Quantisation
from sim.model.spec import ModelSpec


Family = Callable[[Config, Quantisation], ModelSpec]
REGISTRY: dict[str, Family] = {}


def family(*model_types: str) -> Callable[[Family], Family]:
    """Register a reader for these `model_type`s."""

    def register(reader: Family) -> Family:
        for model_type in model_types:
            if model_type in REGISTRY:
                raise ValueError(f"model_type '{model_type}' has two readers.")
            REGISTRY[model_type] = reader
        return reader

    return register


def families() -> dict[str, Family]:
    """All readers, every file of this folder loaded."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return REGISTRY

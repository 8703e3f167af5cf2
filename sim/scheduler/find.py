"""Finds a scheduler by name: a module of this package with `make(settings, cache)`."""

import importlib
import pkgutil

import sim.scheduler
from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.base import Scheduler


_NOT_SCHEDULERS = {"base", "find", "hooks"}


def scheduler_names() -> list[str]:
    """The schedulers that exist, by the name that `engine.scheduler` takes."""
    return sorted(m.name for m in pkgutil.iter_modules(sim.scheduler.__path__) if m.name not in _NOT_SCHEDULERS)


def check_scheduler(name: str) -> None:
    """Raise `ValueError` for a scheduler that does not exist."""
    known = scheduler_names()
    if name not in known:
        raise ValueError(
            f"engine.scheduler={name} cannot be simulated, wanted one of {', '.join(known)} "
            "(`headway memory` knows the memory of more engines)."
        )


def make_scheduler(name: str, settings: EngineSettings, cache: CacheShape) -> Scheduler:
    """One replica's scheduler by name."""
    check_scheduler(name)
    return importlib.import_module(f"sim.scheduler.{name}").make(settings, cache)

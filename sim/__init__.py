"""Headway: simulates LLM inference serving. `from sim import simulate`."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from sim.api import (
        Infeasible as Infeasible,
        Job as Job,
        build as build,
        memory as memory,
        run as run,
        scan as scan,
        simulate as simulate,
    )

_FACADE = ("Infeasible", "Job", "build", "memory", "run", "scan", "simulate")


def __getattr__(name: str) -> Any:
    """The facade, loaded when first used: importing a room needs none of the others."""
    if name in _FACADE:
        import sim.api

        return getattr(sim.api, name)
    raise AttributeError(f"module 'sim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FACADE})

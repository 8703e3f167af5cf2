"""Headway: simulates LLM inference serving. `from sim import simulate`."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from sim.api import (
        Infeasible as Infeasible,
        Job as Job,
        build as build,
        run as run,
        simulate as simulate,
        sweep as sweep,
    )

_FACADE = ("Infeasible", "Job", "build", "run", "simulate", "sweep")


def __getattr__(name: str) -> Any:
    """The facade, loaded when first used: importing a room needs none of the others.

    No name of it is that of a room (`sim.scan` is a package): which one came would depend on what was imported before.
    """
    if name in _FACADE:
        import sim.api

        return getattr(sim.api, name)
    raise AttributeError(f"module 'sim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FACADE})

"""Finds a router by name: one of this package, or a user's own file."""

import dataclasses
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import numpy as np

import sim.event.routing
from sim.documents import user_path
from sim.event.routing.base import Arrival, Router, Target
from sim.scheduler.options import fill_options


_NOT_ROUTERS = {"base", "find"}


def router_names() -> list[str]:
    """The shipped routers, by the names that `deployment.router` takes."""
    return sorted(m.name for m in pkgutil.iter_modules(sim.event.routing.__path__) if m.name not in _NOT_ROUTERS)


def make_router(name: str, seed: int, options: Mapping[str, Any] | None = None, key: str = "router") -> Router:
    """The router called `name`, or in the file of that path, with its options; `key` names it in mistakes.

    **Raises:** `ValueError` for an unknown one, a file that is no router, or options that it does not have.
    """
    module = _module(name, key)
    schema = getattr(module, "Options", None)
    where = f"deployment.{key}_options"
    if schema is None:
        if options:
            raise ValueError(f"{where}.{next(iter(options))} has no meaning: the router {name} has no options.")
        filled: object = None
    elif not (isinstance(schema, type) and dataclasses.is_dataclass(schema)):
        raise ValueError(f"deployment.{key}={name}: Options must be a dataclass, got {schema!r:.60}.")
    else:
        filled = fill_options(schema, options or {}, f"the router {name}", where)
    try:
        made: Router = module.make(filled, seed)
    except Exception as error:
        raise ValueError(f"deployment.{key}={name}: its make raised {type(error).__name__}: {error}.") from error
    if not callable(made):
        raise ValueError(f"deployment.{key}={name}: make must return a function (arrival, targets), got {made!r:.60}.")
    return made if name in router_names() else _guarded(made, f"deployment.{key}={name}", sheds(name, key))


def _guarded(router: Router, where: str, may_shed: bool) -> Router:
    """A user's router, whose mistakes are told as its own."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int | None:
        try:
            place = router(arrival, targets)
        except Exception as error:
            raise ValueError(f"{where} raised {type(error).__name__} at request {arrival.index}: {error}.") from error
        if place is None and may_shed:
            return None
        if not isinstance(place, int | np.integer) or isinstance(place, bool) or not 0 <= place < len(targets):
            also = ", or None" if may_shed else " (None, to turn it away, needs SHEDS = True)"
            raise ValueError(
                f"{where} must return a position from 0 to {len(targets) - 1}{also}, got {place!r:.60} for request "
                f"{arrival.index}."
            )
        return int(place)

    return pick


def sheds(name: str, key: str = "router") -> bool:
    """Whether a router may turn requests away."""
    return bool(getattr(_module(name, key), "SHEDS", False))


def _module(name: str, key: str) -> ModuleType:
    known = router_names()
    if name in known:
        return importlib.import_module(f"sim.event.routing.{name}")
    if not name.endswith(".py"):
        near = get_close_matches(name, known, 1, 0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"deployment.{key}: {hint}wanted one of {', '.join(known)}, or ./my_router.py, got '{name}'")
    path = user_path(name, f"deployment.{key}")
    if not path.is_file():
        raise ValueError(f"deployment.{key}={name}: there is no file {path.absolute()}.")
    spec = importlib.util.spec_from_file_location(f"headway_router_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = getattr(error, "lineno", None)
        at = f", line {line}" if line else ""
        raise ValueError(f"deployment.{key}={name}{at}: {type(error).__name__}: {error}.") from error
    if not callable(getattr(module, "make", None)):
        raise ValueError(f"deployment.{key}={name} has no function make(options, seed), which returns a router.")
    return module

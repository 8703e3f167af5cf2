"""Finds a scheduler by name, and checks what a configuration asks of it before anything runs.

A scheduler is a module with `make(settings, cache)`: one of this package by its name, a user's own by its path
(`./my_policy.py`) or by its dotted name (`my_package.my_policy`). What else a module may say:

- `Options`: a dataclass, the schema of `engine.scheduler_options` (without it, none may be given);
- `POLICIES`: the names that `engine.scheduling_policy` may have (without it: `fcfs`, the default, which says nothing);
- `CHUNKS`: True if it always cuts prompts at the token budget, False if it never does (without it: as settings say);
- `SUPPORTS`: settings it looks at beyond those of every scheduler, of `SETTINGS`; the others may not be switched on;
- `NOT_MODELLED`: sentences for the report;
- `most_batch_tokens(settings)`: tokens of the largest batch (without it: `max_num_batched_tokens`).
"""

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import sim.scheduler
from sim.deployment.engine import EngineConf, EngineSettings
from sim.documents import user_path
from sim.memory.shape import CacheShape
from sim.scheduler.base import Request, Scheduler
from sim.scheduler.options import no_options, read_options


_PARTS = (
    "request_type", "add", "schedule", "repeat", "complete", "unfinished", "free_blocks", "usable_blocks",
)  # fmt: skip
_NOT_SCHEDULERS = {"base", "find", "hooks", "iteration", "options"}

SETTINGS = {
    "enable_prefix_caching": (None, False),
    "hybrid_kv_cache": (None, False),
    "long_prefill_token_threshold": (0,),
}
"""Settings that not every scheduler has, with the values that ask nothing of it."""


def scheduler_names() -> list[str]:
    """The shipped schedulers, by the name that `engine.scheduler` takes."""
    return sorted(m.name for m in pkgutil.iter_modules(sim.scheduler.__path__) if m.name not in _NOT_SCHEDULERS)


def is_shipped(name: str) -> bool:
    """Whether a scheduler is one of this package, not a user's own."""
    return name in scheduler_names()


def find_scheduler(name: str) -> ModuleType:
    """The module of a scheduler. `ValueError`, one sentence, if there is none or it cannot be loaded."""
    known = scheduler_names()
    if name in known:
        return importlib.import_module(f"sim.scheduler.{name}")
    if name.endswith(".py") or name.startswith((".", "/", "~")) or os.sep in name:
        path = user_path(name, "engine.scheduler")
        if path.is_dir() or not path.exists():
            raise ValueError(f"engine.scheduler={name}: there is no file {path.absolute()}.")
        module = _from_file(name, str(path.resolve()), path.stat().st_mtime_ns)
    elif "." in name:
        with _blamed(name), _importable_from_here():
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                    raise
                raise ValueError(
                    f"engine.scheduler={name}: there is no module {error.name} that can be imported; install it, or "
                    "give the path of the file, engine.scheduler=./my_policy.py."
                ) from None
    else:
        near = get_close_matches(name, known, 1, 0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"engine.scheduler={name} cannot be simulated: {hint}wanted is one of {', '.join(known)}, or your own, "
            "./my_policy.py."
        )
    if not callable(getattr(module, "make", None)):
        raise ValueError(f"engine.scheduler={name} has no function make(settings, cache), which returns a scheduler.")
    return module


def check_scheduler(engine: EngineConf) -> None:
    """Raise `ValueError` for a scheduler that does not exist, or that cannot do what the configuration asks of it."""
    name = engine.scheduler
    module = find_scheduler(name)
    options = getattr(module, "Options", None)
    if options is None:
        no_options(engine.scheduler_options, f"the scheduler {name}")
    else:
        with _blamed(name):
            read_options(options, engine.scheduler_options, f"the scheduler {name}")
    policies = getattr(module, "POLICIES", ("fcfs",))
    if engine.scheduling_policy not in policies:
        wanted = f"one of {', '.join(policies)}" if len(policies) > 1 else f"{policies[0]}, it has no other"
        raise ValueError(
            f"the scheduler {name} has no engine.scheduling_policy={engine.scheduling_policy}: wanted is {wanted}."
        )
    chunks = getattr(module, "CHUNKS", None)
    if chunks is False and engine.enable_chunked_prefill is not False:
        raise ValueError(
            f"the scheduler {name} never cuts a prompt: set engine.enable_chunked_prefill=false, with "
            "engine.max_num_batched_tokens at least engine.max_model_len."
        )
    if chunks and engine.enable_chunked_prefill is False:
        raise ValueError(
            f"the scheduler {name} always cuts prompts at the token budget: leave out "
            "engine.enable_chunked_prefill=false."
        )
    for key, harmless in SETTINGS.items():
        value = getattr(engine, key)
        if value not in harmless and key not in getattr(module, "SUPPORTS", ()):
            raise ValueError(
                f"engine.{key}={str(value).lower()} has no effect with the scheduler {name}, which does not look at "
                "it: leave it out, or choose another engine.scheduler."
            )


def make_scheduler(name: str, settings: EngineSettings, cache: CacheShape) -> Scheduler:
    """One replica's scheduler by name. `ValueError` if it does not exist or a user's own cannot be made."""
    module = find_scheduler(name)
    with _blamed(name):
        made: Scheduler = module.make(settings, cache)
        if not is_shipped(name):
            _check_made(name, made)
    return made


def _check_made(name: str, made: object) -> None:
    """Raise `ValueError` if what a user's own `make` returned is no scheduler."""
    lacking = [part for part in _PARTS if not hasattr(made, part)]
    if lacking:
        raise ValueError(
            f"engine.scheduler={name}: make(settings, cache) must return a scheduler; a {type(made).__name__} has no "
            f"{', '.join(lacking)}."
        )
    kind = made.request_type  # type: ignore[attr-defined]
    if not (isinstance(kind, type) and issubclass(kind, Request)):
        raise ValueError(
            f"engine.scheduler={name}: request_type must be sim.scheduler.base.Request or a subclass of it, got "
            f"{kind!r}."
        )


def reuses_prefixes(name: str) -> bool:
    """Whether a scheduler finds equal prefixes again."""
    return "enable_prefix_caching" in getattr(find_scheduler(name), "SUPPORTS", ())


def knows_groups(name: str) -> bool:
    """Whether a scheduler keeps a block table per group of layers; otherwise each counts as holding all context."""
    return "hybrid_kv_cache" in getattr(find_scheduler(name), "SUPPORTS", ())


def most_batch_tokens(name: str, settings: EngineSettings) -> int:
    """Tokens of the largest batch that a scheduler decides."""
    found: int = getattr(find_scheduler(name), "most_batch_tokens", lambda given: given.max_num_batched_tokens)(
        settings
    )
    return found


def not_modelled(name: str) -> tuple[str, ...]:
    """What a scheduler leaves out, for the report."""
    return tuple(getattr(find_scheduler(name), "NOT_MODELLED", ()))


def failure(name: str, error: Exception) -> Exception:
    """An exception of a run as the user should see it: what a scheduler of their own raised is theirs to correct."""
    if is_shipped(name):
        return error
    file = getattr(find_scheduler(name), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, ValueError) and not lines:
        return error
    where = f" in line {lines[-1]}" if lines else ""
    said = " ".join(str(error).split())
    return ValueError(
        f"engine.scheduler={name} failed{where}, {type(error).__name__}: {said} (HEADWAY_DEBUG=1 shows where)."
    )


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """What the module of a user's own scheduler raises is told with its name."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_shipped(name) or (isinstance(error, ValueError) and str(error).startswith("engine.")):
            raise
        raise ValueError(
            f"engine.scheduler={name} cannot be used, {type(error).__name__}: {' '.join(str(error).split())} "
            "(HEADWAY_DEBUG=1 shows where)."
        ) from error


@contextmanager
def _importable_from_here() -> Iterator[None]:
    """Modules of the current folder can be imported, as with `python -m`."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


@lru_cache(maxsize=32)
def _from_file(name: str, path: str, changed_ns: int) -> ModuleType:
    """The module in a file, loaded once for each time it has changed."""
    digest = hashlib.sha256(f"{path} {changed_ns}".encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"headway_scheduler_{digest}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"engine.scheduler={name} wants a Python file, {Path(path).name} does not end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        with _blamed(name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module

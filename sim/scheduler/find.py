"""Finds a scheduler by name, and checks what a configuration asks of it before anything runs.

A scheduler is a module with `make(settings, cache)`: one of this package by its name, a user's own by its path
(`./my_policy.py`) or by its dotted name (`my_package.my_policy`). What else a module may say:

- `Options`: a dataclass, the schema of `engine.scheduler_options` (without it, none may be given);
- `POLICIES`: the names that `engine.scheduling_policy` may have (without it: `fcfs`, the default, which says nothing);
- `CHUNKS`: True if it always cuts prompts at the token budget, False if it never does (without it: as settings say);
- `SUPPORTS`: settings it looks at beyond those of every scheduler, of `SETTINGS`; the others may not be switched on;
- `NOT_MODELLED`: sentences for the report;
- `most_batch_tokens(settings)`: tokens of the largest batch (without it: `max_num_batched_tokens`);
- `most_running(settings, usable_blocks)`: requests that may run at once (without it: `max_num_seqs`);
- `make_speculative(settings, cache, drafting, progress)`: its scheduler with drafts (without it: it has none);
- `make_tiered(settings, cache, connector)`: its scheduler with tiers behind its cache (without it: it has none);
- `make_swapping(settings, cache, connector)`: its scheduler whose preempted requests leave their KV with the connector
  and get it back from there (without it: they compute it again);
- `ROLES`: a `sim.scheduler.hooks.Roles`, how its prefill and decode instances work (without it: it has none).
"""

import dataclasses
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
from typing import Any

import sim.scheduler
from sim.deployment.engine import EngineConf, EngineSettings
from sim.deployment.speculation import NONE
from sim.documents import user_path
from sim.memory.shape import CacheShape
from sim.scheduler.base import Request, Scheduler
from sim.scheduler.hooks import Connector, Drafting, Progress, Roles, TierConnector
from sim.scheduler.options import no_options, read_options


_PARTS = (
    "request_type", "add", "schedule", "repeat", "complete", "unfinished", "free_blocks", "usable_blocks",
)  # fmt: skip
_NOT_SCHEDULERS = {"base", "find", "hooks", "iteration", "options", "tables", "together"}

MOST_TOKENS = 1 << 24
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
        if not path.is_file():
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
    _check_module(name, module)
    return module


def _check_module(name: str, module: ModuleType) -> None:
    """Raise `ValueError` for the first of the optional names of a user's own module that holds something else."""
    said = vars(module)
    words = {key: said.get(key, ("fcfs",)) for key in ("POLICIES", "SUPPORTS", "NOT_MODELLED")}
    for key, value in words.items():
        if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"engine.scheduler={name}: {key} must be a tuple of texts, got {value!r:.60}.")
    if not words["POLICIES"]:
        raise ValueError(f"engine.scheduler={name}: POLICIES must name at least one policy, or be left out.")
    unknown = [key for key in said.get("SUPPORTS", ()) if key not in SETTINGS]
    if unknown:
        raise ValueError(f"engine.scheduler={name}: SUPPORTS may name {', '.join(SETTINGS)}, got {unknown[0]!r:.60}.")
    if said.get("CHUNKS") not in (None, True, False):
        raise ValueError(f"engine.scheduler={name}: CHUNKS must be True or False, got {said['CHUNKS']!r:.60}.")
    options = said.get("Options")
    if options is not None and not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise ValueError(f"engine.scheduler={name}: Options must be a dataclass, got {options!r:.60}.")


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
    if engine.speculation.method != NONE and not hasattr(module, "make_speculative"):
        raise ValueError(
            f"the scheduler {name} has no speculative decoding: leave out speculation={engine.speculation.method}, or "
            "choose an engine of vLLM."
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
    with _blamed(name, getattr(module, "__file__", None)):
        made: Scheduler = module.make(settings, cache)
        if not is_shipped(name):
            _check_made(name, made)
    return made


def make_speculative(
    name: str, settings: EngineSettings, cache: CacheShape, drafting: Drafting, progress: Progress
) -> Scheduler:
    """One replica's scheduler with drafts, of which `progress` says what becomes; see `make_scheduler`."""
    module = find_scheduler(name)
    with _blamed(name, getattr(module, "__file__", None)):
        made: Scheduler = module.make_speculative(settings, cache, drafting, progress)
        if not is_shipped(name):
            _check_made(name, made)
    return made


def make_tiered(name: str, settings: EngineSettings, cache: CacheShape, connector: TierConnector[Any]) -> Scheduler:
    """One replica's scheduler with tiers behind its cache; see `make_scheduler`."""
    module = find_scheduler(name)
    with _blamed(name, getattr(module, "__file__", None)):
        made: Scheduler = module.make_tiered(settings, cache, connector)
    return made


def make_swapping(name: str, settings: EngineSettings, cache: CacheShape, connector: Connector[Any]) -> Scheduler:
    """One replica's scheduler whose preempted requests leave their KV elsewhere; see `make_scheduler`."""
    module = find_scheduler(name)
    with _blamed(name, getattr(module, "__file__", None)):
        made: Scheduler = module.make_swapping(settings, cache, connector)
    return made


def roles_of(name: str) -> Roles | None:
    """How the prefill and decode instances of a scheduler's engine work; None if there are none."""
    found = getattr(find_scheduler(name), "ROLES", None)
    if found is not None and not isinstance(found, Roles):
        raise ValueError(f"engine.scheduler={name}: ROLES must be a sim.scheduler.hooks.Roles, got {found!r:.60}.")
    return found


def with_roles() -> list[str]:
    """The shipped schedulers that have prefill and decode instances."""
    return [name for name in scheduler_names() if roles_of(name) is not None]


def _check_made(name: str, made: object) -> None:
    """Raise `ValueError` if what a user's own `make` returned is no scheduler."""
    lacking = [part for part in _PARTS if not hasattr(made, part)]
    if lacking:
        raise ValueError(
            f"engine.scheduler={name}: make(settings, cache) must return a scheduler, got {type(made).__name__}, "
            f"which has no {', '.join(lacking)}."
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
    module = find_scheduler(name)
    most = getattr(module, "most_batch_tokens", None)
    if most is None:
        return settings.max_num_batched_tokens
    with _blamed(name, getattr(module, "__file__", None)):
        found: int = most(settings)
    if not isinstance(found, int) or not 1 <= found <= MOST_TOKENS:
        raise ValueError(
            f"engine.scheduler={name}: most_batch_tokens(settings) must return a whole number from 1 to "
            f"{MOST_TOKENS:,}, got {found!r:.60}."
        )
    return found


def most_running(name: str, settings: EngineSettings, usable_blocks: int) -> int:
    """Requests that a scheduler lets run at once with a cache of this size: `max_num_seqs`, or fewer."""
    rule = getattr(find_scheduler(name), "most_running", None)
    if rule is None:
        return settings.max_num_seqs
    with _blamed(name):
        return min(settings.max_num_seqs, int(rule(settings, usable_blocks)))


def not_modelled(name: str) -> tuple[str, ...]:
    """What a scheduler leaves out, for the report."""
    return tuple(getattr(find_scheduler(name), "NOT_MODELLED", ()))


def failure(name: str, error: Exception) -> Exception:
    """An exception of a run as the user should see it: what a scheduler of their own raised is theirs to correct."""
    if is_shipped(name):
        return error
    where = _line(error, getattr(find_scheduler(name), "__file__", None))
    raised = traceback.extract_tb(error.__traceback__)[-1].filename if error.__traceback__ else ""
    inherited = Path(raised).parent == Path(__file__).parent
    if isinstance(error, ValueError) and (_names_key(error) or not (where or inherited)):
        return error
    return ValueError(f"engine.scheduler={name} failed{where}, {_said(error)} (HEADWAY_DEBUG=1 shows where).")


def _names_key(error: BaseException) -> bool:
    """Whether an exception is a sentence of its own about what to change."""
    return isinstance(error, ValueError) and str(error).startswith("engine.")


def _line(error: BaseException, file: str | None) -> str:
    """The last line of a file that an exception has come through, "" if none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" in line {lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    """The kind of an exception and its text, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


@contextmanager
def _blamed(name: str, file: str | None = None) -> Iterator[None]:
    """What the module of a user's own scheduler raises is told with its name."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_shipped(name) or _names_key(error):
            raise
        raise ValueError(
            f"engine.scheduler={name} cannot be used{_line(error, file)}, {_said(error)} (HEADWAY_DEBUG=1 shows where)."
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
        with _blamed(name, path):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module

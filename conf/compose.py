"""From `KEY=VALUE` overrides to a checked configuration. Hydra composes; mistakes come out as one sentence."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conf.files import choices as shipped, origin_of, register_choice
from conf.mistakes import did_you_mean, misfit, nearest, sentence, unknown_key
from conf.schema import GROUPS, SimulateConf, register
from predictors.choice import check_predictor
from sim.deployment.conf import PoolConf
from sim.deployment.engine import EngineConf
from sim.documents import read_mapping, user_path
from sim.workload.used import check_read


POOLS = "deployment.pools."


def prepare(overrides: Sequence[str]) -> list[str]:
    """The overrides with every file or HuggingFace id replaced by a registered choice, sweeps (`model=a,b`) included.

    `ValueError` for an override that cannot be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString
    from hydra.errors import HydraException

    register()
    parser = OverridesParser.create()
    prepared = []
    for override in overrides:
        key, _, value = override.partition("=")
        if not key.strip("+~") or override.startswith("-"):
            raise ValueError(f"{override!r} is no KEY=VALUE; write for example workload.rate=10.")
        if re.search(r"\d{1000}", value):
            raise ValueError(f"{key} has a number of over a thousand digits, which nothing here can be.")
        if key.lstrip("+") == "results":
            path = results_path(value)
            prepared.append("results=null" if path is None else f"results={quoted(path)}")
            continue
        if key.lstrip("+").startswith(POOLS):
            prepared.append(f"++{override.lstrip('+')}")  # a pool has its keys whether its file names them or not
            continue
        if key.lstrip("+") not in GROUPS or key.startswith("~"):
            prepared.append(override)
            continue
        if key.startswith("+"):
            raise ValueError(f"{key} cannot be added, every configuration has one; write {key.lstrip('+')}={value}.")
        try:
            parsed = parser.parse_override(override)
        except HydraException:
            choices = [value.strip("'\"")]  # a path may hold characters that Hydra's grammar wants quoted
        else:
            found: Any = parsed.value()
            sweep: list[Any] = list(found.list) if isinstance(found, ChoiceSweep) else [found]
            if isinstance(found, Glob):
                sweep = found.filter(shipped(key))
                if not sweep:
                    raise ValueError(f"{override} fits none of {', '.join(shipped(key))}.")
            if any(not isinstance(choice, str | QuotedString) or not str(choice).strip() for choice in sweep):
                raise ValueError(f"{key} wants the name of a choice or a path, got {value!r}.")
            choices = [str(getattr(choice, "text", choice)) for choice in sweep]
        prepared.append(f"{key}={','.join(register_choice(key, choice) for choice in choices)}")
    return prepared


def results_path(value: str) -> str | None:
    """The folder that `results=VALUE` names, as it stands but for quotes around it; None for `null` or nothing.

    It may hold spaces, commas and `=`, so it does not go by the grammar of the other values.
    """
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if text in ("", "null"):
        return None
    if text[0] in "[{" or "${" in text:
        raise ValueError(f"results wants the path of one folder, got {value!r}.")
    return str(user_path(text, "results"))


def quoted(text: str) -> str:
    """Any text as a value in Hydra's grammar, which reads a backslash as one only before a quote."""
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), text) + '"'


def searchpath(config_dirs: Sequence[str | Path]) -> list[str]:
    """The override that adds users' own folders; `ValueError` if one is missing."""
    for folder in config_dirs:
        if not user_path(str(folder), "--config-dir").is_dir():
            raise ValueError(f"--config-dir wants a folder, there is none at {folder}.")
    folders = [user_path(str(folder), "--config-dir").resolve() for folder in config_dirs]
    paths = ",".join(quoted(f"file://{folder}") for folder in folders)
    return [f"hydra.searchpath=[{paths}]"] if paths else []


@contextmanager
def one_sentence(config_dirs: Sequence[str | Path] = ()) -> Iterator[None]:
    """Turns what Hydra, OmegaConf and YAML raise into a `ValueError` of one sentence."""
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error, origin_of)) from error
    except (Unreadable, yaml.YAMLError) as error:
        reason = error.__cause__ if isinstance(error.__cause__, Exception) else error
        said = "the configuration refers to itself without end; look at the `defaults` and ${...} of your files."
        if not isinstance(reason, RecursionError):
            said = sentence(reason, origin_of)
        raise ValueError(broken_file(config_dirs) or said) from error


class Unreadable(Exception):
    """What Hydra lets through where a file of the user's is no configuration, without naming the file."""


def broken_file(config_dirs: Sequence[str | Path]) -> str:
    """What is wrong with the first file below `config_dirs` that is no mapping or whose `defaults` form a circle."""
    for folder in config_dirs:
        for group in GROUPS:
            bases: dict[str, list[str]] = {}
            for path in sorted(Path(folder).glob(f"{group}/*.yaml")):
                try:
                    found = read_mapping(path).get("defaults")
                except ValueError as error:
                    return str(error)
                bases[path.stem] = [base for base in found if isinstance(base, str)] if isinstance(found, list) else []
            for name in bases:
                if name in above(name, bases):
                    return (
                        f"{Path(folder) / group / name}.yaml: its `defaults` lead back to itself; take one of them out."
                    )
    return ""


def above(name: str, bases: Mapping[str, Sequence[str]]) -> set[str]:
    """All that a choice inherits from, over any number of steps."""
    seen: set[str] = set()
    queue = list(bases[name])
    while queue:
        base = queue.pop().removesuffix(".yaml")
        if base not in seen:
            seen.add(base)
            queue += bases.get(base, ())
    return seen


def compose(overrides: Sequence[str] = (), config_dirs: Sequence[str | Path] = (), whole: bool = True) -> SimulateConf:
    """The configuration of `headway simulate OVERRIDES`. `ValueError`, one sentence, for whatever is wrong in it.

    `whole`: the overrides are all there are, so that one of the workload that does nothing is a mistake.
    """
    with one_sentence(config_dirs):
        conf = checked(composed([*searchpath(config_dirs), *prepare(overrides)]))
        if whole:
            check_read(conf.workload, workload_keys(overrides))
        return conf


def pool_of(name: str, given: Any) -> PoolConf:
    """One entry of `deployment.pools`; `ValueError` for one that is no mapping, an unknown key or a misfit value."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(given, PoolConf):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"{POOLS}{name} wants a mapping of keys, got {given!r:.60}.")
    known = [field.name for field in dataclasses.fields(PoolConf)]
    for key in given:
        if key not in known:
            near = nearest(str(key), known, 1)
            hint = did_you_mean(near) if near else f": it has {', '.join(known)}."
            raise ValueError(f"unknown key {POOLS}{name}.{key}{hint}")
    if isinstance(given.get("engine"), dict):
        raise ValueError(
            f"{POOLS}{name}.engine wants the name of an engine, got {given['engine']!r:.60}; "
            f"settings that differ go to {POOLS}{name}.settings."
        )
    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PoolConf), given))
    except OmegaConfBaseException as error:
        raise ValueError(f"{POOLS}{name}.{misfit(str(error), '')}") from None
    assert isinstance(made, PoolConf)
    known_settings = {field.name for field in dataclasses.fields(EngineConf)}
    settings = {key: value for key, value in made.settings.items() if key in known_settings}
    try:
        OmegaConf.merge(OmegaConf.structured(EngineConf), settings)
    except OmegaConfBaseException as error:
        raise ValueError(f"{POOLS}{name}.settings.{misfit(str(error), '')}") from None
    return made


def workload_keys(overrides: Sequence[str]) -> list[str]:
    """The keys of the workload that the overrides set, without its name."""
    keys = (override.lstrip("+").partition("=")[0] for override in overrides)
    return [key.removeprefix("workload.") for key in keys if key.startswith("workload.")]


def composed(prepared: Sequence[str]) -> Any:
    """Hydra's own composition, a `DictConfig`."""
    from hydra import compose as hydra_compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    with initialize_config_module("conf", version_base=None):
        try:
            return hydra_compose("config", overrides=list(prepared))
        except (HydraException, OmegaConfBaseException):
            raise
        except (ValueError, TypeError, AttributeError, AssertionError, RecursionError, OSError) as error:
            raise Unreadable from error


def checked(config: Any) -> SimulateConf:
    """A composed `DictConfig` as plain dataclasses; `ValueError` for a key that `+KEY=` added or no predictor."""
    from omegaconf import OmegaConf

    def walk(node: Any, prefix: str) -> None:
        schema = OmegaConf.get_type(node)
        known = {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
        for key in node:
            if known is not None and key not in known:
                raise ValueError(unknown_key(f"{prefix}{key}"))
            below = OmegaConf.is_dict(node) and OmegaConf.is_dict(node._get_node(key))
            if below and not OmegaConf.is_missing(node, key):
                walk(node[key], f"{prefix}{key}.")

    walk(config, "")
    found = OmegaConf.to_object(config)
    assert isinstance(found, SimulateConf)
    found.deployment.pools = {name: pool_of(str(name), pool) for name, pool in found.deployment.pools.items()}
    check_predictor(found.predictor)
    return found

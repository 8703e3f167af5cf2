"""From `KEY=VALUE` overrides to a checked configuration. Hydra composes; mistakes come out as one sentence."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from conf.files import choices as shipped, origin_of, register_choice
from conf.mistakes import sentence, unknown_key
from conf.pools import POOLS, check_names, needs_reading, pool_of
from conf.schema import GROUPS, SimulateConf, register
from predictors.choice import check_predictor
from sim.deployment.pools import resolved_pools
from sim.deployment.used import check_used
from sim.documents import read_mapping, user_path
from sim.workload.used import check_read


OPEN = (POOLS, "deployment.router_options.", "deployment.decode_router_options.", "engine.scheduler_options.")
"""Mappings whose keys are not those of a schema: an override sets one whether a file names it or not."""


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
        if "=" not in override and not override.startswith("~"):
            example = f"{key}=NAME" if key in GROUPS else f"{key}=VALUE" if "." in key else "workload.rate=10"
            raise ValueError(f"{override!r} is no KEY=VALUE: write {example}.")
        if re.search(r"\d{1000}", value):
            raise ValueError(f"{key} has a number of over a thousand digits, which nothing here can be.")
        if key.lstrip("+") == "results":
            path = results_path(value)
            prepared.append("results=null" if path is None else f"results={quoted(path)}")
            continue
        if key.lstrip("+").startswith(OPEN):
            prepared.append(f"++{override.lstrip('+')}")
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
        prepared = [*searchpath(config_dirs), *prepare(overrides)]
        config = composed(prepared)
        check_pool_names(prepared, config)
        conf = checked(config, config_dirs)
        if whole:
            check_read(conf.workload, workload_keys(overrides))
            check_used(conf.deployment, set_keys(overrides))
        return conf


def check_pool_names(prepared: Sequence[str], config: Any) -> None:
    """Raise `ValueError` for a pool of the overrides whose name is a misspelt one of the deployment's file."""

    def of_file() -> list[str]:
        bare = composed([each for each in prepared if not each.lstrip("+").startswith(POOLS)])
        return [str(name) for name in bare.deployment.pools]

    check_names(prepared, config.deployment.pools, of_file)


def set_keys(overrides: Sequence[str]) -> list[str]:
    """The keys that the overrides set."""
    return [override.lstrip("+").partition("=")[0] for override in overrides]


def workload_keys(overrides: Sequence[str]) -> list[str]:
    """The keys of the workload that the overrides set, without its name."""
    return [key.removeprefix("workload.") for key in set_keys(overrides) if key.startswith("workload.")]


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


@cache
def chosen(group: str, choice: str, config_dirs: tuple[str, ...]) -> Any:
    """What a choice of a group holds, as its dataclass; None where the group's own room reads it by its name."""
    from omegaconf import OmegaConf

    users = {path.stem for folder in config_dirs for path in Path(folder).glob(f"{group}/*.yaml")}
    if not needs_reading(group, choice, users):
        return None
    return OmegaConf.to_object(composed([*searchpath(config_dirs), f"{group}={register_choice(group, choice)}"])[group])


def checked(config: Any, config_dirs: Sequence[str | Path] = ()) -> SimulateConf:
    """A composed `DictConfig` as plain dataclasses.

    `ValueError` for a key that `+KEY=` added, no predictor, or a pool that cannot be.
    """
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
    folders = tuple(map(str, config_dirs))
    pools = found.deployment.pools.items()
    found.deployment.pools = {
        name: pool_of(str(name), pool, lambda group, choice: chosen(group, choice, folders)) for name, pool in pools
    }
    resolved_pools(found.deployment, found.hardware, found.engine)
    check_predictor(found.predictor)
    return found

"""From `KEY=VALUE` overrides to a checked configuration. Hydra composes; mistakes come out as one sentence."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conf.files import choices as shipped, origin_of, register_choice
from conf.mistakes import sentence, unknown_key
from conf.schema import GROUPS, SimulateConf, register


def prepare(overrides: Sequence[str]) -> list[str]:
    """The overrides with every file or HuggingFace id replaced by a registered choice, sweeps (`model=a,b`) included.

    `ValueError` for an override that cannot be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep, Glob
    from hydra.errors import HydraException

    register()
    parser = OverridesParser.create()
    prepared = []
    for override in overrides:
        key, _, value = override.partition("=")
        if not key.strip("+~") or override.startswith("-"):
            raise ValueError(f"{override!r} is no KEY=VALUE; write for example workload.rate=10.")
        if key.lstrip("+") not in GROUPS or key.startswith("~"):
            prepared.append(override)
            continue
        try:
            parsed = parser.parse_override(override)
        except HydraException:
            choices = [value.strip("'\"")]  # a path may hold characters that Hydra's grammar wants quoted
        else:
            found: Any = parsed.value()
            sweep: list[Any] = list(found.list) if isinstance(found, ChoiceSweep) else [found]
            if isinstance(found, Glob):
                sweep = found.filter(shipped(key.lstrip("+")))
            if any(choice is None or isinstance(choice, list | dict) for choice in sweep):
                raise ValueError(f"{key} wants the name of a choice or a path, got {value!r}.")
            choices = [str(getattr(choice, "text", choice)) for choice in sweep]
        prepared.append(f"{key}={','.join(register_choice(key.lstrip('+'), choice) for choice in choices)}")
    return prepared


def searchpath(config_dirs: Sequence[str | Path]) -> list[str]:
    """The override that adds users' own folders; `ValueError` if one is missing."""
    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise ValueError(f"--config-dir wants a folder, there is none at {folder}.")
    paths = ",".join(f"'file://{Path(folder).resolve()}'" for folder in config_dirs)
    return [f"hydra.searchpath=[{paths}]"] if paths else []


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turns what Hydra, OmegaConf and YAML raise into a `ValueError` of one sentence."""
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ValueError(sentence(error, origin_of)) from error


def compose(overrides: Sequence[str] = (), config_dirs: Sequence[str | Path] = ()) -> SimulateConf:
    """The configuration of `headway simulate OVERRIDES`. `ValueError`, one sentence, for whatever is wrong in it."""
    with one_sentence():
        return checked(composed([*searchpath(config_dirs), *prepare(overrides)]))


def composed(prepared: Sequence[str]) -> Any:
    """Hydra's own composition, a `DictConfig`."""
    from hydra import compose as hydra_compose, initialize_config_module

    with initialize_config_module("conf", version_base=None):
        return hydra_compose("config", overrides=list(prepared))


def checked(config: Any) -> SimulateConf:
    """A composed `DictConfig` as plain dataclasses; `ValueError` for a key that `+KEY=` added to the schema."""
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
    return found

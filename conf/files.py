"""A file or a HuggingFace id where a group's choice is expected: `model=PATH/config.json`, `workload=trace.csv`, ...

Such a choice is registered with Hydra under a name of its own, so that it composes, sweeps and reaches the processes
of a launcher like every other choice.
"""

import dataclasses
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from conf.mistakes import did_you_mean, nearest
from conf.schema import GROUPS
from sim.deployment.settings import load_engine
from sim.documents import read_mapping, user_path
from sim.hardware.read import list_devices, load_device
from sim.model.read import by_hub_name


TRAINING = ("instruct", "chat", "it", "base", "hf", "thinking", "preview", "meta", "dynamic")

YAML_SUFFIXES = (".yaml", ".yml")
FILE_SUFFIXES = (*YAML_SUFFIXES, ".json", ".jsonl", ".csv", ".gz", ".xz", ".txt", ".parquet")


def looks_like_file(choice: str) -> bool:
    """Whether a choice means a file and not a name: a known suffix, a leading `.`, `/` or `~`, or an existing path."""
    return (
        choice.lower().endswith(FILE_SUFFIXES)
        or choice.startswith((".", "/", "~"))
        or ("/" in choice and "\0" not in choice and Path(choice).exists())
    )


def choices(group: str) -> list[str]:
    """The shipped choices of a group, in alphabetical order."""
    return sorted(path.stem for path in (Path(__file__).parent / group).glob("*.yaml"))


def shape_name(hf_id: str) -> str:
    """What is left of a model's name without its makers and what was trained into it: models of one shape share it.

    `meta-llama/Meta-Llama-3.1-8B-Instruct` and `NousResearch/Llama-3.1-8B` both give `llama-3.1-8b`.
    """
    words = hf_id.lower().rpartition("/")[2].split("-")
    return "-".join(word for word in words if word not in TRAINING and not re.fullmatch(r"\d{4}", word))


@cache
def hub_names() -> dict[str, str]:
    """Catalogue name by lower-case HuggingFace id; reading all files takes a quarter of a second."""
    return by_hub_name()


def by_hf_id(hf_id: str) -> str:
    """The catalogue's name for a HuggingFace id, or for the one model of its shape; `ValueError` with the nearest."""
    known = hub_names()
    name = known.get(hf_id.lower())
    if name is None:
        same = {slug for hub, slug in known.items() if shape_name(hf_id) in (shape_name(hub), slug)}
        name = same.pop() if len(same) == 1 else None
    if name is None:
        near = nearest(hf_id.rpartition("/")[2], [hub.rpartition("/")[2] for hub in known])
        raise ValueError(
            f"the catalogue has no model of the HuggingFace id {hf_id}{did_you_mean(near)} "
            "Otherwise download its config.json and give its path, model=PATH/config.json."
        )
    return name


def content(group: str, path: Path) -> dict[str, Any]:
    """The configuration of group `group` that the file or folder `path` stands for."""
    if group == "hardware":
        return dataclasses.asdict(load_device(path))
    if path.suffix.lower() in YAML_SUFFIXES:
        return read_mapping(path)
    if group == "model":
        return {"name": path.name if path.is_dir() else path.parent.name or path.stem, "path": str(path)}
    if group == "workload":
        return {"name": path.name.partition(".")[0], "arrival": "trace", "lengths": "trace", "path": str(path)}
    raise ValueError(f"{group}={path} wants a YAML file, got {path.suffix or 'a folder'}.")


def register_choice(group: str, choice: str) -> str:
    """The name under which `choice` is known to Hydra.

    Files, HuggingFace ids, engine versions without a profile of their own (the nearest earlier one is taken, or the
    oldest) and devices of installed plug-ins are registered here; any other choice stays as it is.
    """
    if group not in GROUPS:
        return choice
    if group == "model" and "/" in choice and not looks_like_file(choice):
        return by_hf_id(choice)
    if not looks_like_file(choice) and "/" not in choice:
        lower = choice.lower()
        if lower in choices(group):
            return lower
        if group == "hardware" and lower in list_devices():
            return store(group, lower, dataclasses.asdict(load_device(lower)), "an installed plug-in")
        version = re.fullmatch(r"([a-z]+)[-@]v?(\d+(?:\.\d+){0,2})", lower)
        if group == "engine" and version and any(name.startswith(f"{version[1]}-") for name in choices(group)):
            conf = load_engine(version[1], version[2])
            return store(group, f"{version[1]}-{version[2]}", dataclasses.asdict(conf), "the nearest earlier profile")
        return choice
    path = user_path(choice, group)
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ValueError(f"{group}={choice}: there is no file {path.absolute()}.") from None
    stem = path.parent.name if path.name == "config.json" else path.name.partition(".")[0]
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:6]
    return store(group, f"{re.sub('[^A-Za-z0-9_.-]', '-', stem)}-{digest}", content(group, path), str(path))


def store(group: str, name: str, node: dict[str, Any], origin: str) -> str:
    """Register `node` as choice `name` of `group`; returns the name."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(group=group, name=name, node=node, provider=origin)
    return name


def origin_of(choice: str) -> str | None:
    """The file behind a registered choice `group/name`, in a launcher's processes too; None for a shipped one."""
    from hydra.core.config_store import ConfigStore
    from hydra.plugins.config_source import ConfigLoadError

    try:
        return ConfigStore.instance().load(f"{choice}.yaml").provider
    except ConfigLoadError:
        return None


def as_typed(override: str) -> str:
    """An override with the path of a file where a registered choice stands."""
    key, equals, value = override.partition("=")
    path = origin_of(f"{key.lstrip('+')}/{value}")
    return f"{key}{equals}{path}" if path and Path(path).exists() else override

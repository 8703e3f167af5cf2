"""`deployment.pools` as they are written: entries as dataclasses, engines and devices by any name, misspelt names."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from conf.files import choices, looks_like_file
from conf.mistakes import did_you_mean, misfit, nearest
from sim.deployment.conf import PoolConf
from sim.deployment.engine import EngineConf
from sim.deployment.settings import engine_names
from sim.hardware.spec import DeviceConf


POOLS = "deployment.pools."

Choose = Callable[[str, str], Any]
"""`(group, choice)`: what a choice of a group holds, or None where its own room reads it by its name."""


def pool_of(name: str, given: Any, choose: Choose) -> PoolConf:
    """One entry of `deployment.pools`; `ValueError` for one that is no mapping, an unknown key or a misfit value."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(given, PoolConf):
        return given
    where = f"{POOLS}{name}"
    given = _mapping(where, given)
    known = [field.name for field in dataclasses.fields(PoolConf)]
    for key in given:
        if key not in known:
            near = nearest(str(key), known, 1)
            hint = did_you_mean(near) if near else f": it has {', '.join(known)}."
            raise ValueError(f"unknown key {where}.{key}{hint}")
    for key, what in (("engine", "an engine"), ("hardware", "a device")):
        value = given.get(key, "")
        if not isinstance(value, str):
            hint = f"; settings that differ go to {where}.settings" if key == "engine" else ""
            raise ValueError(f"{where}.{key} wants the name of {what}, got {_plain(value)}{hint}.")
    given = given | {"settings": _mapping(f"{where}.settings", given.get("settings", {}))}
    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PoolConf), given))
    except OmegaConfBaseException as error:
        raise ValueError(f"{where}.{misfit(str(error), '')}") from None
    assert isinstance(made, PoolConf)
    known_settings = {field.name for field in dataclasses.fields(EngineConf)}
    settings = {key: value for key, value in made.settings.items() if key in known_settings}
    try:
        OmegaConf.merge(OmegaConf.structured(EngineConf), settings)
    except OmegaConfBaseException as error:
        raise ValueError(f"{where}.settings.{misfit(str(error), '')}") from None
    for key, group in (("engine", EngineConf), ("hardware", DeviceConf)):
        value = getattr(made, key)
        found = choose(key, value) if value else None
        if found is not None:
            assert isinstance(found, group)
            setattr(made, key, found)
    return made


def _mapping(where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{where} wants a mapping of keys, got {_plain(given)}.")
    return given


def _plain(value: Any) -> str:
    return "null" if value is None else f"{value!r:.60}"


def needs_reading(group: str, choice: str, users: Collection[str]) -> bool:
    """Whether only the configuration knows a choice: a file of the user's, or of `conf` under a name without a version.

    `users`: names in the user's own folders.
    """
    if choice in users:
        return True
    if group == "hardware":
        return False  # `load_device` reads the catalogue, plug-ins and files
    return looks_like_file(choice) or (choice in choices(group) and choice not in engine_names())


def check_names(prepared: Sequence[str], pools: Mapping[str, Any], of_file: Callable[[], Collection[str]]) -> None:
    """Raise `ValueError` for a pool that only overrides name, without a role, and that is called almost like another.

    `pools`: all of them; `of_file()`: those that the chosen file lists.
    """
    named = {found[1] for each in prepared if (found := re.match(r"\++deployment\.pools\.([\w-]+)", each))}
    for name in sorted(named):
        pool = pools.get(name)
        if not isinstance(pool, Mapping) or "role" in pool:
            continue
        if not get_close_matches(name, [other for other in pools if other != name], 1, 0.75):
            continue
        known = of_file()
        near = get_close_matches(name, known, 1, 0.75)
        if name not in known and near:
            raise ValueError(
                f"{POOLS}{name}: the deployment has no pool {name}{did_you_mean(near)} A new one says what it does, "
                f"{POOLS}{name}.role=both."
            )

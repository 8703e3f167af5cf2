"""The keys that a scenario may have: a misspelt one would be ignored, and the run compared would be another one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from calibration.conformance.scenario import Scenario, Unsupported


REQUEST = ("id", "arrival_step", "prompt", "out_seed", "priority")
FREE = ("desc", "note", "notes", "comment")
"""Keys for people, allowed everywhere, as are those that begin with an underscore."""


@dataclass(frozen=True)
class Keys:
    """What an engine's scenarios may hold: keys of `config`, of a request beside `REQUEST`, and of values in config."""

    config: Collection[str]
    request: Collection[str]
    inner: Mapping[str, Collection[str]] = field(default_factory=dict)


def check_keys(scenario: Scenario, keys: Keys) -> None:
    """`Unsupported` naming the first setting that is unknown, and the known one nearest to it."""
    for place in ("config", "config_p", "config_d"):
        config = scenario.content.get(place)
        if not isinstance(config, dict):
            continue
        check(config, f"{place}.", keys.config)
        for name, known in keys.inner.items():
            value = config.get(name)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict):
                    check(each, f"{place}.{name}.", known)
    for request in scenario.requests:
        check(request, "", (*REQUEST, *keys.request), f" of request {request['id']}")


def check(given: Mapping[str, Any], place: str, known: Collection[str], whose: str = "") -> None:
    """The keys of one object."""
    for key in given:
        if key in known or is_free(key):
            continue
        near = get_close_matches(key, known, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}."
        raise Unsupported(f"{place}{key:.60}{whose} is an unknown key; {hint}")


def given_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says, without remarks; a key that is null says nothing."""
    return {key: value for key, value in config.items() if value is not None and not is_free(key)}


def is_free(key: str) -> bool:
    """Whether a key is a remark for people."""
    return key.startswith("_") or key in FREE

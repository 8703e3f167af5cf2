"""Typed reading of a HuggingFace config: every key asked for is checked, every key left over is known."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from sim.model.harmless import harmless


MISSING: Any = object()


class Config:
    """One mapping of a config.json, with the name it has in messages.

    A null counts as absent. The getters take alternative names of one fact (the first present wins) and raise
    ValueError with the key, what was wanted and what came.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.where = where
        self.used: set[str] = set()
        self.absent: set[str] = set()

    def get(self, *names: str, default: Any = MISSING) -> tuple[str, Any]:
        """Key and value of the first of `names` present, or the first name and `default`."""
        present = [name for name in names if name in self.values]
        self.used.update(names)
        if present:
            return present[0], self.values[present[0]]
        self.absent.update(names)
        if default is MISSING:
            others = [key for key in self.values if key not in self.used and not harmless(key)]
            near = get_close_matches(names[0], others, 1, 0.8)
            hint = f"; '{near[0]}' looks like a misspelling of it." if near else "."
            raise ValueError(f"{self.where}: key '{names[0]}' is missing in the config{hint}")
        return names[0], default

    def integer(self, *names: str, default: Any = MISSING, least: int = 1, most: int = 10**9) -> Any:
        """A whole number between `least` and `most` (bounds do not apply to the default)."""
        key, value = self.get(*names, default=default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self.where}: '{key}' must be a whole number, got {value!r}.")
        if not least <= value <= most:
            raise ValueError(f"{self.where}: '{key}' must be between {least} and {most}, got {value}.")
        return value

    def number(self, *names: str, default: Any = MISSING) -> Any:
        """A finite number above zero."""
        key, value = self.get(*names, default=default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{self.where}: '{key}' must be a finite number above 0, got {value!r}.")
        return float(value)

    def flag(self, *names: str, default: Any = MISSING) -> bool:
        """True or false."""
        key, value = self.get(*names, default=default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: '{key}' must be true or false, got {value!r}.")
        return value

    def text(self, *names: str, default: Any = MISSING) -> Any:
        """A string."""
        key, value = self.get(*names, default=default)
        if value is not default and not isinstance(value, str):
            raise ValueError(f"{self.where}: '{key}' must be a text, got {value!r}.")
        return value

    def sequence(self, *names: str, of: type, default: Any = MISSING) -> Any:
        """A list of values of type `of`."""
        key, value = self.get(*names, default=default)
        if value is default:
            return value
        if not isinstance(value, list | tuple) or any(type(item) is not of for item in value):
            raise ValueError(f"{self.where}: '{key}' must be a list of {of.__name__} values, got {value!r}.")
        return list(value)

    def mapping(self, *names: str, default: Any = MISSING) -> Any:
        """A nested mapping, as it stands."""
        key, value = self.get(*names, default=default)
        if value is not default and not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: '{key}' must be a mapping, got {value!r}.")
        return value

    def part(self, *names: str) -> "Config | None":
        """A nested mapping as a `Config`, or None when absent."""
        value = self.mapping(*names, default=None)
        return None if value is None else Config(value, f"{self.where}, {names[0]}")

    def repeats(self, *names: str) -> None:
        """Mark keys that only repeat what others say in this family."""
        self.used.update(names)

    def left_over(self) -> tuple[str, ...]:
        """Keys that nobody read and that could matter; ValueError if one looks like a key that was wanted.

        A misspelt optional key would otherwise silently fall back to its default.
        """
        unknown = [key for key in self.values if key not in self.used and not harmless(key)]
        for key in unknown:
            near = get_close_matches(key, self.absent, 1, 0.9)
            if near:
                raise ValueError(f"{self.where}: unknown key '{key}'; is '{near[0]}' meant?")
        return tuple(unknown)

"""`KEY=VALUE` words of commands that configure no simulation: known keys, lists, whole numbers, truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from sim.documents import nearest


@dataclass(frozen=True)
class PlainKeys:
    """What was given, by key."""

    command: str
    given: dict[str, str]

    @staticmethod
    def of(command: str, words: Sequence[str], keys: Sequence[str]) -> "PlainKeys":
        """Read `words`. **Raises:** ValueError for a word without `=`, an unknown or repeated key, an empty value."""
        given: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"{command} takes KEY=VALUE, got {word}; its keys are {', '.join(keys)}.")
            if key not in keys:
                near = get_close_matches(key, keys, 1, 0.0)[0]
                raise ValueError(f"{command} has no key {key}; did you mean {near}? (known: {', '.join(keys)})")
            if key in given:
                raise ValueError(f"{command} wants {key} once, got it twice.")
            if not value.strip():
                raise ValueError(f"{command}: {key} is empty.")
            given[key] = value
        return PlainKeys(command, given)

    def text(self, key: str, default: str = "") -> str:
        """The value of `key`."""
        return self.given.get(key, default)

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        """The value of `key`, one of `known`."""
        value = self.text(key, default)
        if value not in known:
            raise ValueError(f"{key} must be one of {', '.join(known)}, got {value}.")
        return value

    def several(self, key: str, known: Sequence[str]) -> list[str]:
        """The comma-separated values of `key`, each one of `known`; all of them where it was not given."""
        if key not in self.given:
            return list(known)
        values = [value.strip() for value in self.given[key].split(",")]
        for value in values:
            if value not in known:
                near = nearest(value, known) or f" ({', '.join(known) if len(known) < 12 else 'none is like it'})"
                raise ValueError(f"{key} must name some of {len(known)} known, got {value!r}{near}.")
        return values

    def whole(self, key: str, default: int, least: int = 0) -> int:
        """The value of `key` as a whole number of at least `least`."""
        value = self.given.get(key)
        if value is None:
            return default
        if not value.isdecimal() or int(value) < least:
            raise ValueError(f"{key} must be a whole number of at least {least}, got {value}.")
        return int(value)

    def truth(self, key: str) -> bool:
        """Whether `key` is true; false where it was not given."""
        return self.choice(key, ("true", "false"), "false") == "true"

    def sources(self, key: str, package: str) -> list[str | Path]:
        """The comma-separated paths of `key`, which must exist; the word `package` stays what it is."""
        values = [value.strip() for value in self.given.get(key, "").split(",") if value.strip()]
        found = [value if value == package else Path(value).expanduser() for value in values]
        for path in found:
            if isinstance(path, Path) and not path.exists():
                raise ValueError(
                    f"{key}: {path} does not exist; give folders or files, or {package} for the installed package."
                )
        return found

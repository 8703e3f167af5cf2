"""What a foreign command line becomes: overrides, what was left out and why, and remarks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from scripts.vllm_flags.parser import Flag, Given


@dataclass
class Translation:
    """Overrides, the flags that were left out with the reason, and remarks."""

    overrides: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set(self, key: str, value: Any) -> None:
        """Add `key=value` in the grammar of overrides."""
        self.overrides.append(f"{key}={literal(value)}")


def literal(value: Any) -> str:
    """A value as Hydra's grammar wants it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(literal(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    if value is None:
        return "null"
    text = str(value)
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9_./:@+-]+", text):
        return text
    # The grammar reads a backslash as one only before a quote.
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), text) + '"'


@cache
def table(program: str) -> tuple[dict[str, Flag], dict[str, Flag]]:
    """The flags of a program by long and by short name."""
    names: dict[str, Flag] = {}
    shorts: dict[str, Flag] = {}
    for name, row in yaml.safe_load(Path(__file__).with_name("flags.yaml").read_text())[program].items():
        also, short = row.pop("also", []), row.pop("short", None)
        flag = Flag(name, **row | {"neutral": tuple(row.get("neutral", ()))})
        names |= {known: flag for known in (name, *also)}
        if short:
            shorts[short] = flag
    return names, shorts


Rule = Callable[[Given, Translation], None]


def apply(given: Given, program: str, rules: Mapping[str, Rule], out: Translation) -> None:
    """Translate every flag: to its key, by its rule, or to the list of those left out."""
    names, _ = table(program)
    wanted: set[str] = set()
    for name, value in given.flags.items():
        flag = names[name]
        if flag.special:
            wanted.add(flag.special)
        elif flag.key:
            out.set(flag.key, value)
        elif value not in flag.neutral and value is not False:
            out.ignored.append((f"--{name}", flag.why))
    for rule in sorted(wanted):
        rules[rule](given, out)

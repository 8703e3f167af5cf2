"""Reads a command line written for another program: `--a-b 1`, `--a_b=1`, `--no-a`, `-tp 2`, `--json.key 1`."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any


BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


WANTED = {
    "int": "a whole number",
    "float": "a number",
    "json": "JSON with keys",
    "flag": "true or false",
    "text": "text",
    "list": "a list",
}


@dataclass(frozen=True)
class Flag:
    """One flag of a program and what it means here; the fields are those of `flags.yaml`."""

    name: str
    kind: str = "text"
    key: str | None = None
    special: str | None = None
    why: str = ""
    neutral: tuple[Any, ...] = ()


@dataclass
class Given:
    """What a command line holds: words without a flag, and the value of each flag by its first name."""

    words: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)


def words_of(command: str) -> list[str]:
    """The words of a shell command, line continuations and leading `NAME=value` settings removed."""
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ValueError(f"cannot read the command {command!r}: {str(error).lower()}.") from None
    while words and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0]):
        words.pop(0)
    return words


def human_int(text: str) -> int:
    """`4096`, `4k` (4,000), `4K` (4,096) or `25.6k`, as vLLM reads them."""
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)", text)
    if not found:
        raise ValueError(text)
    value = float(found[1]) * {**BINARY, **DECIMAL, "": 1}[found[2]]
    if value != int(value):
        raise ValueError(text)
    return int(value)


def convert(flag: Flag, text: str, program: str) -> Any:
    """The value of a flag from its text; `ValueError` says what was wanted."""
    try:
        if flag.kind == "int":
            return "auto" if text == "auto" and flag.special == "max_model_len" else human_int(text)
        if flag.kind == "float":
            return float(text)
        if flag.kind == "flag":
            return {"true": True, "false": False}[text.lower()]
        if flag.kind == "json":
            found = json.loads(text)
            level = flag.special == "compilation" and isinstance(found, int) and not isinstance(found, bool)
            if not isinstance(found, dict) and not level:
                raise ValueError(text)
            return found
    except (ValueError, KeyError, OverflowError, RecursionError):
        raise ValueError(f"{program}: --{flag.name} wants {WANTED[flag.kind]}, got {text!r:.80}.") from None
    return text


def dotted(value: str) -> Any:
    """The value of `--json.key value`: JSON if it is, else text."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def merge(values: dict[str, Any], path: Sequence[str], value: Any, option: str) -> None:
    """Set `values[path[0]][path[1]]...`; `ValueError` where one of them has a single value already."""
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ValueError(f"{option} wants {part} to hold keys, and it was given a value.")
    values[path[-1]] = value


def unknown_flag(option: str, names: Mapping[str, Flag], program: str, others: Mapping[str, Mapping[str, Flag]]) -> str:
    """The sentence for a flag the program does not have: whose it is, or the nearest known one."""
    name = option.lstrip("-").partition(".")[0].replace("_", "-").removeprefix("no-")
    owner = next((other for other, known in others.items() if name in known), None)
    if owner:
        return f"{program} has no flag {option}: it is one of `{owner}`."
    near = get_close_matches(name, names, 1, 0.6)
    return f"{program} has no flag {option}" + (
        f": did you mean --{near[0]}?" if near else ", as far as headway knows."
    )


def parse_flags(
    words: Sequence[str],
    names: Mapping[str, Flag],
    shorts: Mapping[str, Flag],
    program: str,
    others: Mapping[str, Mapping[str, Flag]],
) -> Given:
    """Split `words` by the flags of a program. `ValueError` for an unknown flag, with the nearest known one.

    `others`: the flags of the programs that it may be confused with.
    """
    given = Given()
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not re.match(r"--?[A-Za-z]", word):
            given.words.append(word)
            continue
        option, equals, value = word.partition("=")
        name, _, path = option.lstrip("-").partition(".")
        name = name.replace("_", "-")
        flag, negated = names.get(name), False
        if not option.startswith("--"):
            flag = shorts.get(name)
            level = re.fullmatch(r"-O(\d)", option)
            if flag is None and level and "O" in shorts:
                flag, equals, value = shorts["O"], "=", level[1]
        elif flag is None and name.startswith("no-"):
            flag = names.get(name.removeprefix("no-"))
            negated = flag is not None and flag.kind == "flag"
            flag = flag if negated else None
        if flag is None:
            raise ValueError(unknown_flag(option, names, program, others))
        if flag.kind == "flag" and not equals:
            literal = queue and not negated and queue[0].lower() in ("true", "false")
            given.flags[flag.name] = convert(flag, queue.pop(0), program) if literal else not negated
            continue
        if flag.kind == "list":
            items = [value] if equals else []
            while not equals and queue and not re.match(r"--?[A-Za-z]", queue[0]):
                items.append(queue.pop(0))
            values = [dotted(item) for item in " ".join(items).replace(",", " ").split()]
            if not values and (flag.key or flag.special):
                raise ValueError(f"{program}: {option} wants one value or more, got none.")
            given.flags[flag.name] = values
            continue
        if not equals:
            if not queue:
                raise ValueError(f"{program}: {option} wants a value, and the command ends there.")
            value = queue.pop(0)
        if path:
            if flag.kind != "json":
                raise ValueError(f"{program}: --{flag.name} takes one value, got {option}.")
            if not isinstance(given.flags.setdefault(flag.name, {}), dict):
                raise ValueError(f"{program}: {option} wants --{flag.name} to hold keys, and it was given a value.")
            merge(given.flags[flag.name], path.split("."), dotted(value), f"{program}: {option}")
        else:
            given.flags[flag.name] = convert(flag, value, program)
    return given
